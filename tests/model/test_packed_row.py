"""Prompts read once are read right: against each row read whole, by itself."""
import copy
import json

import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.model.read import whole
from ding_grpo.model.read.completions import read_shared
from ding_grpo.model.read.decoding import CachedDecoding, SharedDecoding
from ding_grpo.model.read.packed_row import NAME
from ding_grpo.model.read.prompts import PromptTree
from ding_grpo.model.read.whole import PART
from ding_grpo.rl_utils import naive_method
from ding_grpo.rollout import Sampling, generate

from tests.cases import long
from tests.model.helper import (
    CPU, FEW, NAMES, ShortBeginnings, alone, gradient, make, set_way, states_alone, tokens_read, uniform
)

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
        tree = PromptTree.of(PromptBatch.of([prompts[i] for i in row], CPU), least=0)
        assert sorted(tree.common) == sorted(lengths)
    completion = torch.randint(0, 40, (len(row), max(length)))
    if case == 'branches':
        for i, n in ((1, 2), (2, 3), (7, 6), (5, 1), (6, 4)):
            completion[i, :n] = completion[row.index(row[i]), :n]
    return [prompts[i] for i in row], completion, torch.tensor(length)


def states(model, prompts, completion, length, part=PART):
    """As ``completion_states``, with common beginnings of any length."""
    return read_shared(model, PromptBatch.of(prompts, CPU), completion, length, least=0, part=part)


def check_states(model, prompts, completion, length, part, most):
    """Hidden states and gradients are those of rows read alone; gradients differ by ``most`` of the largest one."""
    counted = torch.arange(completion.shape[1]) < length.unsqueeze(1)
    wanted = states_alone(model, prompts, completion)[counted]
    weight = torch.randn(wanted.shape)
    expected = gradient(model, wanted * weight)
    assert model.shares_prompts
    found = states(model, prompts, completion, length, part).of_tokens()[counted]
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(gradient(model, found * weight), expected, atol=most * expected.abs().max().item())


def numbers(x):
    """How many numbers the tensors of an object have, without its modules."""
    if isinstance(x, torch.Tensor):
        return x.numel()
    if isinstance(x, torch.nn.Module):
        return 0
    if isinstance(x, (list, tuple)):
        return sum(map(numbers, x))
    return sum(map(numbers, (x if isinstance(x, dict) else getattr(x, '__dict__', {})).values()))


def crossed(names, cases):
    """In `make test` a few architectures with the case that has most in it, and llama with every case."""
    return [(n, c) if n == 'llama' or c == 'beginnings' and n in FEW else long(n, c) for n in names for c in cases]


class TestLearning:

    @pytest.mark.parametrize('part', [0, PART], ids=['parts', 'one part'])
    @pytest.mark.parametrize('name, case', crossed(NAMES, LENGTHS))
    def test_hidden_states_and_gradients(self, name, case, part):
        model = make(name)
        check_states(model, *rows(case), part, 2e-6)

    @pytest.mark.parametrize('name', ['llama', 'mistral', long('qwen2'), long('gpt2')])
    def test_the_first_row_of_a_long_branch_is_attended_by_itself(self, name, monkeypatch):
        """Two branches, of 90 and 80 tokens before a row of each leaves the first one, and that again divides."""
        model, found, first = make(name, change=dict(max_position_embeddings=256)), [], whole._first
        monkeypatch.setattr(whole, '_first', lambda *given: found.append(first(*given)) or found[-1])
        prompts, row = [torch.arange(30, 37), torch.arange(5)], (0, 0, 0, 1, 1)
        length, completion = torch.tensor([100, 100, 95, 99, 92]), torch.randint(0, 40, (5, 100))
        for i, like, n in ((1, 0, 70), (2, 0, 90), (4, 3, 80)):
            completion[i, :n] = completion[like, :n]
        check_states(model, [prompts[i] for i in row], completion, length, 0, 4e-6)
        assert found[-1] in range(91, 100)  # tokens that the first row of each branch reads, at least

    @pytest.mark.parametrize(
        'case, tokens',
        [
            ('uneven', 9 + 4 + 6 + 5 + 3 + 0 + 7 + 7 + 1 + 0),
            ('beginnings', 8 + 5 + 9 + 4 + 6 + 3 + 5 + 5 + 3 + 0 + 7 + 7 + 1 + 0 + 2 + 1),
            ('branches', 9 + 4 + (5 + 1 + 4 + 1 + 0) + (7 + 3 + 0)),  # what each row of a prompt adds to those before
        ]
    )
    def test_each_prompt_is_read_once_and_nothing_is_padded(self, case, tokens):
        model = make('llama')
        read = tokens_read(model)
        prompts, completion, length = rows(case)
        found = states(model, prompts, completion, length)
        assert read == [tokens] and len(found.hidden) == tokens and found.state.shape == completion.shape

    def test_long_beginnings_are_read_once_by_themselves(self):
        model = make('llama')
        read, common = tokens_read(model), torch.arange(40).repeat(2)
        prompts = [torch.cat([common, torch.tensor([i, 7])]) for i in (1, 2, 3)]
        model.completion_hidden(PromptBatch.of(prompts, CPU), torch.zeros(3, 4).long(), torch.tensor([4, 3, 1]))
        assert read == [80 + 3 * 2 + 3 + 2 + 0]


