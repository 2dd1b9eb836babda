"""Trees of small worlds: all of them as the sampler makes them, and the bias of their gradients."""
from collections import Counter
from contextlib import nullcontext
from itertools import product
from random import Random

import pytest
import torch

from ding_grpo.gradient_bench.estimate import Bench, estimate, estimates
from ding_grpo.gradient_bench.growth import ByWholeRow, Branch, Groups, Growth
from ding_grpo.gradient_bench.trees import METHODS, advantages, designs, run
from ding_grpo.gradient_bench.world import END
from ding_grpo.model import PromptBatch
from ding_grpo.rl_utils import LOSS_PRESETS, tree_advantage
from ding_grpo.rollout import Branching, EarlyStop, Sampling, Tree, TreePlan, generate
from tests.gradient_bench.worlds import make

PLACES = ('tokens [1]', 'tokens [2]', 'entropy', 'sentences')


class Table:
    """A model for ``generate`` whose next token depends on the last one, which is the prompt before the first."""

    def __init__(self, logits):
        self.logits = logits

    def arithmetic(self):
        return nullcontext()

    def start(self, prompts, room):
        self.logit = self.logits[prompts.ids[prompts.row, -1]]
        return self

    def keep(self, rows):
        self.logit = self.logit[rows]

    def step(self, token):
        self.logit = self.logits[token]
        return self.logit


def sampled(logits, length, growth, rows):
    """All groups that ``generate`` samples, by every choice of each row's tokens: {((tokens, leaders) of each row): p}.
    A token that rows share has its probability once. Only the first row of a tree has a choice of its first token."""
    plan = growth._plan
    whole, rest = (ended(product(range(logits.shape[1]), repeat=n)) for n in (length, length - 1))
    choices = list(product(*([(1, *t) for t in rest] if row % growth.size else whole for row in range(rows))))
    number, prompts = len(choices) * rows, [torch.tensor([0])] * (len(choices) * rows)
    trees = [
        (Tree(plan, plan.begin(list(range(rows))), 1, 0), {r: first + r
                                                           for r in range(rows)}) for first in range(0, number, rows)
    ]
    decode = lambda tokens: ''.join(('', 'a. ', 'b')[token] for token in tokens)  # noqa: E731
    branching = Branching(trees, list(range(rows)) * len(choices), prompts, decode)
    forced = {
        (k * rows + r, t): token
        for k, group in enumerate(choices) for r, tokens in enumerate(group) for t, token in enumerate(tokens)
    }
    uniform = torch.full((number, length), 0.5, dtype=torch.double)
    out = generate(
        Table(logits),
        PromptBatch.of(prompts, torch.device('cpu')),
        length, [END],
        Sampling(),
        uniform,
        forced=forced,
        branching=branching
    )
    found, p = {}, logits.softmax(-1).tolist()
    for k in range(len(choices)):
        group, factors = [], {}
        for line in range(k * rows, k * rows + rows):
            n = int(out.length[line])
            tokens, leaders = tuple(out.action[line, :n].tolist()), tuple(branching.of_tokens(line, n).tolist())
            group.append((tokens, leaders))
            for t in range(n):
                factors[leaders[t], t] = p[tokens[t - 1] if t else 0][tokens[t]]
        found[tuple(group)] = torch.tensor([*factors.values()], dtype=torch.double).prod().item()
    return found


def ended(texts):
    return sorted({text[:text.index(END) + 1] if END in text else text for text in texts})


def branch(rows):
    """The tree of rows (tokens, leaders), which share their first token."""
    first, shared = rows[0][0], 0
    while shared < len(first) and len({leaders[shared] for _, leaders in rows}) == 1:
        shared += 1
    if shared == len(first):
        return Branch(first)
    parts = {}
    for tokens, leaders in rows:
        parts.setdefault(leaders[shared], []).append((tokens[shared:], leaders[shared:]))
    return Branch(first[:shared], tuple(sorted(branch(part) for part in parts.values())))


@pytest.mark.parametrize(
    'vocabulary, name', [*((3, name) for name in PLACES), (2, 'tokens [1, 2]'), (2, 'sentences, two places')]
)
def test_all_trees_are_those_of_the_sampler(vocabulary, name):
    _, logits = make(vocabulary, 3, 1)
    growth, found = designs(logits, 3, 2)[name], Counter()
    for group, p in sampled(logits, 3, growth, growth.size).items():
        found[branch(group)] += p
    expected = growth.all(20_000)
    assert found == pytest.approx(expected, abs=1e-12) and sum(found.values()) == pytest.approx(1)
    assert len({len(tree.parts) for tree in found}) == 2  # some divide and some do not


def test_tokens_since_the_last_place_are_those_of_the_sampler():
    """Places are after two tokens and after four."""
    _, logits = make(2, 5, 1)
    growth, found = Growth(logits, 5, TreePlan((2, 2), lambda point: point.since >= 2)), Counter()
    for group, p in sampled(logits, 5, growth, 4).items():
        found[branch(group)] += p
    assert found == pytest.approx(growth.all(1_000), abs=1e-12)
    both = Branch((1, 1), (Branch((1, 1), (Branch((0, )), Branch((1, )))), Branch((0, ))))
    assert both._replace(parts=tuple(sorted(both.parts))) in found


