"""A run of a shipped config with some keys changed, and when it was solved."""
import copy
import os
import platform
import runpy
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import ding_grpo  # noqa: F401  first, so that DI-engine's import is quiet

import numpy as np
import torch
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from ding_common import read_json_lines

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))


class Run(NamedTuple):
    """
    Overview:
        What came of a run. ``solved`` and ``seconds`` are update and training time of the first evaluation that reaches
        the bar, None if there is none; ``records`` are all evaluations, ``evaluations`` their return by update: the
        lower one of the greedy and, if it was evaluated too, the sampled policy.
    """
    seed: int
    folder: str
    solved: Optional[int]
    seconds: Optional[float]
    evaluations: Dict[int, float]
    records: List[Dict[str, Any]]


def load_config(name: str) -> Tuple[EasyDict, EasyDict]:
    """
    Overview:
        Main and create config of a shipped config.
    Arguments:
        - name (:obj:`str`): Without ``_config.py``.
    """
    loaded = runpy.run_path(os.path.join(ROOT, 'config', f'{name}_config.py'))
    return copy.deepcopy(loaded['main_config']), copy.deepcopy(loaded['create_config'])


def run(
        config: str,
        seed: int,
        folder: str,
        bar: float,
        go_on: bool = False,
        learn: Dict[str, Any] = {},
        evaluator: Dict[str, Any] = {},
        **limit: int,
) -> Run:
    """
    Overview:
        Train, in this process.
    Arguments:
        - config (:obj:`str`): Name of a shipped config, without ``_config.py``.
        - seed (:obj:`int`): Its seed.
        - folder (:obj:`str`): Under ``runs/``; what was there is deleted.
        - bar (:obj:`float`): Evaluated return from which it is solved.
        - go_on (:obj:`bool`): Whether it goes on behind that.
        - learn (:obj:`Dict[str, Any]`): Keys of ``policy.learn`` in place of the config's.
        - evaluator (:obj:`Dict[str, Any]`): Keys of ``policy.eval.evaluator`` in place of the config's.
        - limit (:obj:`int`): ``max_train_iter`` or ``max_env_step``.
    """
    main, create = load_config(config)
    main.exp_name = os.path.join('runs', folder)
    main.env.stop_value = 1e9 if go_on else bar
    main.policy.learn.update(learn)
    main.policy.eval.evaluator.update(evaluator)
    shutil.rmtree(main.exp_name, ignore_errors=True)
    serial_pipeline_onpolicy((main, create), seed=seed, **limit)
    records = read_json_lines(os.path.join(main.exp_name, 'log', 'evaluator', 'evaluations.jsonl'))
    evaluations = {r['train_iter']: min(r['eval_episode_return'], r.get('sampled_return', np.inf)) for r in records}
    metrics = read_json_lines(os.path.join(main.exp_name, 'log', 'learner', 'metrics.jsonl'))
    solved = next((update for update, value in evaluations.items() if value >= bar), None)
    seconds = None if solved is None else metrics[min(solved, len(metrics) - 1)]['seconds']
    return Run(seed, main.exp_name, solved, seconds, evaluations, records)


def machine() -> str:
    threads = torch.get_num_threads()
    return (
        f'{platform.machine()}, {threads} thread{"" if threads == 1 else "s"}, '
        f'torch {torch.__version__.split("+")[0]}'
    )


def cell(value: Any, form: str) -> str:
    return 'never' if value is None else format(value, form)


def middle(values: List[float], form: str) -> str:
    """Median and range."""
    values = sorted(values)
    half = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return f'{half:{form}} ({values[0]:{form}} to {values[-1]:{form}})'
