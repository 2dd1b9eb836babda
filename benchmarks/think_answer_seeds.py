"""
Learn think_answer on several seeds with the shipped config, and go on for 300 updates after it is solved, to see
whether it stays so. Writes docs/think_answer.md and docs/think_answer_seeds.png.
"""
import copy
import os
import platform
import runpy
import shutil
import statistics
import time
from typing import Any, Dict, List

import click

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet

import torch
from ding.entry import serial_pipeline_onpolicy

from ding_grpo.worker.curve import draw_curves
from ding_grpo.worker.screen import read_json_lines

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
CONFIG = os.path.join(ROOT, 'config', 'think_answer_grpo_config.py')
AFTER = 300


def learn(seed: int, updates: int) -> Dict[str, Any]:
    """
    Overview:
        One run with ``stop_value`` out of reach.
    Arguments:
        - seed (:obj:`int`): Its seed.
        - updates (:obj:`int`): How many updates it runs.
    Returns:
        - result (:obj:`Dict[str, Any]`): ``solved`` and ``seconds`` (update and training time of the first evaluation
            that is 1.0, None if there is none), ``lowest`` in the 300 updates behind it and ``lowest_last`` in the
            last 100 of these, ``whole`` the process time with set-up.
    """
    config = runpy.run_path(CONFIG)
    main, create = copy.deepcopy(config['main_config']), copy.deepcopy(config['create_config'])
    main.exp_name = os.path.join('runs', 'seeds', f'seed {seed}')
    main.env.stop_value = 2.0
    shutil.rmtree(main.exp_name, ignore_errors=True)
    start = time.perf_counter()
    serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=updates)
    whole = time.perf_counter() - start
    evaluations = read_json_lines(os.path.join(main.exp_name, 'log', 'evaluator', 'evaluations.jsonl'))
    metrics = read_json_lines(os.path.join(main.exp_name, 'log', 'learner', 'metrics.jsonl'))
    solved = next((e['train_iter'] for e in evaluations if e['eval_episode_return'] == 1), None)
    result = dict(seed=seed, folder=main.exp_name, solved=solved, seconds=None, lowest=None, lowest_last=None)
    if solved is not None:
        behind = {e['train_iter']: e['eval_episode_return'] for e in evaluations if e['train_iter'] > solved}
        assert max(behind) >= solved + AFTER, f'solved at {solved}: give --updates {solved + AFTER} or more'
        result['seconds'] = metrics[solved]['seconds']
        result['lowest'] = min(v for i, v in behind.items() if i <= solved + AFTER)
        result['lowest_last'] = min(v for i, v in behind.items() if solved + AFTER - 100 < i <= solved + AFTER)
    return dict(result, whole=whole)


def report(results: List[Dict[str, Any]], updates: int) -> str:
    """
    Overview:
        The results as Markdown.
    """

    def cell(value: Any, form: str) -> str:
        return 'never' if value is None else format(value, form)

    lines = [
        f"| {r['seed']} | {cell(r['solved'], 'd')} | {cell(r['seconds'], '.1f')} | {cell(r['lowest'], '.2f')} | "
        f"{cell(r['lowest_last'], '.2f')} |" for r in results
    ]
    done = [r for r in results if r['solved'] is not None]
    middle = ''
    if done:
        solved, seconds = ([r[key] for r in done] for key in ('solved', 'seconds'))
        middle = (
            f'Solved on {len(done)} of {len(results)} seeds; median {statistics.median(solved):.0f} updates '
            f'({min(solved)} to {max(solved)}) and {statistics.median(seconds):.1f} s ({min(seconds):.1f} to '
            f'{max(seconds):.1f}) of training, evaluation included, set-up apart.'
        )
    return '\n'.join(
        [
            '# think_answer by GRPO: five seeds, and what comes after',
            '',
            f'`make seeds` wrote this page: `config/think_answer_grpo_config.py` with `stop_value` out of reach, '
            f'{updates} updates, greedy evaluation on all four questions every 10. {platform.machine()}, '
            f'{torch.get_num_threads()} threads, torch {torch.__version__.split("+")[0]}.',
            '',
            middle,
            '',
            '| seed | updates until 1.0 | seconds until 1.0 | lowest evaluation in the 300 updates behind it | '
            'lowest in the last 100 of these |',
            '|---|---|---|---|---|',
            *lines,
            '',
            '![curves of all seeds](think_answer_seeds.png)',
            '',
        ]
    )


@click.command()
@click.option('--seeds', default='0,1,2,3,4', help='Comma-separated.')
@click.option('--updates', default=600, help='Updates of each run.')
def main(seeds: str, updates: int) -> None:
    """Learn on several seeds; write docs/think_answer.md and docs/think_answer_seeds.png."""
    os.chdir(ROOT)
    results = [learn(int(seed), updates) for seed in seeds.split(',')]
    draw_curves({f"seed {r['seed']}": r['folder'] for r in results}, os.path.join('docs', 'think_answer_seeds.png'))
    text = report(results, updates)
    with open(os.path.join('docs', 'think_answer.md'), 'w') as f:
        f.write(text)
    click.echo(text)
    held = [r['solved'] is not None and r['lowest'] >= 0.75 and r['lowest_last'] == 1 for r in results]
    if not all(held):
        raise click.ClickException(f'{held.count(False)} of {len(held)} seeds were not solved or did not stay so')


if __name__ == '__main__':
    main()
