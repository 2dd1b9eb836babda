"""
Ways to learn from the rewards of a group, on four tasks: groups as they are, a critic, trees, and the policy that reads
more as its own teacher. The best of each way's tries is run on other seeds. Finished runs are kept in runs/four_ways.
Writes docs/results/four_ways.md.
"""
import os
import shutil
import statistics
import time
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import click
import torch

from benchmarks.demos.tries import LONGEST, TASKS, TEXT
from benchmarks.shared.hardware import machine
from benchmarks.shared.runs import ROOT, kept, middle, run, run_each
from ding_common import read_json_lines, read_main_config
from ding_grpo.compare.table import markdown
from ding_grpo.learn.extra_loss import Asked
from ding_grpo.learn.observer import OBSERVERS, Observer
from ding_grpo.rl_utils.tree_advantage import nodes
from dizoo_llm.sft import train

NAME, TRIED = 'four_ways', (100, 101)
MORE_ROWS = 1.5  # of a tree, whose rows share tokens
FEW = dict(smollm2=2)  # seeds
TOKENS, SECONDS = 'tokens_sampled', 'processor_seconds'


class Cost(Observer):
    """
    Overview:
        Tokens that were sampled for an update, of which those that rows of a tree share count once, and the seconds of
        the processor since the last update or evaluation.
    """

    def __init__(self, view: Any) -> None:
        self._since = time.process_time()

    def evaluated(self, greedy: float, sampled: Optional[float], cut_at_bar: float = 0.0) -> None:
        self._since = time.process_time()

    def after(self, new: Any, learned: Any, metrics: Dict[str, float]) -> None:
        share, now = torch.ones_like(new.weight), time.process_time()
        if new.leader is not None:
            share = 1 / nodes(torch.zeros(len(new.leader)), new.leader, new.group).size.clamp(min=1)
        metrics.update({TOKENS: float(share[new.weight != 0].sum()), SECONDS: now - self._since})
        self._since = now


class Outcome(NamedTuple):
    """
    Overview:
        Tokens and seconds until the bar, and those of the whole run if it did not reach it.
    """
    solved: bool
    tokens: float
    seconds: float


def learn(work: Tuple[str, str, str, int]) -> Outcome:
    """A run of a task, a way, one of its settings and a seed; a finished one is not repeated."""
    name, way, label, seed = work
    task = TASKS[name]
    policy = dict(task.ways[way][label])
    own, collect = policy.pop('learn'), policy.pop('collect')
    folder = os.path.join(NAME, f'{name} {way} {label} {seed}')
    OBSERVERS['cost'] = Asked(lambda cfg: True, f'{Cost.__module__}:Cost')

    def compute() -> Dict:
        r = run(
            task.config,
            seed,
            folder,
            task.bar,
            learn=own,
            evaluator=dict(eval_freq=task.eval_freq),
            env=task.env,
            policy=policy,
            collect=collect,
            max_train_iter=int(task.most * (MORE_ROWS if 'tree' in collect else 1)) // (16 * collect['groups'])
        )
        for part in ('ckpt', 'model'):  # up to 4 GB a run
            shutil.rmtree(os.path.join(r.folder, part), ignore_errors=True)
        metrics = read_json_lines(os.path.join(r.folder, 'log', 'learner', 'metrics.jsonl'))[:r.solved]
        tokens, seconds = (sum(m[key] for m in metrics) for key in (TOKENS, SECONDS))
        solved = r.solved is not None and tokens <= task.most * LONGEST[name]
        return Outcome(solved, tokens, seconds)._asdict()

    settings = repr((task._replace(ways={}), own, collect, policy, seed))
    return Outcome(**kept(os.path.join('runs', f'{folder}.json'), settings, compute))


def best(found: Dict[Tuple, Outcome], name: str, way: str) -> str:
    """The setting with the fewest tokens until the bar, over the seeds of tries; a run not at it counts as all."""

    def tokens(label: str) -> float:
        each = [found[(name, way, label, seed)] for seed in TRIED]
        return sum(x.tokens if x.solved else TASKS[name].most * LONGEST[name] for x in each)

    tries = list(TASKS[name].ways[way])
    return min(tries, key=tokens) if len(tries) > 1 else tries[0]


def table(found: Dict[Tuple, Outcome], name: str, seeds: List[int]) -> str:
    lines = [['way', 'setting', 'at the bar', 'tokens sampled', "of GRPO's", 'seconds', 'tries']]
    first = 0.0
    for way, tries in TASKS[name].ways.items():
        label = best(found, name, way)
        runs = [found[(name, way, label, seed)] for seed in seeds]
        solved = [x for x in runs if x.solved]
        half = statistics.median(x.tokens if x.solved else float('inf') for x in runs)
        first = first or half
        each = {one: [shown(found[(name, way, one, s)]) for s in TRIED] for one in tries} if len(tries) > 1 else {}
        lines.append(
            [
                way,
                label,
                f'{len(solved)} of {len(runs)}',
                middle([x.tokens for x in solved], ',.0f') if solved else '',
                of_first(half, first, TASKS[name].most * LONGEST[name]),
                middle([x.seconds for x in solved], '.1f') if solved else '',
                '; '.join(f'{one}: {", ".join(tokens)}' for one, tokens in each.items()),
            ]
        )
    return markdown(lines)


def of_first(tokens: float, first: float, most: int) -> str:
    """The ratio of two medians, of which one that was not reached is larger than ``most``."""
    if tokens == float('inf'):
        return ''
    return f'below {tokens / most:.2f}' if first == float('inf') else f'{tokens / first:.2f}'


def shown(outcome: Outcome) -> str:
    return f'{outcome.tokens:,.0f}' if outcome.solved else 'never'


@click.command()
@click.option('--seeds', default=5, show_default=True, help='Number of seeds with the best settings.')
@click.option('--jobs', default=1, show_default=True, help='Runs at a time.')
def main(seeds: int, jobs: int) -> None:
    """Train the warm starts, and then in each way."""
    os.chdir(ROOT)
    for start in ('think_answer_reader_sft', 'rearrange_sft'):
        if not os.path.exists(os.path.join('runs', start, 'model')):
            train(read_main_config(os.path.join(ROOT, 'config', f'{start}_config.py'), None), 0)
    os.makedirs(os.path.join('runs', NAME), exist_ok=True)
    each = partial(run_each, learn, jobs=jobs)
    settings = [(name, way, label) for name, task in TASKS.items() for way in task.ways for label in task.ways[way]]
    found = each([(*one, seed) for one in settings if len(TASKS[one[0]].ways[one[1]]) > 1 for seed in TRIED])
    of_task = {name: list(range(FEW.get(name, seeds))) for name in TASKS}
    ways = [(name, way, seed) for name, task in TASKS.items() for way in task.ways for seed in of_task[name]]
    found.update(each([(name, way, best(found, name, way), seed) for name, way, seed in ways]))
    tables = {name: table(found, name, of_task[name]) for name in TASKS}
    most = {f'{name}_most': f'{task.most * LONGEST[name]:,}' for name, task in TASKS.items()}
    with open(os.path.join('docs', 'results', f'{NAME}.md'), 'w', encoding='utf-8') as f:
        f.write(TEXT.format(last=seeds - 1, machine=machine(), **most, **tables))


if __name__ == '__main__':
    main()
