"""The table of a comparison."""
import csv
import os
import statistics
from typing import Any, Dict, Iterable, List, Optional, Sequence

from .runs import Outcome, Run
from .statistics import FEWEST, Estimate, interquartile_mean, probability_of_improvement

NOTE = '''\
- Values are medians over the seeds, with minimum and maximum in parentheses. Steps and seconds to the bar are those of
  the seeds that reached it. On token environments a step is a token. Seconds are training time, without evaluations and
  imports.
- The final return is that of the last weights, which every run evaluates at its end. The best return is the maximum of
  all evaluations, which grows with their number.'''
NOTE_SEEDS = '''\
- IQM is the interquartile mean over the seeds: without the smallest and the largest quarter, each rounded down. It is
  missing for steps if a seed did not reach the bar.
- P is the probability of improvement: the share of all pairs of seeds in which {first} is better than the algorithm of
  the row. Ties count half, and a seed that did not reach the bar needed more steps than any other.
- In parentheses: 95 % bootstrap interval over the seeds (percentiles of 9,999 resamples).'''
NOTE_FEW = f'Interquartile means and their intervals need at least {FEWEST} seeds.'


def table(runs: List[Run]) -> List[Dict[str, Any]]:
    """One row per config, over its finished runs: how many seeds reached the bar; median, minimum and maximum of the
    steps and seconds to the bar, of the best and of the final return; with at least 3 seeds also interquartile means
    and the probability that the first config is better."""
    names = list(dict.fromkeys(r.name for r in runs))
    outcomes = {name: [r.outcome() for r in runs if r.name == name and r.done] for name in names}
    bars = {r.name: r.bar for r in runs}
    first = names[0]
    lines = []
    for name in names:
        found = outcomes[name]
        solved = [o for o in found if o.solved]
        lines.append(
            {
                'algorithm': name,
                'bar': bars[name],
                'seeds': len(found),
                'solved': len(solved),
                'environment steps to the bar': _middle([o.steps for o in solved], '.0f'),
                'seconds to the bar': _middle([o.seconds for o in solved], '.1f'),
                'best return': _middle([o.best for o in found], '.2f'),
                'final return': _middle([o.final for o in found], '.2f'),
                'IQM of the steps to the bar': interval(interquartile_mean([o.steps for o in found]), '.0f'),
                'IQM of the best return': interval(interquartile_mean([o.best for o in found]), '.2f'),
                'IQM of the final return': interval(interquartile_mean([o.final for o in found]), '.2f'),
                f'P({first} needs fewer steps)': _better(outcomes, first, name, lambda o: -o.steps),
                f'P({first} has a higher final return)': _better(outcomes, first, name, lambda o: o.final),
            }
        )
    return lines


def _better(outcomes: Dict[str, List[Outcome]], first: str, name: str, score: Any) -> str:
    if name == first:
        return ''
    scores = [[score(o) for o in outcomes[n]] for n in (first, name)]
    return interval(probability_of_improvement(*scores), '.2f')


def _middle(values: List[float], form: str) -> str:
    if not values:
        return ''
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'


def interval(estimate: Optional[Estimate], form: str) -> str:
    if estimate is None:
        return ''
    return f'{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})'


def write_table(lines: List[Dict[str, Any]], out: str, notes: List[str]) -> str:
    """Write the lines of ``table`` as CSV and as Markdown, with ``notes`` as paragraphs below. Returns the Markdown."""
    write_csv(lines, os.path.join(out, 'comparison.csv'))
    over_seeds = [name for name in lines[0] if name.startswith(('IQM', 'P('))]
    median = [name for name in lines[0] if name not in over_seeds]
    parts = [markdown([median, *([line[k] for k in median] for line in lines)])]
    if any(line[name] for line in lines for name in over_seeds):
        names = ['algorithm', 'seeds', *over_seeds]
        parts.append(markdown([names, *([line[k] for k in names] for line in lines)]))
        parts.append(f"{NOTE}\n{NOTE_SEEDS.format(first=lines[0]['algorithm'])}")
    else:
        parts += [NOTE, NOTE_FEW]
    text = '\n\n'.join([*parts, *notes, '![curves](comparison.png)']) + '\n'
    with open(os.path.join(out, 'comparison.md'), 'w', encoding='utf-8') as f:
        f.write(text)
    return text


def write_csv(lines: List[Dict[str, Any]], path: str) -> None:
    with open(path, 'w', newline='', encoding='utf-8') as f:
        writer = csv.DictWriter(f, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def markdown(rows: Sequence[Iterable[Any]]) -> str:
    """A table whose first row is the head."""
    first, *others = [list(map(str, row)) for row in rows]
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in (first, ['---'] * len(first), *others))
