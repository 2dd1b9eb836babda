"""Rows that are equal so far are decoded once, and get the tokens that they would get alone."""
import copy

import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import EarlyStop, Sampling, generate
from tests.model.helper import set_way
from tests.rollout.test_generate import CPU, prompts_of, uniform_of

ROWS = [0] * 6 + [1] * 8 + [2] * 2  # the prompt of each row


def odd_tokens(prompt, completion):
    return range(1, 30, 2) if len(completion) % 2 else None


def rollout(model, merge, sampling=Sampling(), length=12, greedy=False, **options):
    prompts = prompts_of([9, 4, 6])
    batch = PromptBatch.of([prompts[i] for i in ROWS], CPU)
    uniform = uniform_of(len(ROWS), length)
    uniform[1:4] = uniform[0]  # the same row three times
    return generate(model, batch, length, [29, 7, 8], sampling, None if greedy else uniform, merge=merge, **options)


def same(once, each):
    assert torch.equal(once.action, each.action) and torch.equal(once.length, each.length)
    assert torch.allclose(once.logp, each.logp, atol=1e-5)
    if isinstance(each.kept, list):
        for a, b in zip(once.kept, each.kept):
            assert torch.equal(a.words, b.words) and torch.equal(a.width, b.width)
    elif each.kept is not None:
        assert torch.equal(once.kept, each.kept)


class TestRows:

    @pytest.mark.parametrize(
        'sampling', [
            Sampling(0.02),
            Sampling(0.03, top_k=5),
            Sampling(0.03, top_p=0.8),
            Sampling(0.02, repetition_penalty=1.5),
            Sampling(0.02, allowed_tokens=odd_tokens),
        ],
        ids=['plain', 'top-k', 'top-p', 'repetition', 'grammar']
    )
    def test_are_those_of_lines_of_their_own(self, tiny_model, sampling, decoded):
        once, steps = rollout(tiny_model, True, sampling), decoded[:]
        decoded.clear()
        same(once, rollout(tiny_model, False, sampling))
        assert sum(steps) < sum(decoded) and len(set(once.length.tolist())) > 1

    def test_with_limits_ends_and_forced_tokens(self, tiny_model):
        options = dict(
            limit=torch.tensor([12, 3, 12, 5] * 4),
            ends=lambda tokens: len(tokens) > 4 and tokens[-1] < 9,
            forced=dict(zip([(2, 1), (7, 0)], [5, 11])),
        )
        once = rollout(tiny_model, True, Sampling(0.02), **options)
        same(once, rollout(tiny_model, False, Sampling(0.02), **options))
        assert once.action[2, 1] == 5 and once.action[7, 0] == 11 and once.length[1] <= 3

    def test_with_rows_that_are_stopped(self, tiny_model):
        keys = [(i, row) for row, i in enumerate(ROWS)]
        found = [
            rollout(tiny_model, merge, Sampling(0.02), early_stop=EarlyStop(keys, 2, CPU)) for merge in (True, False)
        ]
        same(*found)

    @pytest.mark.parametrize('way', ['padded', 'by_length', 'reread'])
    def test_in_every_way_of_reading(self, tiny_model, way):
        set_way(tiny_model, way)
        same(rollout(tiny_model, True, Sampling(0.02)), rollout(tiny_model, False, Sampling(0.02)))


class TestLines:

    @pytest.mark.parametrize('merge', [True, False])
    def test_of_a_gpu_the_cpu_waits_once_for_each_token(self, tiny_model, merge, gpu):
        model = copy.deepcopy(tiny_model).cuda()
        assert model.shares_prompts
        prompts, rows, length = prompts_of([9, 4, 6]), len(ROWS), 12
        batch = PromptBatch.of([prompts[i] for i in ROWS], torch.device('cuda'))
        uniform = uniform_of(rows, length).cuda()
        gpu.counts.reset()
        out = generate(model, batch, length, [29, 7, 8], Sampling(0.02), uniform, merge=merge)
        assert gpu.counts.waits == {'tolist': out.action.shape[1]}  # one of them before the first, none after the last
        assert len(set(out.length.tolist())) > 1

    def test_greedy_rows_of_a_prompt_stay_one_line(self, tiny_model, decoded):
        once = rollout(tiny_model, True, greedy=True, length=5)
        assert max(decoded[1:]) <= 3
        same(once, rollout(tiny_model, False, greedy=True, length=5))

    def test_rows_that_differ_are_lines_of_their_own(self, tiny_model, decoded):
        """At a high temperature all but the three equal rows differ after a token or two."""
        out = rollout(tiny_model, True, Sampling(50.0))
        different = len(set(map(tuple, out.action[:, :1].tolist())))
        assert decoded[1] == 16 - int((out.length == 1).sum()) and different > 8

    def test_a_row_that_ends_alone_waits_in_the_batch(self, tiny_model, decoded):
        prompts, uniform = PromptBatch.of(prompts_of([3, 7, 5, 4, 6]), CPU), uniform_of(5, 3)
        first = generate(tiny_model, prompts, 1, [], Sampling(), uniform).action[:, 0].tolist()
        assert first.count(first[0]) == 1
        decoded.clear()
        assert generate(tiny_model, prompts, 3, first[:1], Sampling(), uniform).length[0] == 1
        assert decoded == [3 + 7 + 5 + 4 + 6, 5, 5]