@pytest.mark.parametrize('name', ['tokens [1]', 'sentences'])
def test_a_gradient_by_the_sampler_alone(name):
    """Of two trees with two rows each, from what ``generate`` samples, by autograd of the sum of A log pi."""
    world, logits, _, _ = Bench(vocabulary=2).world(1)
    logits.requires_grad_()
    reward = {tuple(t[:int(n)]): float(r) for t, n, r in zip(world.token.tolist(), world.weight.sum(1), world.reward)}
    logp, gradients, probability, cost = logits.log_softmax(-1), [], [], []
    for group, p in sampled(logits.detach(), 3, designs(logits.detach(), 3, 2)[name], 4).items():
        leader = torch.tensor([[*own, *[-1] * (3 - len(own))] for _, own in group])
        return_ = torch.tensor([reward[tokens] for tokens, _ in group], dtype=torch.double)
        adv = tree_advantage(return_, leader, torch.zeros(4, dtype=torch.long))
        loss = sum(
            adv[row, t] * logp[tokens[t - 1] if t else 0, tokens[t]] for row, (tokens, _) in enumerate(group)
            for t in range(len(tokens))
        )
        gradients.append(torch.autograd.grad(loss / 4 / 3, logits, retain_graph=True)[0].flatten())
        probability.append(p)
        cost.append(len({(own[t], t) for _, own in group for t in range(len(own))}))
    probability = torch.tensor(probability, dtype=torch.double)
    true = torch.autograd.grad(world.expected_reward(logits), logits)[0].flatten()
    expected = estimate(torch.stack(gradients), probability, true, True)
    line = next(
        line for line in run(Bench(vocabulary=2, group_sizes=(4, )), 1)
        if (line['tree'], line['loss'], line['advantage']) == (name, 'dr_grpo', 'rloo')
    )
    assert expected.bias < 1e-9 and expected.scale == pytest.approx(1 / 3)
    for key in ('scale', 'bias', 'cosine', 'noise', 'batch_cosine'):
        assert line[key] == pytest.approx(getattr(expected, key), abs=1e-9)
    assert line['tokens'] == pytest.approx((probability @ torch.tensor(cost, dtype=torch.double)).item())


@pytest.fixture(scope='module')
def lines():
    """Two trees of two rows each, and a bundle of four rows: (tree, loss, advantage) -> line."""
    return {(line['tree'], line['loss'], line['advantage']): line for line in run(Bench(group_sizes=(4, )), 0)}


class TestBias:

    @pytest.mark.parametrize('tree', PLACES)
    def test_none_where_a_place_is_found_by_what_is_before(self, lines, tree):
        """'constant' divides by the maximum length, 3."""
        line = lines[tree, 'dr_grpo', 'rloo']
        assert line['bias'] < 1e-9 and line['scale'] == pytest.approx(1 / 3, abs=1e-9) and line['standard_error'] == 0

    def test_none_where_levels_have_other_numbers(self):
        """Three trees of two branches."""
        world, logits = make(3, 3, 1)
        groups = Groups.make(world, designs(logits, 3, 2)['tokens [2]'], 3, 5_000, torch.Generator())
        assert groups.exact and measured(world, logits, groups, 'rloo').bias < 1e-9

    @pytest.mark.parametrize('tree', PLACES)
    @pytest.mark.parametrize('method', ['grpo', 'all rows: rloo', 'all rows: no_std', 'each row once: rloo'])
    def test_of_other_ways(self, lines, tree, method):
        assert lines[tree, 'dr_grpo', method]['bias'] > 0.01

    @pytest.mark.parametrize('method', METHODS)
    def test_of_a_place_that_the_whole_row_decides(self, lines, method):
        assert lines['entropy of the whole row', 'dr_grpo', method]['bias'] > 0.01

    def test_of_a_bundle_each_way_is_the_same(self, lines):
        rloo = lines['bundle', 'dr_grpo', 'rloo']
        for method in ('all rows: rloo', 'each row once: rloo'):
            assert all(
                rloo[key] == pytest.approx(lines['bundle', 'dr_grpo', method][key]) for key in ('noise', 'scale')
            )

    def test_noise_at_equal_tokens_by_hand(self, lines):
        bundle, tree = (lines[name, 'dr_grpo', 'rloo'] for name in ('bundle', 'tokens [1]'))
        assert bundle['noise_at_equal_tokens'] == bundle['noise'] and tree['tokens'] < bundle['tokens']
        assert tree['noise_at_equal_tokens'] == tree['noise'] * (tree['tokens'] / bundle['tokens']) ** 0.5


def measured(world, logits, groups, method):
    adv = advantages(world, groups, method).unsqueeze(0)
    found, = estimates(LOSS_PRESETS['dr_grpo'], world, logits, logits, groups, adv, world.gradient(logits))
    return found


