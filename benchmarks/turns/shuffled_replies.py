"""
The control of a game of several turns: guess with replies that were shuffled between the rows of a batch. A policy that
ignores the replies finds at most three of seven numbers; one that learns from true replies finds more.
``make bench NAME=shuffled_replies`` trains with both and prints a table.
"""
import copy
import os
import random
import runpy
from typing import Dict, List

import click
import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from benchmarks.shared.paths import ROOT
from ding_common import read_json_lines
from dizoo_llm import TASK_REGISTRY, Problem, Reply
from dizoo_llm.tasks import GuessTask, Turn

HELD = 128  # replies that wait: as many as a batch has rows, so that most come from other problems


@TASK_REGISTRY.register('shuffled_guess')
class ShuffledGuess(GuessTask):
    """
    Overview:
        ``guess``, in which a turn gets the reply to a turn of another row. Rewards and the end of an episode remain \
        those of the row. Evaluation is not shuffled.
    """

    _waiting: List[str] = []
    _random = random.Random(0)

    def respond(self, problem: Problem, state: Dict, turn: Turn) -> Reply:
        reply = super().respond(problem, state, turn)
        if reply.done:
            return reply
        self._waiting.append(reply.text)
        if len(self._waiting) <= HELD:
            return reply._replace(text=self._random.choice(['higher', 'lower']))
        return reply._replace(text=self._waiting.pop(self._random.randrange(len(self._waiting))))

    def evaluation(self) -> GuessTask:
        return GuessTask(self._highest)


def train(task: str, seed: int, updates: int, folder: str) -> List[Dict]:
    """
    Overview:
        Train ``guess_grpo`` without an early stop.
    Arguments:
        - task (:obj:`str`): ``guess`` or ``shuffled_guess``.
        - seed (:obj:`int`): Seed of the run.
        - updates (:obj:`int`): Number of updates.
        - folder (:obj:`str`): Folder of the run, relative to the current one.
    Returns:
        - evaluations (:obj:`List[Dict]`): All evaluations of the greedy policy, with true replies.
    """
    configs = runpy.run_path(os.path.join(ROOT, 'config', 'guess_grpo_config.py'))
    main, create = EasyDict(configs['main_config']), copy.deepcopy(configs['create_config'])
    main.exp_name, main.env.task.type, main.env.stop_value = folder, task, 1e9
    main.policy.eval.evaluator.eval_freq = 50
    serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=updates)
    return read_json_lines(os.path.join(folder, 'log', 'evaluator', 'evaluations.jsonl'))


@click.command()
@click.option('--seeds', default=2, show_default=True)
@click.option('--updates', default=300, show_default=True)
@click.option('--out', default='runs/shuffled_replies', show_default=True)
def main(seeds: int, updates: int, out: str) -> None:
    """Train with replies as they are and with shuffled ones."""
    rows = []
    for seed in range(seeds):
        for task in ('guess', 'shuffled_guess'):
            found = [e['eval_episode_return'] for e in train(task, seed, updates, f'{out}/{task} seed {seed}')]
            rows.append(f'| {task} | {seed} | {found[-1]:.2f} | {max(found):.2f} |')
    click.echo(
        f'| replies | seed | greedy return after {updates} updates | best of all evaluations |\n|---|---|---|---|'
    )
    click.echo('\n'.join(rows))


if __name__ == '__main__':
    main()
