"""
Credit for turns: what the policy decides, such as when to stop, must not bias it. The expected gradient is computed by
enumeration of all groups of a game of two turns, and compared with the exact policy gradient.
"""
import itertools

import pytest
import torch
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.config.checks import check_for_turns
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.learn.advantage import Advantage
from ding_grpo.rl_utils import anchor_advantage, group_advantage, return_to_go

from tests.policies import make_batch

# The game: turn 1 stops with a reward of 0.2, or goes on with 0.5. Turn 2 is right, with 1, or wrong, with 0.
LOGIT = torch.tensor([.3, -.4], dtype=torch.double)  # of going on, and of being right
GO, RIGHT = torch.sigmoid(LOGIT).tolist()
# rewards of the turns, number of turns, probability, and the gradient of the log-probability of each turn: (2, 2)
EPISODES = [
    ([.2, 0.], 1, 1 - GO, [[-GO, 0.], [0., 0.]]),
    ([.5, 1.], 2, GO * RIGHT, [[1 - GO, 0.], [0., 1 - RIGHT]]),
    ([.5, 0.], 2, GO * (1 - RIGHT), [[1 - GO, 0.], [0., -RIGHT]]),
]
# A turn is two own tokens; a reply of one token follows the first.
COLUMN = [1, 4]  # a turn's reward stands on its last token
EXACT = sum(p * sum(r) * torch.tensor(g, dtype=torch.double).sum(0) for r, _, p, g in EPISODES)


def rows_of(episodes):
    """The batch of rows that ``fold_group`` makes of these episodes."""
    rows = len(episodes)
    reward, weight = torch.zeros(2, rows, 5, dtype=torch.double)
    turn = torch.full((rows, 5), -1)
    for row, (rewards, turns, *_) in enumerate(episodes):
        reward[row, COLUMN] = torch.tensor(rewards, dtype=torch.double)
        weight[row, :2], turn[row, :2] = 1, 0
        if turns == 2:
            weight[row, 3:], turn[row, 2:] = 1, torch.tensor([0, 1, 1])
    anchor = torch.tensor([[0, 1 if turns == 2 else -1] for _, turns, *_ in episodes])
    return make_batch(weight, reward=reward, turn=turn, length=(turn >= 0).sum(1), anchor=anchor)


def expected(size, turns_of):
    """The expected gradient over all groups of ``size``; ``turns_of`` maps a batch to advantages (G, 2) of turns."""
    total = torch.zeros(2, dtype=torch.double)
    for group in itertools.product(EPISODES, repeat=size):
        probability = torch.tensor([p for _, _, p, _ in group], dtype=torch.double).prod()
        adv = turns_of(rows_of(group))  # (G, 2)
        gradient = torch.tensor([g for *_, g in group], dtype=torch.double)  # (G, 2, 2)
        total += probability * (adv.unsqueeze(-1) * gradient).sum((0, 1)) / size
    return total


def policys(method, compare, **options):
    """The advantage that the policy computes, which is equal for all tokens of a turn and 0 on replies."""

    def turns_of(batch):
        adv = Advantage(method, compare, by_turn=True, **options).of(batch)
        if adv.dim() == 1:
            return adv.unsqueeze(1).expand(-1, 2)
        assert torch.equal(adv[:, 0], adv[:, 1]) and torch.equal(adv[:, 3], adv[:, 4]) and not adv[:, 2].any()
        return adv[:, COLUMN]

    return turns_of


def among_running(immediate):
    """Advantages that peers use: each turn's return, or its reward normalised and then summed, among running rows."""

    def turns_of(batch):
        reward, on = batch.reward[:, COLUMN], batch.weight[:, COLUMN] != 0
        value, adv = reward if immediate else return_to_go(reward, 1.), torch.zeros(len(reward), 2, dtype=torch.double)
        for turn in range(2):
            rows = on[:, turn]
            adv[rows, turn] = group_advantage(value[rows, turn], torch.zeros(int(rows.sum())).long(), 'rloo')
        return return_to_go(adv, 1.) * on if immediate else adv

    return turns_of


