"""Prompts read once are read right: against each row read whole, by itself."""
import copy
import json
from functools import partial

import pytest
import torch

from ding_grpo.model import CausalLM, causal_lm, shared_growing, shared_prompt, shared_whole
from ding_grpo.model.decoding import CachedDecoding, PromptBatch, SharedDecoding
from ding_grpo.model.prompt_tree import PromptTree
from ding_grpo.model.rows import read_shared
from ding_grpo.rollout import Sampling, generate

from tests.cases import long
from tests.model.test_architectures import CONFIGS, CPU

LENGTHS = {
    'uneven': ((9, 4, 6), (0, 2, 1, 1, 0, 2, 2), (6, 4, 1, 8, 8, 2, 0)),
    'even': ((7, 7), (0, 0, 0, 1, 1, 1), (5, 5, 5, 5, 5, 5)),
    'nothing but prompts': ((3, 5), (1, 0), (1, 1)),
    'one row': ((4, ), (0, ), (3, )),
    'beginnings': ((9, 4, 6, 3, 5), (0, 2, 1, 1, 0, 2, 2, 3, 4), (6, 4, 1, 8, 8, 2, 0, 3, 2)),
    'one beginning': ((5, 3, 7), (0, 2, 1, 1, 0), (6, 4, 1, 8, 8)),
    'branches': ((9, 4), (0, 0, 0, 1, 0, 1, 1, 0), (6, 4, 8, 8, 2, 5, 5, 6)),
}
COMMON = {'beginnings': ((8, 5), (0, 1, 0, 1, 0)), 'one beginning': ((9, ), (0, 0, 0))}


@pytest.fixture(autouse=True)
def short_beginnings_count(monkeypatch):
    of = PromptTree.of
    monkeypatch.setattr(PromptTree, 'of', lambda prompts, least=0: of(prompts, 0))


def make(name, **changes):
    torch.manual_seed(0)
    model = CausalLM(config=dict(CONFIGS[name], model_type=name), **changes)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(4)
    return model


def rows(case):
    torch.manual_seed(1)
    of_prompts, row, length = LENGTHS[case]
    prompts = [torch.randint(0, 40, (n, )) for n in of_prompts]
    if case == 'beginnings':
        prompts[4][:2] = prompts[0][:2]  # after their common beginning
    if case in COMMON:
        lengths, beginning = COMMON[case]
        common = [torch.randint(0, 40, (n, )) for n in lengths]
        prompts = [torch.cat([common[i], p]) for i, p in zip(beginning, prompts)]
        tree = PromptTree.of(PromptBatch.of([prompts[i] for i in row], CPU))
        assert sorted(tree.common) == sorted(lengths)
    completion = torch.randint(0, 40, (len(row), max(length)))
    if case == 'branches':
        for i, n in ((1, 2), (2, 3), (7, 6), (5, 1), (6, 4)):
            completion[i, :n] = completion[row.index(row[i]), :n]
    return [prompts[i] for i in row], completion, torch.tensor(length)


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def tokens_read(model, monkeypatch):
    """The number of tokens of each reading from here on."""
    assert model.shares_prompts
    read, original = [], shared_prompt.read
    monkeypatch.setattr(shared_prompt, 'read', lambda lm, ids, *args: read.append(len(ids)) or original(lm, ids, *args))
    return read


def crossed(names, cases):
    """In `make test` every architecture with the case that has most in it, and llama with every case."""
    return [(n, c) if n == 'llama' or c == 'beginnings' else long(n, c) for n in names for c in cases]


@pytest.mark.unittest
class TestLearning:

    @pytest.mark.parametrize('part', [0, shared_whole.PART], ids=['parts', 'one part'])
    @pytest.mark.parametrize('name, case', crossed(CONFIGS, LENGTHS))
    def test_hidden_states_and_gradients(self, name, case, part, monkeypatch):
        monkeypatch.setattr(causal_lm, 'read_shared', partial(read_shared, part=part))
        model = make(name)
        prompts, completion, length = rows(case)
        counted = torch.arange(completion.shape[1]) < length.unsqueeze(1)
        weight = torch.randn(*completion.shape, 32)[counted]
        read = [model.lm.base_model(torch.cat(row)[None], use_cache=False) for row in zip(prompts, completion)]
        wanted = torch.stack([out.last_hidden_state[0, len(p) - 1:-1] for out, p in zip(read, prompts)])[counted]
        expected = gradient(model, (wanted * weight).sum())
        assert model.shares_prompts
        found = model.completion_hidden(PromptBatch.of(prompts, CPU), completion, length)[counted]
        assert torch.allclose(found, wanted, atol=1e-5)
        got = gradient(model, (found * weight).sum())
        assert torch.allclose(got, expected, atol=2e-6 * expected.abs().max().item())

    def test_each_prompt_is_read_once_and_nothing_is_padded(self, monkeypatch):
        model = make('llama')
        read = tokens_read(model, monkeypatch)
        prompts, completion, length = rows('uneven')
        model.completion_hidden(PromptBatch.of(prompts, CPU), completion, length)
        assert read == [9 + 4 + 6 + 5 + 3 + 0 + 7 + 7 + 1 + 0]
        prompts, completion, length = rows('beginnings')
        model.completion_hidden(PromptBatch.of(prompts, CPU), completion, length)
        assert read[1:] == [8 + 5 + 9 + 4 + 6 + 3 + 5 + 5 + 3 + 0 + 7 + 7 + 1 + 0 + 2 + 1]
        prompts, completion, length = rows('branches')
        states = model.completion_states(PromptBatch.of(prompts, CPU), completion, length)
        assert read[2:] == [9 + 4 + (5 + 1 + 4 + 1 + 0) + (7 + 3 + 0)]  # what each row of a prompt adds to those before
        assert len(states.hidden) == read[2] and states.state.shape == completion.shape


