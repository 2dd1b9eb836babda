"""
Wrong configs. Each of many changes to the shipped GRPO configs, made small, must either train or end in one line that
names the key, which is what a ``click.ClickException`` becomes on the command line, with exit code 1:

    python tools/fuzz_configs.py --cases 600 --seed 0
    python tools/fuzz_configs.py --seed 0 --only 17     # one case, with all that it printed

A case is a pure function of seed and index. Each runs in a process and a folder of its own, with a time limit and a
limit of memory.
"""
import os

os.environ.setdefault('HF_HUB_OFFLINE', '1')  # no case may ask a hub

import copy  # noqa: E402
import inspect  # noqa: E402
import multiprocessing  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from collections import Counter  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple  # noqa: E402

import click  # noqa: E402
from easydict import EasyDict  # noqa: E402
from tabulate import tabulate  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
if __name__ == '__main__':
    sys.path[0] = ROOT
from ding_common import import_ding  # noqa: E402

import_ding()
from tests.shipped import load, names, small, write_model_and_data  # noqa: E402

NAMES = [*names('*_grpo*'), *names('*_gae')]
PACKAGES = dict(  # of extras, by the first word of a config's name
    lunarlander='Box2D',
    bipedalwalker='Box2D',
    halfcheetah='mujoco',
    breakout='ale_py',
    minigrid='minigrid'
)
LEFT_OUT = [name for name in NAMES if find_spec(PACKAGES.get(name.split('_')[0], 'torch')) is None]
NAMES = [name for name in NAMES if name not in LEFT_OUT]
HUGE = 10 ** 12
VALUES = [
    'x', '', 'several\nlines', '1', 0, 1, -1, 3, HUGE, -HUGE, 0.0, 0.5, 1.5, -0.5, 1e30,
    float('nan'),
    float('inf'), -float('inf'), True, False, None, [], [1], ['x'], [[]], {},
    dict(x=1),
    dict(type='x')
]
KINDS = ['value', 'value', 'value', 'value', 'misspelt', 'unknown', 'missing', 'up', 'down', 'replaced']
OUTCOMES = ['trained', 'refused, key named', 'refused, key not named', 'traceback', 'hung']
MEMORY = 16 * 2 ** 30  # bytes of address space


class Case(NamedTuple):
    """One wrong config: which, what was done to it, and the name that a refusal must hold."""
    config: str
    kind: str
    what: str
    key: str
    main: EasyDict
    create: EasyDict


def shrunk(name: str, folder: str) -> Tuple[EasyDict, EasyDict]:
    """A config that trains, so small that an update takes part of a second."""
    main, create = small(name, folder)
    if 'env_id' in main.env:
        main.env.env_kwargs.max_episode_steps, main.policy.learn.epoch_per_collect = 10, 2
    return main, create


def make_case(seed: int, index: int, folder: str) -> Case:
    """The case of a seed and an index, whatever other cases there are."""
    name = NAMES[index % len(NAMES)]
    main, create = shrunk(name, folder)
    rng = random.Random(f'{seed} {index}')
    kind = rng.choice(KINDS)
    what, key = dict(
        value=_value, misspelt=_misspelt, unknown=_unknown, missing=_missing, up=_up, down=_down, replaced=_replaced
    )[kind](rng, main, create)
    return Case(name, kind, what, key, main, create)


