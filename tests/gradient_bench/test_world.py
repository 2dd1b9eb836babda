"""The enumerated world against numbers worked out by hand."""
import math

import pytest
import torch

from ding_grpo.gradient_bench.batches import Batches

from tests.gradient_bench.worlds import make


class TestWorld:

    def test_by_hand(self):
        """Two tokens, two steps: the completions are 'end', 'a end' and 'a a'. p(end) is 1/4 at the start, 1/2 after a.
        """
        world, _ = make(2, 2, 1)
        logits = torch.tensor([[0., math.log(3)], [0., 0.]], dtype=torch.double)
        assert world.token.tolist() == [[0, 0], [1, 0], [1, 1]]
        assert world.weight.tolist() == [[1, 0], [1, 1], [1, 1]]
        assert torch.allclose(world.log_prob_of_rows(logits).exp(), torch.tensor([2, 3, 3]).double() / 8)
        world = world._replace(reward=torch.tensor([0., 1., 0.], dtype=torch.double))
        assert world.expected_reward(logits).item() == pytest.approx(3 / 8)
        # J = p q with p = p(a) = 3/4 at the start and q = p(end after a) = 1/2: q p (1 - p) = 3/32, p q (1 - q) = 6/32
        assert torch.allclose(world.gradient(logits), torch.tensor([-3., 3., 6., -6.]).double() / 32)
        assert world.greedy(logits + torch.tensor([[0., 0.], [0.1, 0.]])).tolist() == [1]
        assert world.greedy(logits + torch.tensor([[0., 0.], [0., 0.1]])).tolist() == [0]

    @pytest.mark.parametrize('last', [True, False])
    def test_the_reward_of_the_last_tokens_or_of_the_first_one(self, last):
        world, _ = make(3, 3, 2)
        world = world.with_reward_of(last, (0., 0.2, 1.), torch.Generator().manual_seed(0))
        found, of_end = {}, {}
        for prompt, token, length, reward in zip(world.prompt, world.token, world.weight.sum(1).int(), world.reward):
            text = token[:length].tolist()
            found.setdefault((int(prompt), *(text[-2:] if last else text[:1])), set()).add(reward.item())
            of_end.setdefault((int(prompt), text[-1]), set()).add(reward.item())
        assert all(len(values) == 1 for values in found.values()) and max(map(len, of_end.values())) > 1
        assert len(found) == (2 * 7 if last else 2 * 3)  # (0), (1 0), (2 0), (1 1), (1 2), (2 1), (2 2)
        count = [sum(values == {reward} for values in found.values()) for reward in (0., 0.2, 1.)]
        assert sorted(count) == ([4, 5, 5] if last else [2, 2, 2])

    def test_score_is_the_gradient_of_each_token(self):
        """A token depends on one row of logits, so the squared norm of its score is that of its own logits."""
        world, logits = make(3, 3, 2)
        score = world.score(logits)
        assert torch.allclose(score.square().sum(-1), world.score_norm(logits), atol=1e-12)
        of_rows = (world.log_prob_of_rows(logits).exp() * world.reward).unsqueeze(1) * score.sum(1)
        assert torch.allclose(of_rows.sum(0) / 2, world.gradient(logits), atol=1e-12)

    def test_divergence(self):
        world, logits = make(3, 2, 1)
        other = logits + 0.3 * torch.eye(3, dtype=torch.double)
        p, q = (world.log_prob_of_rows(x).exp() for x in (logits, other))
        assert world.divergence(logits, other).item() == pytest.approx((p * (p / q).log()).sum().item())

    def test_every_prompt_can_be_learned(self):
        for seed in range(50):
            world, _ = make(2, 1, 3, seed)
            assert all(len(set(world.reward[world.prompt == p].tolist())) == 2 for p in range(3))


class TestBatches:

    def test_a_sample_has_the_probabilities_of_the_policy(self):
        world, logits = make(3, 2, 2)
        batches = Batches.sample(world, logits, 3, 4000, torch.Generator().manual_seed(0))
        assert not batches.exact and batches.row.shape == (4000, 6)
        assert (world.prompt[batches.row] == torch.tensor([0, 0, 0, 1, 1, 1])).all()
        for prompt in range(2):
            rows = batches.row[:, 3 * prompt:3 * prompt + 3].flatten()
            share = torch.bincount(rows, minlength=len(world.prompt))[world.prompt == prompt] / len(rows)
            p = world.log_prob_of_rows(logits).exp()[world.prompt == prompt]
            assert ((share - p).abs() < 4.5 * (p * (1 - p) / len(rows)).sqrt()).all()

    @pytest.mark.parametrize('prompts, number', [(1, 28), (2, 28 ** 2)])
    def test_all_if_there_are_few(self, prompts, number):
        """Pairs of 7 completions, whose order does not matter."""
        world, logits = make(3, 2, prompts)
        found = Batches.make(world, logits, 2, number, torch.Generator())
        assert found.exact and len(found.row) == number and found.probability.sum().item() == pytest.approx(1)
        assert not Batches.make(world, logits, 2, number - 1, torch.Generator()).exact
