"""
The gradient of groups that are trees (``policy.collect.tree`` with ``learn.advantage='tree'``). Beside them are a
bundle, whose rows share only their prompt, and three ways to use a tree that are biased:

1. A comparison of all rows (``group_advantage``), as if they were independent.
2. Each row once: of rows that end without a division only one counts.
3. Places that are found by the whole row: the first row of a tree is sampled to its end, and branches where its entropy
   was largest.
"""
from typing import Any, Dict, Iterator, List

import torch
from easydict import EasyDict
from torch import Tensor

from ding_grpo.act.trees import place_of
from ding_grpo.compare.table import markdown
from ding_grpo.rl_utils import LOSS_PRESETS, group_advantage, tree_advantage
from ding_grpo.rollout import TreePlan

from .estimate import Bench, estimates
from .growth import ByWholeRow, Groups, Growing, Growth
from .table import ADVANTAGE, LOSS, Line, bias_of, distinct, median_of, select
from .world import World

ALL_ROWS, ONCE = 'all rows: ', 'each row once: '
METHODS = ('rloo', 'grpo', ALL_ROWS + 'rloo', ALL_ROWS + 'no_std', ONCE + 'rloo')
# A loss for each reduction. All methods are measured with the first one; with the others, only 'rloo'.
REDUCTIONS = {'constant': LOSS, 'token': 'bnpo', 'sequence': 'grpo'}
BUNDLE = 'bundle'


def designs(logits: Tensor, length: int, branches: int) -> Dict[str, Growing]:
    """A bundle, trees of one place and of two, and one with a place by the whole row."""
    one_row = Growth(logits, length, TreePlan((), bool))
    middle = sum(one_row.entropy[1:]) / len(one_row.entropy[1:])  # larger after some tokens, smaller after others

    def tree(at: str, places: int = 1, **keys: Any) -> Growth:
        place = place_of(EasyDict(at=at, apart=1, **keys))
        return Growth(logits, length, TreePlan((branches, ) * places, place))

    return {
        BUNDLE: one_row,
        **{f'tokens [{t}]': tree('tokens', tokens=[t])
           for t in range(1, length)},
        f'tokens [1, {length - 1}]': tree('tokens', 2, tokens=[1, length - 1]),
        'entropy': tree('entropy', above=middle),
        'sentences': tree('sentences'),
        'sentences, two places': tree('sentences', 2),
        'entropy of the whole row': ByWholeRow(logits, length, branches),
    }


def advantages(world: World, groups: Groups, method: str) -> Tensor:
    """The advantage (K, B, S) of each token by one of ``METHODS``."""
    row, leader = groups.row.flatten(), groups.leader.flatten(0, 1)
    reward = world.reward[row]
    group = torch.arange(len(groups.row)).repeat_interleave(groups.row.shape[1])
    if method.startswith(ALL_ROWS):
        adv = group_advantage(reward, group, method[len(ALL_ROWS):]).unsqueeze(1) * world.weight[row]
    else:
        length = world.weight[row].sum(1, keepdim=True).long()
        last = leader.gather(1, length - 1).squeeze(1)  # leader of the last token
        number = torch.arange(groups.row.shape[1]).repeat(len(groups.row))
        kept = last == number if method.startswith(ONCE) else last >= 0
        adv = torch.zeros(leader.shape, dtype=reward.dtype)
        adv[kept] = tree_advantage(reward[kept], leader[kept], group[kept], method.removeprefix(ONCE))
    return adv.view(groups.leader.shape)


def run(bench: Bench, seed: int) -> Iterator[Line]:
    """As ``Bench.run``, without staleness: one line for each way to sample, reduction and advantage."""
    world, learner, _, generator = bench.world(seed)
    true = world.gradient(learner)
    for size in bench.group_sizes:
        bundle = 0.
        for name, growing in designs(learner, bench.length, bench.branches).items():
            rows = size + bench.extra_rows
            if rows % growing.size or rows < 2 * growing.size:
                continue
            groups = Groups.make(world, growing, rows // growing.size, bench.samples, generator, bench.extra_rows)
            groups = groups.without_longest(bench.extra_rows)
            tokens = (groups.probability @ groups.tokens).item()
            bundle = tokens if name == BUNDLE else bundle
            each = METHODS[:-1] if bench.extra_rows else METHODS  # the row that counts for others may be dropped
            adv = torch.stack([advantages(world, groups, method) for method in each])
            for loss in REDUCTIONS.values():
                methods = each if loss == LOSS else each[:1]
                chosen = adv[:len(methods)]
                of_loss = estimates(LOSS_PRESETS[loss], world, learner, learner, groups, chosen, true)
                for method, found in zip(methods, of_loss):
                    at_equal_tokens = found.noise * (tokens / bundle) ** 0.5
                    yield dict(
                        found.line(seed, size, loss, method),
                        tree=name,
                        tokens=tokens,
                        noise_at_equal_tokens=at_equal_tokens
                    )


def tables(lines: List[Line]) -> str:
    """Three tables as Markdown, with medians over the worlds: tokens and noise with 'rloo', the bias of each advantage,
    and that of each reduction."""
    where = [dict(group_size=g, tree=t) for g in distinct(lines, 'group_size') for t in distinct(lines, 'tree')]
    found = [[w['tree'], str(w['group_size'])] for w in where if select(lines, **w)]
    where = [dict(tree=tree, group_size=int(rows)) for tree, rows in found]
    columns = ('tokens', 'scale', 'noise', 'noise_at_equal_tokens', 'batch_cosine')
    usual = dict(loss=LOSS, advantage=ADVANTAGE)
    noise = [[f'{median_of(lines, column, **usual, **w):.2f}' for column in columns] for w in where]
    methods = distinct(lines, 'advantage')
    of_methods = [[bias_of(lines, loss=LOSS, advantage=method, **w) for method in methods] for w in where]
    of_losses = [[bias_of(lines, loss=loss, advantage=ADVANTAGE, **w) for loss in REDUCTIONS.values()] for w in where]

    def table(head: List[str], body: List[List[str]]) -> str:
        return markdown([['tree', 'rows', *head], *(name + row for name, row in zip(found, body))])

    return '\n\n'.join(
        [
            f'**Loss `{LOSS}`, advantage `{ADVANTAGE}`.**',
            table(['tokens', 'scale', 'noise', 'noise at equal tokens', 'cosine of a batch'],
                  noise), f'**Bias of each advantage, with the loss `{LOSS}`.**',
            table([f'`{method}`' for method in methods], of_methods),
            f'**Bias of each reduction, with the advantage `{ADVANTAGE}`.**',
            table([f'`{name}`' for name in REDUCTIONS], of_losses)
        ]
    )
