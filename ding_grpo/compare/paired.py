"""Differences between configs by seed: both runs of a seed have the same initial weights, problems and numbers."""
from typing import Any, Callable, List, Sequence

from .runs import Outcome, Run
from .statistics import FEWEST, mean, times_fewer
from .table import interval, markdown

NOTE = '''\
- Paired: the other config minus {first}, seed by seed; mean, and 95 % bootstrap interval over the seeds (percentiles
  of 9,999 resamples). An interval needs at least {fewest} seeds, and steps a bar that all of them reached.
- Times fewer seeds: the variance of the difference of runs of two seeds, divided by that of runs of one seed.'''


def paired(runs: List[Run]) -> str:
    """A table with the differences of each config to the first one, in Markdown; empty for a single config."""
    names = list(dict.fromkeys(run.name for run in runs))
    done = {(run.name, run.seed): run.outcome() for run in runs if run.done}
    rows = []
    for name in names[1:]:
        seeds = [seed for of, seed in done if of == names[0] and (name, seed) in done]
        pairs = [(done[names[0], seed], done[name, seed]) for seed in seeds]
        final, steps = (_cells(pairs, value) for value in (lambda o: o.final, lambda o: o.steps))
        rows.append([name, len(seeds), *final, *steps])
    head = ['config', 'seeds', 'final return', 'times fewer seeds', 'steps to the bar', 'times fewer seeds']
    return f'{markdown([head, *rows])}\n\n{NOTE.format(first=names[0], fewest=FEWEST)}' if rows else ''


def _cells(pairs: Sequence[Sequence[Outcome]], value: Callable[[Outcome], float]) -> List[Any]:
    """The mean difference of a value with its interval, and how many times fewer seeds it took."""
    values = [(value(a), value(b)) for a, b in pairs]
    if any(abs(x) == float('inf') for pair in values for x in pair):
        return ['', '']
    found, fewer = mean([b - a for a, b in values]), times_fewer([values])
    return [interval(found, '+.4g'), '' if fewer is None else f'{fewer:.1f}']
