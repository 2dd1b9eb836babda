import pytest
import torch

from ding_grpo.rollout import Sampling
from ding_grpo.rollout.sampling import draw, force


class TestSampling:

    @pytest.mark.parametrize('top_p, expected', [(0.4, [0, -1, -1]), (0.5, [0, -1, -1]), (0.6, [0, 2, -1])])
    def test_top_p_keeps_the_fewest_that_reach_it(self, top_p, expected):
        _, kept = Sampling(top_k=3, top_p=top_p).restrict(torch.tensor([[0.55, 0.1, 0.35, 0.]]).log())
        assert kept.tolist() == [expected]

    def test_top_p_that_is_reached_exactly_keeps_no_more(self):
        _, kept = Sampling(top_k=4, top_p=0.5).restrict(torch.zeros(1, 4))
        assert (kept >= 0).sum() == 2

    def test_top_k_above_the_vocabulary(self):
        logit, kept = Sampling(top_k=100).restrict(torch.tensor([[0.5, 0.1, 0.3, 0.1]]).log())
        assert logit.shape == (1, 4) and sorted(kept[0].tolist()) == [0, 1, 2, 3]

    @pytest.mark.parametrize('sampling', [Sampling(), Sampling(0.7), Sampling(1.3, 5), Sampling(0.9, 8, 0.8)], ids=str)
    def test_reuse_gives_the_sampled_distribution(self, sampling):
        logit = torch.randn(6, 20)
        restricted, kept = sampling.restrict(logit)
        index, _ = draw(restricted, torch.rand(6, dtype=torch.float64))
        action = index if kept is None else kept.gather(-1, index[:, None])[:, 0]
        again, position = sampling.reuse(logit[:, None], action[:, None], None if kept is None else kept[:, None])
        assert torch.equal(again[:, 0], restricted) and torch.equal(position[:, 0], index)

    def test_kept_ids_survive_a_change_of_the_weights(self):
        # Recomputed after the change, the set would be {0, 1} and the taken token 2 outside it.
        sampling = Sampling(top_k=2)
        _, kept = sampling.restrict(torch.tensor([[3., 0., 1.]]))
        changed = torch.tensor([[[3., 1., 0.]]])
        logit, index = sampling.reuse(changed, torch.tensor([[2]]), kept[None])
        logp = logit.log_softmax(-1).gather(-1, index[..., None])
        assert logp.item() == pytest.approx(torch.tensor([3., 0.]).log_softmax(0)[1].item())


class TestDraw:

    def test_inverts_the_cumulative_distribution(self):
        logit = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(5, 3)
        uniform = torch.tensor([0., 0.499, 0.501, 0.799, 0.999999], dtype=torch.float64)
        index, logp = draw(logit, uniform)
        assert index.tolist() == [0, 0, 1, 1, 2]
        assert torch.allclose(logp, logit[0].log_softmax(-1)[index])

    @pytest.mark.parametrize('size', [255, 256, 257, 5000])
    def test_of_a_large_vocabulary(self, size):
        generator = torch.Generator().manual_seed(0)
        logit = 3 * torch.randn(500, size, generator=generator)
        logit[:, ::3] = float('-inf')
        uniform = torch.rand(500, dtype=torch.float64, generator=generator)
        plain = torch.searchsorted(logit.double().softmax(-1).cumsum(-1), uniform[:, None], right=True)[:, 0]
        index, logp = draw(logit, uniform)
        assert (index == plain).float().mean() > 0.995  # at a boundary a rounding may decide
        assert torch.allclose(logp, logit.log_softmax(-1).gather(1, index[:, None])[:, 0], atol=1e-5)
        assert logp.isfinite().all()

    def test_never_draws_probability_zero(self):
        logit = torch.tensor([[float('-inf'), 0., float('-inf'), 0., float('-inf')]])
        for u in (0., 0.4999999, 0.5, 1 - 2 ** -53):
            assert draw(logit, torch.tensor([u], dtype=torch.float64))[0].item() in (1, 3)

    def test_never_draws_probability_zero_from_a_large_vocabulary(self):
        # The sum of a block and its sums token by token are rounded in other orders: in 862 rows the last is smaller.
        logit = 8 * torch.randn(2000, 600, generator=torch.Generator().manual_seed(0))
        logit[:, 200:] = float('-inf')
        index, logp = draw(logit, torch.full((2000, ), 1 - 2 ** -53, dtype=torch.double))
        assert index.max() < 200 and logp.isfinite().all()

    @pytest.mark.parametrize('size', [4, 256, 257, 5000])
    @pytest.mark.parametrize('value', [float('nan'), float('inf'), float('-inf')])
    def test_a_row_without_a_distribution_is_told_by_its_log_probability(self, size, value):
        # NaN leads a search behind the last position, and reading there ends in an index error.
        logit = torch.zeros(3, size)
        logit[1] = value
        index, logp = draw(logit, torch.full((3, ), 0.999, dtype=torch.float64))
        assert logp.isnan().tolist() == [False, True, False] and 0 <= index.min() <= index.max() < size


class TestForce:

    def forced(self, token, uniform, sampling=Sampling()):
        """Token and log-probability of one row over probabilities 1/2, 1/4, 1/8, 1/8; and what was drawn."""
        logit, kept = sampling.restrict(torch.tensor([[.125, .25, .125, .5]]).log())
        index, logp = draw(logit, torch.tensor([uniform], dtype=torch.double))
        drawn = index.clone(), logp.clone()
        force(logit, kept, 0, token, index, logp)
        ids = index if kept is None else kept.gather(1, index.unsqueeze(1)).squeeze(1)
        return ids.item(), logp.exp().item(), drawn[1].item() == logp.item()

    @pytest.mark.parametrize(
        'token, sampling, probability, same_bits',
        [
            (1, Sampling(), 0.25, False),
            (0, Sampling(), 0.125, True),  # the drawn token
            (1, Sampling(top_k=2), 1 / 3, False),  # of the kept tokens 3 and 1: 2/3 and 1/3
        ]
    )
    def test_by_hand(self, token, sampling, probability, same_bits):
        assert self.forced(token, 0.0, sampling) == (token, pytest.approx(probability), same_bits)

    @pytest.mark.parametrize(
        'token, sampling', [(0, Sampling(top_k=2)), (1, Sampling(top_k=3, top_p=.4)), (4, Sampling())]
    )
    def test_a_token_that_cannot_be_sampled_is_refused(self, token, sampling):
        with pytest.raises(ValueError, match=f'token {token}: the sampling distribution does not contain it'):
            self.forced(token, 0.0, sampling)