class TestSampling:

    @pytest.mark.parametrize('name, case', crossed(NAMES, ['uneven', 'even', 'beginnings']))
    def test_tokens_are_those_of_the_copied_cache(self, name, case):
        """40 tokens a row: the room for keys doubles twice, rows end and leave, windows close."""
        model = make(name)
        batch = PromptBatch.of(rows(case)[0], CPU)
        drawn = uniform(len(batch.row), 40)
        found = generate(ShortBeginnings(model), batch, 40, range(2), Sampling(1.5), drawn)
        assert isinstance(model.start(batch), SharedDecoding)
        set_way(model, 'padded')
        assert isinstance(model.start(batch), CachedDecoding)
        wanted = generate(model, batch, 40, range(2), Sampling(1.5), drawn)
        assert torch.equal(found.action, wanted.action) and torch.allclose(found.logp, wanted.logp, atol=1e-4)
        assert len(set(found.length.tolist())) > 1

    def test_keys_of_a_prompt_are_there_once(self):
        """Lines keep their own keys and values alone, of 2 layers with 2 heads of size 8, with room for 16 tokens."""
        model, kept = make('llama'), {}
        for tokens in (50, 400):
            for lines in (1, 8):
                decoding = model.start(PromptBatch.of([torch.arange(tokens) % 40] * lines, CPU))
                with torch.no_grad():
                    decoding.step(torch.arange(lines))
                kept[tokens, lines] = numbers(decoding)
        assert kept[400, 8] - kept[400, 1] == kept[50, 8] - kept[50, 1] < 1.2 * 7 * 16 * 2 * 2 * 2 * 8

    def test_what_begins_prompts_after_their_common_beginning_is_read_once(self):
        model = make('llama')
        read = tokens_read(model)
        ShortBeginnings(model).start(PromptBatch.of(rows('beginnings')[0], CPU), 1)
        assert read == [8 + 5 + 9 + 4 + 6 + 3 + (5 - 2)]


def test_more_than_1024_prompts_at_once():
    """1,100 prompts of 2 to 40 tokens, two rows each, in random order. A third begin with the same 70 tokens."""
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 40, (n, ), generator=generator) for n in [*range(2, 41)] * 29][:1100]
    common = torch.randint(0, 40, (70, ), generator=generator)
    prompts = [torch.cat([common, p]) if i % 3 == 0 else p for i, p in enumerate(prompts)]
    order = torch.randperm(2200, generator=generator).tolist()
    given = [prompts[i // 2] for i in order]
    model = make('llama', change=dict(max_position_embeddings=128))
    read, batch = tokens_read(model), PromptBatch.of(given, CPU)
    assert len(batch.ids) > 1024
    out = generate(model, batch, 4, range(4), Sampling(), uniform(len(given), 4))
    action, counted = out.action.clamp(min=0), out.action >= 0
    some = torch.arange(0, len(given), 100)
    with torch.no_grad():
        learned = naive_method(model.completion_logits(batch, action, out.length), action)
        wanted = alone(model, [given[i] for i in some], action[some])
    assert (learned - out.logp)[counted].abs().max() < 1e-4
    assert torch.allclose(learned[some][counted[some]], wanted[counted[some]], atol=1e-4)
    distinct = {tuple(row.tolist()) for row in given}
    assert read[0] <= sum(map(len, distinct)) - 70 * (sum(len(row) > 41 for row in distinct) - 1)


class TestInstall:

    @pytest.mark.parametrize('name', ['llama', 'gemma2'])
    def test_the_model_stays_what_it_was_for_everybody_else(self, name, tmp_path):
        model, ids = make(name), torch.arange(12)[None]
        before, answer = model.lm(ids).logits, model.lm.generate(ids, max_new_tokens=4, do_sample=False)
        assert model.shares_prompts
        assert torch.equal(model.lm(ids).logits, before)
        assert torch.equal(model.lm.generate(ids, max_new_tokens=4, do_sample=False), answer)
        model.save_pretrained(str(tmp_path))
        assert NAME not in json.dumps(json.load(open(tmp_path / 'config.json')))
        assert copy.deepcopy(model).shares_prompts

    def test_half_precision(self):
        model = make('llama', dtype='bfloat16')
        assert model.shares_prompts
        prompts, completion, length = rows('uneven')
        batch = PromptBatch.of(prompts, CPU)
        hidden = model.completion_hidden(batch, completion, length)
        assert hidden.dtype == torch.bfloat16 and hidden.isfinite().all()
        rollout = generate(model, batch, 8, [99], Sampling(), uniform(len(prompts), 8))
        again = naive_method(model.completion_logits(batch, rollout.action), rollout.action)
        assert (again - rollout.logp).abs().mean() < 0.05

    def test_an_architecture_that_needs_contiguous_results(self):
        assert make('afmoe').shares_prompts
