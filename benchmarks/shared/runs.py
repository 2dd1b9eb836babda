"""A run of a shipped config with some keys changed, and when it was solved."""
import contextlib
import copy
import json
import multiprocessing
import os
import runpy
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, TypeVar

import click
import numpy as np
import torch
import ding_grpo  # noqa: F401  before DI-engine, whose pipelines it completes
from ding.entry import serial_pipeline_onpolicy
from easydict import EasyDict

from benchmarks.shared.paths import ROOT
from ding_common import read_json_lines

CONSTANT = dict(type='constant')  # ``learn.lr_scheduler``: the full rate in every update

Work, Result = TypeVar('Work'), TypeVar('Result')


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
        env: Dict[str, Any] = {},
        policy: Dict[str, Any] = {},
        collect: Dict[str, Any] = {},
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
        - env (:obj:`Dict[str, Any]`): Keys of ``env`` in place of the config's.
        - policy (:obj:`Dict[str, Any]`): Keys of ``policy`` in place of the config's.
        - collect (:obj:`Dict[str, Any]`): Keys of ``policy.collect`` in place of the config's.
        - limit (:obj:`int`): ``max_train_iter`` or ``max_env_step``.
    """
    main, create = load_config(config)
    main.exp_name = os.path.join('runs', folder)
    main.env.stop_value = 1e9 if go_on else bar
    main.policy.update(policy)
    main.policy.learn.update(learn)
    main.policy.collect.update(collect)
    main.policy.eval.evaluator.update(evaluator)
    main.env.update(env)
    shutil.rmtree(main.exp_name, ignore_errors=True)
    serial_pipeline_onpolicy((main, create), seed=seed, **limit)
    records = read_json_lines(os.path.join(main.exp_name, 'log', 'evaluator', 'evaluations.jsonl'))
    evaluations = {r['train_iter']: min(r['eval_episode_return'], r.get('sampled_return', np.inf)) for r in records}
    metrics = read_json_lines(os.path.join(main.exp_name, 'log', 'learner', 'metrics.jsonl'))
    solved = next((update for update, value in evaluations.items() if value >= bar), None)
    seconds = None if solved is None else metrics[min(solved, len(metrics) - 1)]['seconds']
    return Run(seed, main.exp_name, solved, seconds, evaluations, records)


def run_each(function: Callable[[Work], Result], works: List[Work], jobs: int) -> Dict[Work, Result]:
    """
    Overview:
        Call a function of this program for each of several works, in ``jobs`` processes of one thread each. Their
        standard output is dropped; a line on stderr tells what is done.
    Returns:
        - results (:obj:`Dict`): In the order of the works.
    """
    results = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context('spawn')) as pool:
        running = {pool.submit(_in_one_thread, function, work): work for work in works}
        for number, future in enumerate(as_completed(running), 1):
            results[running[future]] = future.result()
            click.echo(f'{number} of {len(works)} runs done: {running[future]}', err=True)
    return {work: results[work] for work in works}


def _in_one_thread(function: Callable[[Work], Result], work: Work) -> Result:
    torch.set_num_threads(1)
    with open(os.devnull, 'w') as nothing, contextlib.redirect_stdout(nothing):
        return function(work)


def kept(path: str, settings: str, compute: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """
    Overview:
        A result that is computed once: a later call with equal settings reads it.
    Arguments:
        - path (:obj:`str`): A JSON file; its folder exists when the result is computed.
        - settings (:obj:`str`): All that determines the result.
        - compute (:obj:`Callable`): Gives the result, which JSON can hold.
    """
    if os.path.exists(path):
        with open(path) as f:
            found = json.load(f)
        if found['settings'] == settings:
            return found['result']
    result = compute()
    with open(f'{path}.part', 'w') as f:
        json.dump(dict(settings=settings, result=result), f)
    os.replace(f'{path}.part', path)
    return result


def cell(value: Any, form: str) -> str:
    return 'never' if value is None else format(value, form)


def middle(values: List[float], form: str) -> str:
    """Median and range."""
    values = sorted(values)
    half = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return f'{half:{form}} ({values[0]:{form}} to {values[-1]:{form}})'
