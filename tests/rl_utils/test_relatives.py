"""FIPO, M2PO, REAL, GSPO-token and FlashREINFORCE: against the code of their authors or of peers, and by hand."""
import math

import pytest
import torch

from ding_grpo.rl_utils import LOSS_PRESETS, SURROGATES, LossConfig, group_advantage, grpo_data, grpo_error
from ding_grpo.rl_utils.surrogates.m2po import largest_log_ratio
from tests.extras.plain import refused
from tests.policies import PRESET, learned, sample_groups, token_policy, update, weights
from tests.rl_utils.peers import assert_recorded, double, recorded, tensors

PEERS = recorded('relatives')
GROUP = torch.tensor(PEERS['group'])
FAR = 1e9  # a limit that nothing reaches


def cases(name):
    return pytest.mark.parametrize('case', PEERS[name], ids=range(len(PEERS[name])))


def check(case, old='logp_old', adv='adv', **options):
    new, old, adv, mask = tensors(PEERS, 'logp_new', old, adv, 'mask')
    loss, _ = grpo_error(grpo_data(new.requires_grad_(), old, None, adv, mask, GROUP), beta=0, **options)
    assert_recorded(loss, new, case, 'grad')


class TestAgainstPeers:

    @cases('fipo')
    def test_fipo_is_that_of_ms_swift(self, case):
        width = case['clip_range']
        low, high = (1., FAR) if width is None else (0. if case['high_only'] else width, width)
        options = dict(half_life=case['half_life'], dual_clip=case['dual_clip'], safety=case['safety'] or FAR)
        check(
            case,
            surrogate='fipo',
            surrogate_options=dict(options, range_low=low, range_high=high),
            reduction='token',
            clip_ratio=0.2,
            clip_ratio_high=0.28
        )

    @cases('m2po')
    def test_m2po_is_that_of_its_authors(self, case):
        options = dict(clip_ratio=case['low'] or 0., clip_ratio_high=case['high'] or 0.)
        check(
            case,
            case['old'],
            surrogate='m2po',
            surrogate_options=dict(budget=case['budget']),
            reduction='token',
            **options
        )

    @cases('gspo_token')
    def test_gspo_token_is_that_of_verl(self, case):
        # verl adds 1e-8 to the number of a row's tokens
        check(case, adv='token_adv', ratio='sequence_token', clip_ratio=case['low'], clip_ratio_high=case['high'])

    @cases('real')
    def test_real_is_that_of_its_authors(self, case):
        new, old, mask = tensors(PEERS, 'logp_new', 'logp_old', 'mask')
        adv = group_advantage(double(case['reward']), GROUP)
        data = grpo_data(new.requires_grad_(), old, None, adv, mask, GROUP)
        loss, _ = grpo_error(data, beta=0, surrogate='real', surrogate_options=dict(tau=case['tau']))
        assert_recorded(loss, new, case, 'grad')

    @cases('flash_reinforce')
    def test_flash_reinforce_is_that_of_its_authors(self, case):
        new, old, mask, reward = tensors(PEERS, 'logp_new', 'logp_old', 'mask', 'reward')
        adv = group_advantage(reward, torch.arange(len(reward)), 'batch_mean')  # one row of each prompt
        assert adv.tolist() == pytest.approx(case['adv'])
        data = grpo_data(new.requires_grad_(), old, None, adv, mask)
        options = dict(surrogate_options=dict(delta=case['delta']))
        loss, _ = grpo_error(data, LOSS_PRESETS['flash_reinforce'], beta=0, **options)
        assert_recorded(loss, new, case, 'grad')


def objective(name, new, adv, old, low=0., high=9., weight=None, **options):
    """Of rows with these advantages; ``old`` may be one row."""
    old = torch.as_tensor(old).to(new).expand_as(new)
    weight = torch.ones_like(new) if weight is None else weight
    adv = double(adv).unsqueeze(1)
    return SURROGATES[name]((new - old).exp(), adv, new, low, high, logp_old=old, weight=weight, **options)


