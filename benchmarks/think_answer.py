"""A run of the shipped think_answer config with some keys changed, and when it was solved."""
import copy
import os
import platform
import runpy
import shutil
import time
from typing import Any, Dict, List, NamedTuple, Optional

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet

import torch
from ding.entry import serial_pipeline_onpolicy

from ding_grpo.worker.screen import read_json_lines

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
CONFIG = os.path.join(ROOT, 'config', 'think_answer_grpo_config.py')


class Run(NamedTuple):
    """
    Overview:
        What came of a run. ``solved`` and ``seconds`` are update and training time of the first evaluation that is
        1.0, None if there is none; ``evaluations`` are those of all updates, ``whole`` the process time with set-up.
    """
    seed: int
    folder: str
    solved: Optional[int]
    seconds: Optional[float]
    evaluations: Dict[int, float]
    whole: float


def run(seed: int, folder: str, updates: int, stop_value: float = 1.0, learn: Dict[str, Any] = {}) -> Run:
    """
    Overview:
        Train, in this process.
    Arguments:
        - seed (:obj:`int`): Its seed.
        - folder (:obj:`str`): Under ``runs/``; what was there is deleted.
        - updates (:obj:`int`): How many updates it runs at most.
        - stop_value (:obj:`float`): Evaluated return at which it ends; above 1 it never does.
        - learn (:obj:`Dict[str, Any]`): Keys of ``policy.learn`` in place of the config's.
    """
    config = runpy.run_path(CONFIG)
    main, create = copy.deepcopy(config['main_config']), copy.deepcopy(config['create_config'])
    main.exp_name = os.path.join('runs', folder)
    main.env.stop_value = stop_value
    main.policy.learn.update(learn)
    shutil.rmtree(main.exp_name, ignore_errors=True)
    start = time.perf_counter()
    serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=updates)
    whole = time.perf_counter() - start
    evaluations = {
        e['train_iter']: e['eval_episode_return']
        for e in read_json_lines(os.path.join(main.exp_name, 'log', 'evaluator', 'evaluations.jsonl'))
    }
    metrics = read_json_lines(os.path.join(main.exp_name, 'log', 'learner', 'metrics.jsonl'))
    solved = next((update for update, value in evaluations.items() if value == 1), None)
    seconds = None if solved is None else metrics[min(solved, len(metrics) - 1)]['seconds']
    return Run(seed, main.exp_name, solved, seconds, evaluations, whole)


def machine() -> str:
    return f'{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__.split("+")[0]}'


def cell(value: Any, form: str) -> str:
    return 'never' if value is None else format(value, form)


def middle(values: List[float], form: str) -> str:
    """Median and range."""
    values = sorted(values)
    half = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return f'{half:{form}} ({values[0]:{form}} to {values[-1]:{form}})'
