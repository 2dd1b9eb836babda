"""Rows that are the same until they divide."""
import math

import pytest
import torch

from ding_grpo.model import PromptBatch
from ding_grpo.rollout import Branching, Node, Sampling, Tree, TreePlan, generate
from tests.rollout.test_generate import CPU, prompts_of, uniform_of

EOS, MOST, ROWS = [29], 10, 8


def at(*places):
    return lambda point: point.tokens >= places[point.level]


def sampled(model, plan=None, sampling=Sampling(), merge=True, groups=1, eos=EOS, forced={}):
    """Rows of groups with one prompt each, and their branching."""
    prompts = [p for p in prompts_of([6] * groups) for _ in range(ROWS)]
    numbers, trees = list(range(ROWS)) * groups, []
    for group in range(groups if plan is not None else 0):
        lines = {row: group * ROWS + row for row in range(ROWS)}
        trees.append((Tree(plan, plan.begin(list(range(ROWS))), 6, 0), lines))
    branching = Branching(trees, numbers, prompts, lambda ids: ' '.join(map(str, ids)))
    out = generate(
        model,
        PromptBatch.of(prompts, CPU),
        MOST,
        eos,
        sampling,
        uniform_of(len(prompts), MOST),
        forced=forced,
        merge=merge,
        branching=branching
    )
    leader = torch.full_like(out.action, -1)
    for row, n in enumerate(out.length.tolist()):
        leader[row, :n] = branching.of_tokens(row, n)
    return out, leader


@pytest.mark.parametrize('merge', [True, False])
@pytest.mark.parametrize('sampling', [Sampling(), Sampling(top_k=5), Sampling(top_p=0.9)])
def test_rows_share_tokens_until_they_divide(tiny_model, sampling, merge):
    out, leader = sampled(tiny_model, TreePlan([2, 2], at(2, 5)), sampling, merge, groups=2)
    expected = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 2, 2], [0, 2, 3], [4, 4, 4], [4, 4, 5], [4, 6, 6], [4, 6, 7]])
    expected = expected.repeat_interleave(torch.tensor([2, 3, 5]), dim=1).repeat(2, 1)
    assert torch.equal(leader, torch.where(out.action < 0, -1, expected))
    base = torch.arange(16).unsqueeze(1) // 8 * 8
    index = torch.where(leader < 0, torch.arange(16).unsqueeze(1), leader + base)
    assert torch.equal(out.action, out.action.gather(0, index))
    assert torch.equal(out.logp, out.logp.gather(0, index))
    firsts = [tuple(row[:3].tolist()) for row in out.action]
    assert len(set(firsts)) > 4 and len({first[:2] for first in firsts}) <= 4


def test_a_leader_is_the_row_that_it_would_be_without_a_tree(tiny_model):
    alone, _ = sampled(tiny_model)
    tree, _ = sampled(tiny_model, TreePlan([2, 2], at(2, 5)))
    for row in (0, 4):  # these lead from their start
        assert torch.equal(tree.action[row], alone.action[row])
        assert torch.allclose(tree.logp[row], alone.logp[row], atol=1e-6)
    assert not torch.equal(tree.action[2], alone.action[2])


def test_from_its_place_on_a_row_draws_its_own_numbers(tiny_model):
    tree, _ = sampled(tiny_model, TreePlan([2, 2], at(2, 5)))
    for row, place in ((1, 5), (2, 2), (7, 5)):
        forced = {(row, t): int(tree.action[row, t]) for t in range(place)}
        alone, _ = sampled(tiny_model, forced=forced)
        assert torch.equal(tree.action[row], alone.action[row])
        assert torch.allclose(tree.logp[row], alone.logp[row], atol=1e-6)