def _value(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    known = copy.deepcopy(main)
    _add(known, declared(main, create))
    path = rng.choice([path for path, value in _walk(known) if not isinstance(value, dict)])
    return _set(main, path, rng.choice(VALUES))


def _misspelt(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    *path, key = rng.choice(_written(main))
    i = rng.randrange(len(key))
    wrong = rng.choice([key[:i] + key[i + 1:], key[:i] + key[i] + key[i:], key + 's', key.upper()]) or 'x'
    section = _get(main, path)
    value = section.pop(key)
    return _set(main, [*path, wrong], value)


def _unknown(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    sections = [path for path, value in _walk(main) if isinstance(value, dict)]
    return _set(main, [*rng.choice(sections), 'unheard_of'], rng.choice(VALUES))


def _missing(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    *path, key = rng.choice(_written(main))
    _get(main, path).pop(key)  # of an EasyDict `del` would leave the attribute
    return f'{_dotted([*path, key])} left out', key


def _up(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    *path, section, key = rng.choice([p for p in _written(main) if len(p) > 2 and isinstance(p[-2], str)])
    value = _get(main, [*path, section]).pop(key)
    what, _ = _set(main, [*path, key], value)
    return f'{what}, out of {section}', key


def _down(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    *path, key = rng.choice([p for p in _written(main) if len(p) > 1])
    value = _get(main, path).pop(key)
    sections = [k for k, v in _get(main, path).items() if isinstance(v, dict)]
    return _set(main, [*path, rng.choice([key, *sections]), key], value)


def _replaced(rng: random.Random, main: EasyDict, create: EasyDict) -> Tuple[str, str]:
    sections = [path for path, value in _walk(main) if isinstance(value, dict)]
    values = [value for value in VALUES if not isinstance(value, dict)]
    path = rng.choice(sections)
    return _set(main, path, rng.choice([*values, [_get(main, path)]]))


def declared(main: EasyDict, create: EasyDict) -> Dict[str, Any]:
    """Every key that is declared for a config, below ``policy`` and ``env``, with its default."""
    from ding.envs import BaseEnvManager
    from ding.utils import ENV_REGISTRY, MODEL_REGISTRY
    from ding.worker import AdvancedReplayBuffer, BaseLearner, InteractionSerialEvaluator

    from ding_grpo.collect import GroupCollector
    from ding_grpo.config.models import model_type
    from ding_grpo.policy import GRPOPolicy
    from dizoo_llm.base.registry import TASK_REGISTRY
    policy = GRPOPolicy.default_config()
    policy.model = _arguments(MODEL_REGISTRY.get(model_type(main.policy.model)))
    _add(policy.learn.learner, BaseLearner.default_config())
    _add(policy.collect.collector, GroupCollector.default_config())
    _add(policy.eval.evaluator, InteractionSerialEvaluator.default_config())
    if 'other' in main.policy:
        policy.other.replay_buffer = AdvancedReplayBuffer.default_config()
    env = EasyDict(copy.deepcopy(getattr(ENV_REGISTRY.get(create.env.type), 'config', {})))
    env.manager = BaseEnvManager.default_config()
    if 'task' in main.env:
        env.task = _arguments(TASK_REGISTRY.get(main.env.task.type))
    return dict(policy=policy, env=env)


def _arguments(cls: type) -> Dict[str, Any]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {
        p.name: None if p.default is p.empty else p.default
        for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
        and isinstance(p.default, (type(p.empty), bool, int, float, str, type(None)))
    }


def _add(cfg: Dict, default: Dict) -> None:
    for key, value in default.items():
        if key not in cfg:
            cfg[key] = copy.deepcopy(value)
        elif isinstance(cfg[key], dict) and isinstance(value, dict):
            _add(cfg[key], value)


def _walk(cfg: Any, path: Tuple = ()) -> Iterator[Tuple[Tuple, Any]]:
    """All below ``policy`` and ``env``, these included, with its path."""
    items = cfg.items() if isinstance(cfg, dict) else enumerate(cfg)
    for key, value in items:
        if not path and key not in ('policy', 'env'):
            continue
        if isinstance(key, str):
            yield (*path, key), value
        if isinstance(value, dict) or isinstance(value, list) and any(isinstance(v, dict) for v in value):
            yield from _walk(value, (*path, key))


def _written(main: EasyDict) -> List[Tuple]:
    return [path for path, _ in _walk(main)]


def _get(cfg: Any, path: Any) -> Any:
    for key in path:
        cfg = cfg[key]
    return cfg


def _set(main: EasyDict, path: Any, value: Any) -> Tuple[str, str]:
    *sections, key = path
    cfg = main
    for section in sections:
        if isinstance(cfg, dict) and not isinstance(cfg.get(section), (dict, list)):
            cfg[section] = EasyDict()
        cfg = cfg[section]
    cfg[key] = copy.deepcopy(value)
    return f'{_dotted(path)} = {value!r:.100}', key


def _dotted(path: Any) -> str:
    return '.'.join(map(str, path))


def outcome_of(key: str, error: Optional[BaseException]) -> str:
    """What became of a case, whose run ended with ``error``. A refusal must hold ``key`` before what is allowed."""
    if error is None:
        return 'trained'
    if not isinstance(error, click.ClickException) or error.exit_code != 1 or '\n' in error.message:
        return 'traceback'
    named = re.search(rf'(?<!\w){re.escape(key)}(?!\w)', error.message.split('Allowed:')[0])
    return 'refused, key named' if named else 'refused, key not named'


def train(case: Case) -> None:
    """One update of the case, as ``ding`` would run it."""
    from ding.entry import serial_pipeline, serial_pipeline_onpolicy
    pipeline = serial_pipeline if case.config.endswith('serial') else serial_pipeline_onpolicy
    pipeline((case.main, case.create), seed=0, max_train_iter=1)


def run_case(case: Case, limit: float, shown: bool = False, run: Callable[[Case], None] = train) -> Tuple[str, str]:
    """
    Run it in a process of its own, which begins with all that this one has imported, for so many seconds at most.
    Returns one of ``OUTCOMES``, and what the run ended with. ``shown``: so is what it prints.
    """
    context = multiprocessing.get_context('fork')
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(case, send, shown, run))
    process.start()
    send.close()
    try:
        found = receive.recv() if receive.poll(limit) else ('hung', f'after {limit:g} s')
    except EOFError:
        found = 'traceback', 'the process died'
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the environments' processes too
        except ProcessLookupError:  # it has not come as far as to have a group of its own
            process.kill()
    process.join()
    return found


def _work(case: Case, send: Any, shown: bool, run: Callable[[Case], None]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if not shown:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        error = None
        try:
            run(case)
        except BaseException as caught:  # whatever it is, it is what a user would see
            error = caught
        if isinstance(error, click.ClickException):
            message = error.message
        else:
            message = '' if error is None else ''.join(traceback.format_exception(error))
        send.send((outcome_of(case.key, error), message))
        os.chdir('/')
    send.close()
    os._exit(0)


@click.command(help=__doc__)
@click.option('--cases', type=int, default=600, show_default=True)
@click.option('--seed', type=int, default=0, show_default=True)
@click.option('--limit', type=float, default=60, show_default=True, help='Seconds for a case.')
@click.option('--only', type=int, multiple=True, help='Index of a case; may be given several times.')
@click.option('--verbose', is_flag=True, help='Show how every case ends.')
def main(cases: int, seed: int, limit: float, only: Tuple[int, ...], verbose: bool) -> None:
    begun, found, defects = time.monotonic(), Counter(), 0
    if LEFT_OUT:
        click.echo(f'left out, since their packages are not installed: {", ".join(LEFT_OUT)}')
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        model = load('think_answer_grpo')[0].policy.model.config
        files = multiprocessing.get_context('fork').Process(target=write_model_and_data, args=(model, ))
        files.start()  # not here: a process that has computed must not be forked
        files.join()
        indices = only or range(cases)
        for number, index in enumerate(indices, 1):
            case = make_case(seed, index, folder)
            outcome, message = run_case(case, limit, bool(only))
            found[case.kind, outcome] += 1
            bad = outcome not in OUTCOMES[:2]
            defects += bad
            if bad or only or verbose:
                click.echo(f'{index}  {case.config}  {case.kind}: {case.what}\n    {outcome}: {message}')
            if number % 50 == 0:
                click.echo(f'{number} cases, {defects} defects, {time.monotonic() - begun:.0f} s')
        os.chdir('/')
    kinds = sorted({kind for kind, _ in found})
    rows = [[kind, *(found[kind, outcome] for outcome in OUTCOMES)] for kind in kinds]
    rows.append(['all', *(sum(row[i] for row in rows) for i in range(1, len(OUTCOMES) + 1))])
    click.echo(tabulate(rows, ['what was wrong', *OUTCOMES], tablefmt='github'))
    click.echo(f'{len(indices)} cases of seed {seed}, {time.monotonic() - begun:.0f} s')
    sys.exit(1 if defects else 0)


if __name__ == '__main__':
    import torch

    import ding_grpo  # noqa: F401
    torch.set_num_threads(1)  # a forked process has no threads of its parent's
    main()