class TestByHand:

    def test_fipo(self):
        # gamma = 1/2. log r = 0.1, 0.4, -0.2: F = 0.1 + 0.2 - 0.05, 0.4 - 0.1, -0.2; weights at most e^0.26 are whole
        logp = double([[0.1, 0.4, -0.2]]) - 1
        ratio = (logp + 1).exp()
        options = dict(half_life=1., range_high=0.3, range_low=0.1)
        found = objective('fipo', logp, [2.], [-1.] * 3, **options) / ratio / 2
        assert found.flatten().tolist() == pytest.approx([math.exp(0.25), 1.3, 0.9])
        # without the second token, whose ratio is above 1.4: F = 0.1 - 0.05
        found = objective('fipo', logp, [2.], [-1.] * 3, dual_clip=1.4, **options) / ratio / 2
        assert found[0, 0].item() == pytest.approx(math.exp(0.05))

    def test_fipo_limits_bad_tokens_that_became_likely(self):
        found = objective('fipo', double([[math.log(5.)], [math.log(3.)]]), [-1., -1.], [0.])
        assert found.flatten().tolist() == pytest.approx([-5 * 1., -3 * 1.2])

    @pytest.mark.parametrize(
        'squares, budget, expected',
        [
            ([0.01, 0.04, 0.25], 1., math.inf),
            ([], 0.1, math.inf),
            # limited to 0.04 each: (0.01 + 0.04 + 0.04) / 3 = 0.03; to 0.25: 0.1
            ([0.01, 0.25, 0.04], 0.05, 0.2),
            ([0.01, 0.25, 0.04], 0.02, 0.1),
            ([0.01, 0.25, 0.04], 0.009, 0.),
        ]
    )
    def test_the_range_of_m2po(self, squares, budget, expected):
        found = largest_log_ratio(-double(squares).sqrt(), budget)
        assert found == pytest.approx(expected, abs=1e-9)

    def test_m2po_counts_only_what_clipping_acts_on(self):
        # r > 1 with A < 0 and r < 1 with A > 0 are far, and of no matter; so is padding
        logp = double([[3., -0.1, 0.1], [-3., 0.1, 5.]])
        weight = double([[1, 1, 1], [1, 1, 0]])
        found = objective('m2po', logp, [-1., 1.], [0.] * 3, 1., 1., weight=weight, budget=0.02)
        assert torch.allclose((found * double([[-1.], [1.]]))[weight != 0], logp.exp()[weight != 0])

    def test_real(self):
        # s / tau: rows 1 and 2 of group 7 are 2 and -1, the first right, and its last row has no token that counts;
        # group 3 has one label
        new = double([[1.5, 0.5], [-0.5, 9.], [0.3, 0.3], [0.1, 0.1], [9., 9.]]).requires_grad_()
        weight = double([[1, 1], [1, 0], [1, 1], [1, 1], [0, 0]])
        adv, group = double([0.7, -0.7, 0., 0., -0.7]), torch.tensor([7, 7, 3, 3, 7])
        data = grpo_data(new, torch.zeros(5, 2).double(), None, adv, weight, group)
        loss, _ = grpo_error(data, LossConfig(surrogate='real', beta=0))
        own = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))
        assert loss.item() == pytest.approx(own * 2 / 5)  # the mean over rows
        loss.backward()
        right, wrong = 1 / (1 + math.exp(2)), 1 / (1 + math.exp(1))  # weights of the rows, over tau = 0.5
        expected = [[-right / 2, -right / 2], [wrong, 0], [0, 0], [0, 0], [0, 0]]
        assert torch.allclose(new.grad, double(expected) * 2 * 2 / 5, atol=1e-12)

    def test_gspo_token_is_gspo_where_all_tokens_of_a_row_have_one_advantage(self):
        new, old, adv, mask = tensors(PEERS, 'logp_new', 'logp_old', 'adv', 'mask')
        found = []
        for ratio in ('sequence', 'sequence_token'):
            leaf = new.clone().requires_grad_()
            loss, info = grpo_error(grpo_data(leaf, old, None, adv, mask), ratio=ratio, beta=0, clip_ratio=0.1)
            loss.backward()
            found.append((loss.item(), leaf.grad, info.metrics()))
        assert found[0][0] == pytest.approx(found[1][0]) and torch.allclose(found[0][1], found[1][1])
        assert found[0][2] == pytest.approx(found[1][2])

    def test_flash_reinforce_leaves_out_rows_that_moved(self):
        p, q = 0.5, 0.6
        d = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))  # 0.0204
        new, old = double([[q, 0.9]]).log(), double([[p, 0.9]]).log()
        for delta, weight, expected in ((d / 2 + 1e-6, [1, 1], 1), (d / 2 - 1e-6, [1, 1], 0), (d - 1e-6, [1, 0], 0)):
            found = objective('flash_reinforce', new, [2.], old, weight=double([weight]), delta=delta)
            assert found[0, 0].item() == pytest.approx(expected * 2 * 1.2 * math.log(0.6))


class TestFromAConfig:

    def test_flash_reinforce_learns_from_one_row_of_each_prompt(self):
        policy = token_policy(dict(group_size=1), loss='flash_reinforce', **PRESET)
        batch = learned(policy, sample_groups(policy, [0, 1, 2], reward=lambda group, row: float(group)))
        assert batch.adv.tolist() == [-1, 0, 1]
        before = weights(policy)
        update(policy, [0, 1, 2])
        assert not torch.equal(weights(policy), before)

    @pytest.mark.parametrize(
        'size, told, options', [
            (1, 'group_size = 1: a group is compared with itself', dict(adv_method='no_std')),
            (1, 'must be False with policy.learn.loss', dict(PRESET, loss='flash_reinforce', drop_equal_groups=True)),
            (4, "not available with surrogate 'real'", dict(loss='real', off_policy=dict(correction='token'))),
            (
                4, "ratio 'sequence': must be 'token' for|ratio = 'sequence': must be",
                dict(loss='fipo', ratio='sequence')
            ),
            (4, 'budget', dict(surrogate='m2po', surrogate_options=dict(budget=0))),
            (4, "'bound' is not an option of 'm2po'", dict(surrogate='m2po', surrogate_options=dict(bound=1))),
        ]
    )
    def test_refused(self, size, told, options):
        with refused(told):
            token_policy(dict(group_size=size), **options)