def test_rows_that_end_before_their_place_stay_the_same(tiny_model):
    eos = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    out, leader = sampled(tiny_model, TreePlan([2], at(4)), groups=4, eos=eos)
    short = (out.length <= 4).nonzero().squeeze(1).tolist()
    assert 4 <= len(short) < 32
    for row in short:
        assert row ^ 1 in short and torch.equal(out.action[row], out.action[row ^ 1])
        assert (leader[row, :out.length[row]] == row % 8 // 2 * 2).all()


def test_places_by_entropy_are_where_it_is_first_large(tiny_model):
    seen = {}

    def place(point):
        seen[point.tokens] = point.entropy()
        return point.since >= 2 and point.entropy() > bar

    bar = float('inf')
    sampled(tiny_model, TreePlan([8], place, root=0))
    bar = sorted(seen.values())[-3]
    first = min(t for t, entropy in seen.items() if t >= 2 and entropy > bar)
    out, leader = sampled(tiny_model, TreePlan([8], place, root=0))
    assert 2 <= first < 10 and (leader[:, first - 1] == 0).all() and leader[:, first].tolist() == list(range(8))
    prompt, row = prompts_of([6])[0], out.action[0]
    logits = tiny_model.lm(torch.cat([prompt, row[:first]]).unsqueeze(0)).logits[0, -1]
    assert torch.distributions.Categorical(logits=logits).entropy().item() == pytest.approx(seen[first], abs=1e-5)


def test_places_by_what_has_been_said(tiny_model):
    texts = []
    plan = TreePlan([2], lambda point: not texts.append(point.text()) and len(point.text().split()) == 3)
    out, leader = sampled(tiny_model, plan)
    assert leader[1, :3].tolist() == [0, 0, 0] and leader[1, 3] == 1
    assert ' '.join(map(str, out.action[0, :3].tolist())) in texts


def test_a_fork_follows_one_row_and_leaves_it_as_it_is(tiny_model):
    alone, _ = sampled(tiny_model)
    fork, leader = sampled(tiny_model, TreePlan([8], at(4), root=3))
    assert torch.equal(fork.action[3], alone.action[3])
    assert (fork.action[:, :4] == alone.action[3, :4]).all() and (leader[:, :4] == 3).all()
    assert leader[:, 4].tolist() == list(range(8)) and len({tuple(row) for row in fork.action.tolist()}) > 5


def test_shared_tokens_are_decoded_once(tiny_model, decoded):
    sampled(tiny_model, TreePlan([2, 2], at(3, 6)), eos=[])
    assert decoded[0] == 6 and decoded[1:] == [2] * 3 + [4] * 3 + [8] * 3


def branching_of(plan, tokens, groups=1):
    """Of groups of two rows whose prompt is token 7, in a turn after these tokens."""
    prompts = [torch.tensor([7, *tokens])] * 2 * groups
    trees = [(Tree(plan, [Node([0, 1], 0)], 1, 1), {0: 2 * g, 1: 2 * g + 1}) for g in range(groups)]
    return Branching(trees, [0, 1] * groups, prompts, lambda ids: ' '.join(map(str, ids))), trees


def test_what_a_place_knows_in_a_later_turn(tiny_model):
    points = []

    def place(point):
        points.append(point._replace(entropy=point.entropy(), text=point.text()))
        return len(points) == 6

    branching, _ = branching_of(TreePlan([2], place), [5, 6], groups=2)
    live, logit = torch.arange(4), torch.tensor([[0., 0.], [9., 9.], [0., 50.], [0., 50.]])
    for t in range(3):
        action = torch.tensor([[3, 4, 8]] * 4)
        lead = branching.leaders(t, live, torch.ones(4).bool(), lambda: logit, action)
        assert lead.tolist() == [0, 0, 2, 2 + (t == 2)]
    assert [p.text for p in points[::2]] == ['5 6', '5 6 3', '5 6 3 4']
    assert [(p.level, p.tokens, p.since, p.turn, p.begins)
            for p in points[::2]] == [(0, 2, 2, 1, True), (0, 3, 3, 1, False), (0, 4, 4, 1, False)]
    assert points[0].entropy == pytest.approx(math.log(2)) and points[1].entropy == pytest.approx(0)
    assert branching.of_tokens(1, 3).tolist() == [0, 0, 0] and branching.of_tokens(3, 4).tolist() == [0, 0, 1, 1]


def test_rows_whose_turn_has_ended_divide_in_none(tiny_model):
    branching, ((tree, _), ) = branching_of(TreePlan([2], lambda point: True), [5])
    lead = branching.leaders(1, torch.arange(2), torch.tensor([False, False]), None, torch.zeros(2, 3))
    assert lead.tolist() == [0, 1] and len(tree.nodes) == 1 and not branching.shared


def test_two_places_by_the_tokens_since_the_last(tiny_model):
    _, leader = sampled(tiny_model, TreePlan([2, 2], lambda point: point.since >= 3), eos=[])
    assert leader[3].tolist() == [0] * 3 + [2] * 3 + [3] * 4


def test_a_group_without_a_tree_beside_one(tiny_model):
    prompts = [p for p in prompts_of([6, 6]) for _ in range(2)]
    plan = TreePlan([2], at(3))
    branching = Branching([(Tree(plan, plan.begin([0, 1]), 6, 0), {0: 2, 1: 3})], [0, 1, 0, 1], prompts, str)
    generate(tiny_model, PromptBatch.of(prompts, CPU), 5, [], Sampling(), uniform_of(4, 5), branching=branching)
    assert [branching.of_tokens(row, 5).tolist() for row in range(4)] == [[0] * 5, [1] * 5, [0] * 5, [0] * 3 + [1] * 2]