@pytest.mark.parametrize('size', [2, 3])
class TestExpectedGradient:

    @pytest.mark.parametrize('compare', ['outcome', 'return_to_go_by_step'])
    @pytest.mark.parametrize('method', ['rloo', 'no_std'])
    def test_what_is_allowed_is_exact(self, size, method, compare):
        found = expected(size, policys(method, compare))
        if method == 'no_std':  # subtracts a mean that includes the row itself
            found = found * size / (size - 1)
        assert (found - EXACT).norm() / EXACT.norm() < 1e-12

    def test_anchors_add_a_multiple_of_each_turns_gradient(self, size):
        # All rows take turn 1 in one state. Turn 2 is compared if another row is there too.
        met = 1 - (1 - GO) ** (size - 1)
        wanted = EXACT * (1 + .5 * torch.tensor([1., met], dtype=torch.double))
        found = expected(size, policys('rloo', 'anchor', anchor_weight=.5))
        assert (found - wanted).norm() / wanted.norm() < 1e-12

    @pytest.mark.parametrize(
        'biased', [policys('rloo', 'return_to_go'),
                   among_running(False), among_running(True)],
        ids=['pooled', 'running rows', 'turns normalised and summed']
    )
    def test_what_is_refused_is_biased(self, size, biased):
        found = expected(size, biased)
        assert (found - EXACT).norm() / EXACT.norm() > 0.1


class TestAnchors:

    def test_numbers_by_hand(self):
        return_ = torch.tensor([[4., 3., 9.], [2., 1., 0.], [1., 5., 7.], [6., 0., 0.]])
        anchor = torch.tensor([[0, 1, 1], [0, 1, -1], [0, 2, -1], [0, -1, -1]])
        group = torch.tensor([5, 5, 5, 7])
        # state 0: 4 - (2 + 1) / 2, 2 - 5 / 2, 1 - 6 / 2. State 1: 3 - 1 and 1 - 3; the second visit of row 0 is left
        # out of both. State 2 of row 2: alone. The last row is alone in its group.
        wanted = [[2.5, 2., 0.], [-.5, -2., 0.], [-2., 0., 0.], [0., 0., 0.]]
        assert anchor_advantage(return_, anchor, group).tolist() == wanted

    def test_outcome_and_states_together(self):
        batch = rows_of([EPISODES[1], EPISODES[2], EPISODES[0]])
        adv = Advantage('no_std', 'anchor', by_turn=True, anchor_weight=2.).of(batch)
        # outcomes 1.5, .5, .2 with mean 2.2 / 3; from turn 1: 1.5 - .35, .5 - .85, .2 - 1; from turn 2: 1 - 0, 0 - 1
        mean = 2.2 / 3
        wanted = [[1.5 - mean + 2 * 1.15, 1.5 - mean + 2], [.5 - mean - 2 * .35, .5 - mean - 2], [.2 - mean - 1.6, 0]]
        assert torch.allclose(adv[:, COLUMN], torch.tensor(wanted, dtype=torch.double), atol=1e-12)

    def test_a_task_without_anchors_is_refused(self):
        batch = rows_of(EPISODES)
        batch.anchor[:, 1] = -1
        with pytest.raises(ConfigError, match='no reply of the task has an anchor'):
            Advantage('rloo', 'anchor', by_turn=True).of(batch)

    def test_equal_groups(self):
        advantage = Advantage('rloo', 'anchor', by_turn=True)
        assert advantage.equal(rows_of([EPISODES[1]] * 2)) and not advantage.equal(rows_of(EPISODES[:2]))


class TestTurns:

    def test_the_discount_is_by_turn(self):
        batch = rows_of([EPISODES[1], EPISODES[0]])
        adv = Advantage('rloo', 'return_to_go_by_step', 0.5, by_turn=True).of(batch)
        # from turn 1: .5 + .5 against .2; from turn 2: 1 against 0, the return of a row that has ended
        assert torch.allclose(adv[:, COLUMN], torch.tensor([[.8, 1.], [-.8, 0.]], dtype=torch.double))

    def test_lengths_are_of_own_tokens(self):
        # opo's baseline weights rows by their tokens: (4 * 1.5 + 2 * .2) / 6; by turns it would be (2 * 1.5 + .2) / 3
        adv = Advantage('opo', 'outcome', by_turn=True).of(rows_of([EPISODES[1], EPISODES[0]]))
        assert adv.tolist() == pytest.approx([1.5 - 6.4 / 6, .2 - 6.4 / 6])


class TestConfig:

    @pytest.mark.parametrize(
        'learn, collect, turns, told', [
            (
                dict(adv_method='reinforce_plus_plus'
                     ), {}, 3, "'reinforce_plus_plus': not available with env.max_turns = 3"
            ),
            (dict(advantage='return_to_go'), {}, 3, "'return_to_go': biased with env.max_turns = 3"),
            (dict(advantage='gae'), dict(discount_factor=.9), 3, 'discount_factor = 0.9: must be 1'),
            (dict(advantage='anchor'), {}, 1, 'needs env.max_turns above 1'),
        ]
    )
    def test_refused_with_the_reason(self, learn, collect, turns, told):
        cfg = EasyDict(learn=dict(DEFAULTS['learn'], **learn), collect=dict(DEFAULTS['collect'], **collect))
        with pytest.raises(ConfigError, match=told):
            check_for_turns(cfg, turns)
