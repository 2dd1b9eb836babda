"""The tables of the gradient bench."""
from statistics import median
from typing import Any, Dict, List

from ding_grpo.compare.table import markdown

Line = Dict[str, Any]
NAME = 'gradient_bench'
LOSS, ADVANTAGE, TREE = 'dr_grpo', 'rloo', 'entropy'  # unbiased on-policy: the one stays while the other varies


def fixed(lines: List[Line], key: str) -> str:
    """What stays while the other varies: the default if it was measured, otherwise the first."""
    names = distinct(lines, key)
    default = dict(loss=LOSS, advantage=ADVANTAGE, tree=TREE)[key]
    return default if default in names else names[0]


def distinct(lines: List[Line], key: str) -> List[Any]:
    return list(dict.fromkeys(line[key] for line in lines))


def select(lines: List[Line], **where: Any) -> List[Line]:
    return [line for line in lines if all(line[key] == value for key, value in where.items())]


def tables(lines: List[Line]) -> str:
    """Three tables as Markdown, with medians over the worlds: the losses with one advantage, the advantages with one
    loss, and the bias of every pair without staleness."""
    loss, advantage = fixed(lines, 'loss'), fixed(lines, 'advantage')
    staleness, size = distinct(lines, 'staleness')[0], distinct(lines, 'group_size')[-1]
    pairs = _pairs(select(lines, staleness=staleness, group_size=size))
    return '\n\n'.join(
        [
            f'**Losses with the advantage `{advantage}`.**',
            table_of(select(lines, advantage=advantage), 'loss'), f'**Advantages with the loss `{loss}`.**',
            table_of(select(lines, loss=loss), 'advantage'),
            f'**Bias of every pair, staleness {staleness:g}, group size {size}.**', pairs
        ]
    )


def table_of(lines: List[Line], key: str) -> str:
    """One row for each value of the key; scale and noise without staleness, bias for everything."""
    staleness, sizes = distinct(lines, 'staleness'), distinct(lines, 'group_size')
    first = dict(staleness=staleness[0], group_size=sizes[-1])
    where = [dict(staleness=s, group_size=g) for s in staleness for g in sizes]
    head = [key, 'scale', 'noise', 'cosine of a batch']
    rows = [head + [f'bias, s = {s:g}, G = {g}' for s in staleness for g in sizes]]
    for name in distinct(lines, key):
        own = select(lines, **{key: name})
        numbers = [f'{median_of(own, column, **first):.2f}' for column in ('scale', 'noise', 'batch_cosine')]
        rows.append([f'`{name}`', *numbers, *(bias_of(own, **w) for w in where)])
    return markdown(rows)


def _pairs(lines: List[Line]) -> str:
    methods = distinct(lines, 'advantage')
    rows = [['loss', *(f'`{m}`' for m in methods)]]
    for loss in distinct(lines, 'loss'):
        rows.append([f'`{loss}`', *(bias_of(lines, loss=loss, advantage=m) for m in methods)])
    return markdown(rows)


def median_of(lines: List[Line], column: str, **where: Any) -> float:
    return median(line[column] for line in select(lines, **where))


def bias_of(lines: List[Line], **where: Any) -> str:
    """The median over the worlds: 0 if it is 0 up to rounding, with the standard error if batches were sampled."""
    value, error = (median_of(lines, column, **where) for column in ('bias', 'standard_error'))
    if error > 0:
        return f'{value:.2f} ± {error:.2f}'
    return '0' if value < 1e-9 else f'{value:.3f}'