@pytest.mark.unittest
class TestSampling:

    @pytest.mark.parametrize('name, case', crossed(CONFIGS, ['uneven', 'even', 'beginnings']))
    def test_tokens_are_those_of_the_copied_cache(self, name, case, monkeypatch):
        """40 tokens a row: the room for keys doubles twice, rows end and leave, windows close."""
        model = make(name)
        batch = PromptBatch.of(rows(case)[0], CPU)
        uniform = torch.rand(len(batch.row), 40, dtype=torch.double, generator=torch.Generator().manual_seed(2))
        found = generate(model, batch, 40, range(2), Sampling(1.5), uniform)
        assert isinstance(model.start(batch), SharedDecoding)
        monkeypatch.setattr(CausalLM, 'reading', 'padded')
        assert isinstance(model.start(batch), CachedDecoding)
        wanted = generate(model, batch, 40, range(2), Sampling(1.5), uniform)
        assert torch.equal(found.action, wanted.action) and torch.allclose(found.logp, wanted.logp, atol=1e-4)
        assert len(set(found.length.tolist())) > 1

    def test_keys_of_a_prompt_are_there_once(self):
        model = make('llama')
        prompt = torch.arange(9)
        decoding = model.start(PromptBatch.of([prompt] * 8, CPU))
        with torch.no_grad():
            decoding.step(torch.arange(8))
        growing = decoding._growing
        assert not growing._packed
        assert [[k.shape for k, _ in grids] for (grids, ) in growing._grids.values()] == [[(1, 2, 9, 8)]] * 2
        assert [k.shape for k, _ in growing._own.values()] == [(8, 2, shared_growing.ROOM, 8)] * 2

    def test_what_begins_prompts_after_their_common_beginning_is_read_once(self, monkeypatch):
        model = make('llama')
        read = tokens_read(model, monkeypatch)
        model.start(PromptBatch.of(rows('beginnings')[0], CPU))
        assert read == [8 + 5 + 9 + 4 + 6 + 3 + (5 - 2)]


@pytest.mark.unittest
class TestInstall:

    @pytest.mark.parametrize('name', ['llama', 'gemma2'])
    def test_the_model_stays_what_it_was_for_everybody_else(self, name, tmp_path):
        model, ids = make(name), torch.arange(12)[None]
        before, answer = model.lm(ids).logits, model.lm.generate(ids, max_new_tokens=4, do_sample=False)
        assert model.shares_prompts
        assert torch.equal(model.lm(ids).logits, before)
        assert torch.equal(model.lm.generate(ids, max_new_tokens=4, do_sample=False), answer)
        model.save_pretrained(str(tmp_path))
        assert shared_prompt.NAME not in json.dumps(json.load(open(tmp_path / 'config.json')))
        assert copy.deepcopy(model).shares_prompts

    @pytest.mark.parametrize('model_type', ['gpt_neo', 'bloom'])
    def test_other_attentions_read_whole_rows_and_say_so_once(self, model_type, capsys):
        torch.manual_seed(0)
        shape = dict(
            gpt_neo=dict(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[['global'], 2]]),
            bloom=dict(hidden_size=32, n_layer=2, n_head=4),
        )[model_type]
        model = CausalLM(config=dict(shape, model_type=model_type, vocab_size=40))
        before = model.lm.config._attn_implementation
        prompts, completion, length = rows('uneven')
        batch = PromptBatch.of(prompts, CPU)
        found = [model.completion_hidden(batch, completion, length) for _ in range(2)][0]
        assert not model.shares_prompts and model.lm.config._attn_implementation == before
        told = capsys.readouterr().out
        assert told.count('every row reads its prompt again') == 1 and type(model.lm).__name__ in told
        for i, (p, c) in enumerate(zip(prompts, completion)):
            alone = model.lm.base_model(torch.cat([p, c])[None]).last_hidden_state[0, len(p) - 1:-1]
            assert torch.allclose(found[i, :length[i]], alone[:length[i]], atol=1e-4)

    def test_half_precision(self):
        model = make('llama', dtype='bfloat16')
        assert model.shares_prompts
        prompts, completion, length = rows('uneven')
        hidden = model.completion_hidden(PromptBatch.of(prompts, CPU), completion, length)
        assert hidden.dtype == torch.bfloat16 and hidden.isfinite().all()
        batch = PromptBatch.of(prompts, CPU)
        uniform = torch.rand(len(prompts), 8, dtype=torch.double, generator=torch.Generator().manual_seed(2))
        rollout = generate(model, batch, 8, [99], Sampling(), uniform)
        logp = model.completion_logits(batch, rollout.action).float().log_softmax(-1)
        again = logp.gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)
        assert (again - rollout.logp).abs().mean() < 0.05