@pytest.mark.parametrize('tree', ['tokens [2]', 'sentences, two places', 'entropy of the whole row'])
def test_drawn_trees_are_those_that_are_enumerated(tree):
    _, logits = make(3, 3, 1)
    growing, random, number = designs(logits, 3, 2)[tree], Random(0), 5_000
    drawn, expected = Counter(growing.draw(random) for _ in range(number)), growing.all(1_000)
    assert set(drawn) <= set(expected) and len(drawn) > 10 and sum(expected.values()) == pytest.approx(1)
    for one, p in expected.items():
        assert abs(drawn[one] / number - p) < 5 * (p * (1 - p) / number) ** 0.5


def test_groups_are_sampled_where_they_are_too_many():
    world, logits = make(3, 3, 1)
    growing = designs(logits, 3, 2)['tokens [1]']
    all_, some = (Groups.make(world, growing, 2, most, torch.Generator().manual_seed(0)) for most in (2_000, 1_000))
    assert all_.exact and len(all_.row) == 57 * 58 / 2 and not some.exact and len(some.row) == 1_000
    assert all_.probability.sum() == pytest.approx(1) and some.probability.sum() == pytest.approx(1)
    exact, error = all_.probability @ all_.tokens, some.tokens.std() / 1_000 ** 0.5
    assert abs(some.probability @ some.tokens - exact) < 4 * error


def test_the_longest_rows_are_dropped_by_hand():
    """Rows of 3, 2, 3 and 1 tokens; of the two longest the last one goes first, as ``EarlyStop`` chooses."""
    leader = torch.tensor([[[0, 0, 0], [0, 1, -1], [2, 2, 2], [2, -1, -1]]])
    groups = Groups(torch.tensor([[5, 6, 7, 8]]), leader, torch.tensor([7.]), torch.ones(1), False)
    for extra, kept in ((0, [0, 1, 2, 3]), (1, [0, 1, 3]), (2, [1, 3])):
        found = groups.without_longest(extra)
        assert found.row.tolist() == [[5 + row for row in kept]] and torch.equal(found.leader, leader[:, kept])
        counted = EarlyStop([(0, i) for i in range(4)], 4 - extra, torch.device('cpu')).counted((leader[0] >= 0).sum(1))
        assert [row for row, counts in enumerate(counted) if counts] == kept


def test_rows_of_one_length_are_dropped_in_the_order_of_sampling():
    """Not in that of their tokens, in which ``all`` gives branches."""
    tree, random = Branch((1, ), (Branch((1, 0)), Branch((2, ), (Branch((0, )), Branch((1, )))))), Random(0)
    orders = Counter(tree.shuffled(random) for _ in range(400))
    assert len(orders) == 4 and min(orders.values()) > 70
    assert {tuple(sorted(tokens for tokens, _ in order.rows(0, 4)))
            for order in orders} == {((1, 1, 0), (1, 1, 0), (1, 2, 0), (1, 2, 1))}
    world, logits = make(3, 3, 1)
    groups = Groups.make(world, designs(logits, 3, 2)['tokens [1]'], 2, 2_000, torch.Generator().manual_seed(0), 1)
    first, second = groups.row[:, 0], groups.row[:, 1]
    assert not groups.exact and abs((first < second).sum() - (first > second).sum()) < 4 * len(first) ** 0.5


def test_extra_rows_bias_a_tree_as_a_bundle():
    bench = Bench(['dr_grpo'], ['rloo'], [2], [0.], vocabulary=2, extra_rows=2, samples=3_000)
    lines = [x for x in run(bench, 0) if (x['loss'], x['advantage']) == ('dr_grpo', 'rloo')]
    found, exact = {line['tree']: line for line in lines}, next(bench.run(0))
    assert abs(found['bundle']['bias'] - exact['bias']) < 4 * found['bundle']['standard_error']
    assert exact['standard_error'] == 0 and min(x['bias'] for x in [exact, *lines]) > 0.1


def test_a_place_of_the_whole_row_by_hand():
    """At the start the entropy is log 3, after token 1 log 2, and after token 2 it is 0. So a row 1 2 0 branches after
    its first token."""
    logits = torch.tensor([[0., 0., 0.], [0., -40., 0.], [0., -40., -40.]], dtype=torch.double)
    found = {tree: p for tree, p in ByWholeRow(logits, 3, 2).all(1_000).items() if p > 1e-9}
    end, rest = Branch((0, )), Branch((2, 0))
    expected = {
        Branch((0, )): 1 / 3,
        Branch((2, ), (end, end)): 1 / 3,
        Branch((1, ), (end, end)): 1 / 12,
        Branch((1, ), (end, rest)): 1 / 6,
        Branch((1, ), (rest, rest)): 1 / 12,
    }
    assert found == pytest.approx(expected)


def test_rows_and_cost_of_a_tree():
    tree = Branch((1, ), (Branch((2, ), (Branch((0, )), Branch((1, )))), Branch((0, ))))
    rows = [((1, 2, 0), (4, 4, 4)), ((1, 2, 1), (4, 4, 5)), ((1, 0), (4, 6)), ((1, 0), (4, 6))]
    assert list(tree.rows(4, 4)) == rows and tree.cost == 5
