"""Turns that continue a kept cache, against turns that read their whole conversation again."""
import copy

import pytest
import torch

from ding_grpo.data.batch import Batch
from ding_grpo.model import PromptBatch, reader, shared_prompt
from dizoo_llm.envs import TokenEnv

from .helper import make_policy, sample_dialogues
from .test_turn_masks import SETTINGS, Chatter

LLAMA = dict(model_type='llama', hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
WINDOW = dict(LLAMA, model_type='mistral', sliding_window=6, num_key_value_heads=2)
LEARNED = dict(model_type='gpt2', n_embd=32, n_layer=2, n_head=4, n_positions=64)  # positions end where rows do


def play(think_answer, setting, kept, monkeypatch, groups=6, model=LLAMA, tokens=None, graphs=False):
    main, create = copy.deepcopy(think_answer[0]), think_answer[1]
    env_options, sampling = SETTINGS[setting]
    env = TokenEnv(Chatter(), **env_options)
    main.policy.group_size = 8
    main.policy.collect.update(sampling)
    main.policy.model.update(config=dict(model, vocab_size=32), cuda_graphs=graphs)
    policy = make_policy(main, create, env=env)
    if not kept:
        monkeypatch.setattr(policy._actor, '_keeps_cache', lambda: False)
    policy._model.reading  # the trial reads too
    if tokens is not None:
        read = shared_prompt.read
        monkeypatch.setattr(
            shared_prompt, 'read', lambda lm, ids, *args: tokens.append(len(ids)) or read(lm, ids, *args)
        )
    samples = sample_dialogues(policy, env, groups)
    monkeypatch.undo()
    return policy, samples


@pytest.mark.unittest
class TestKeptCache:

    @pytest.mark.parametrize(
        'model, setting', [
            *((LLAMA, setting) for setting in SETTINGS),
            *((model, setting) for model in (WINDOW, LEARNED) for setting in ('plain', 'cut turns')),
        ],
        ids=lambda value: value if isinstance(value, str) else value['model_type']
    )
    def test_equals_reading_again(self, think_answer, monkeypatch, model, setting):
        policy, kept = play(think_answer, setting, True, monkeypatch, model=model)
        _, again = play(think_answer, setting, False, monkeypatch, model=model)
        assert policy._model.shares_prompts
        for one, other in zip(kept, again):
            assert torch.equal(one['action'], other['action']) and torch.equal(one['turn'], other['turn'])
            assert (one['logp_old'] - other['logp_old']).abs().max() <= 2e-6
        batch = Batch.of(kept)
        assert (batch.turn.amax(1) > 0).sum() > 10
        with torch.no_grad():
            gap = (policy._actor.read(policy._model, batch).logp - batch.logp_old)[batch.weight != 0]
        assert gap.abs().max() <= 2e-6

    def test_a_turn_reads_only_what_is_new(self, think_answer, monkeypatch):
        counts = {}
        for kept in (True, False):
            tokens = counts[kept] = []
            play(think_answer, 'cut turns', kept, monkeypatch, groups=1, tokens=tokens)
        # Without a cache, later turns read prompts and all turns again; with it, each call reads at most the last token
        # and a reply of at most 10 tokens of 8 lines.
        assert max(counts[True]) <= 8 * 11 and sum(counts[True]) < 0.7 * sum(counts[False])

    @pytest.mark.parametrize('by', ['in place', 'optimizer'])
    def test_new_weights_forget_what_old_ones_read(self, think_answer, by):
        main, create = think_answer
        env = TokenEnv(Chatter(), **SETTINGS['plain'][0])
        policy = make_policy(main, create, env=env)
        obs, other = {0: env.reset(seed=0, options=dict(index=4))[0]}, make_policy(main, create, env=env)
        out = policy.collect_mode.forward(obs, row_keys={0: (0, 0, 0)})
        obs = {0: env.step(out[0]['action'].numpy())[0]}
        assert (obs[0] >= 0).sum() > 5 + len(out[0]['action'])
        for each in (policy, other):
            for p in each._model.parameters():
                p.grad = p.detach().clone()
            if by == 'optimizer':  # a fused one, whose steps torch does not count
                each._learning.optimizer.step()
                continue
            with torch.no_grad():
                for p in each._model.parameters():
                    p.mul_(1.5)
        found = [each.eval_mode.forward(obs)[0] for each in (policy, other)]
        assert torch.equal(found[0]['action'], found[1]['action'])
        assert len(policy._actor._cache._parts) == 1 and policy._actor._cache._parts[0].starts == [(obs[0] >= 0).sum()]

    @pytest.mark.parametrize('autocast', [None, 'bfloat16'])
    def test_float32_does_not_continue_what_bfloat16_read(self, think_answer, autocast):
        main, create = think_answer
        main.policy.collect.autocast = autocast
        env = TokenEnv(Chatter(), **SETTINGS['plain'][0])
        policy = make_policy(main, create, env=env)
        obs = {0: env.reset(seed=0, options=dict(index=4))[0]}
        out = policy.collect_mode.forward(obs, row_keys={0: (0, 0, 0)})
        sampled, = policy._actor._cache._parts
        policy.eval_mode.forward({0: env.step(out[0]['action'].numpy())[0]})
        assert (sampled in policy._actor._cache._parts) == (autocast is None)

    def test_an_architecture_that_cannot_share_reads_again_and_says_so_once(self, think_answer, monkeypatch, capsys):
        _, kept = play(think_answer, 'plain', True, monkeypatch, groups=2)
        monkeypatch.setattr(reader, '_FOUND', {})  # the result must not stay for other tests
        real = shared_prompt.install
        monkeypatch.setattr(shared_prompt, 'install', lambda lm: False)
        main, create = copy.deepcopy(think_answer[0]), think_answer[1]
        main.policy.group_size, main.policy.model.config = 8, dict(LLAMA, vocab_size=32)
        env = TokenEnv(Chatter(), **SETTINGS['plain'][0])
        policy = make_policy(main, create, env=env)
        capsys.readouterr()
        again = sample_dialogues(policy, env, 2)
        assert real is not shared_prompt.install and not policy._model.shares_prompts
        assert capsys.readouterr().out.count('reads its whole conversation again') == 1
        for one, other in zip(kept, again):
            assert torch.equal(one['action'], other['action'])


@pytest.mark.unittest
@pytest.mark.parametrize('model', [LLAMA, WINDOW], ids=['llama', 'window'])
def test_lines_read_different_numbers_of_tokens(think_answer, model):
    main, create = think_answer
    main.policy.model.config = dict(model, vocab_size=32)
    lm = make_policy(main, create)._model
    rows = [torch.randint(0, 32, (n, )) for n in (19, 17, 25)]
    prompts = [rows[0][:6], rows[0][:6], rows[2][:4]]
    rows[1][:6] = rows[0][:6]
    lm.reading
    with torch.no_grad():
        decoding = lm.start(PromptBatch.of(prompts, lm.device))
        at, found = torch.tensor([6, 6, 4]), []
        for lengths in ([1, 3, 0], [0, 0, 9], [5, 1, 1], [7, 7, 9]):
            token = torch.zeros(3, max(lengths)).long()
            for line, n in enumerate(lengths):
                token[line, :n] = rows[line][at[line]:at[line] + n]
            at += torch.tensor(lengths)
            logit = decoding.read(token, torch.tensor(lengths))
            for line, n in enumerate(lengths):
                if n:
                    alone = lm.lm(input_ids=rows[line][None, :at[line]], use_cache=False).logits[0, -1]
                    found.append((logit[line] - alone[:lm.output_tokens]).abs().max())
    assert len(found) == 9 and max(found) <= 2e-6
