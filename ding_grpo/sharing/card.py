"""The model card of a run, ``README.md`` in the folder of its model for the Hugging Face hub, from the run's files."""
import json
import os
import re
import shutil
from hashlib import sha256
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from ding.worker import LearnerHook
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ding_common import ConfigError, code_of, describe, json_lines, parallel, printable
from ding_common.versions import NAME as PACKAGE
from ding_common.versions import machine
from ding_grpo.evaluate.pass_at_k import over_problems
from ding_grpo.instruments.findings import cell
from ding_grpo.learn.observer import Observer, View
from ding_grpo.logs.curve import draw_curves
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import run_folder, show

from .config_file import REWARDS
from .portable import Repeated, write_portable

CARD, CURVE, FACTS = 'README.md', 'curve.png', 'machine.json'
LONGEST = 300  # characters of a cell
SETTINGS = (
    'learn.loss', 'learn.advantage', 'learn.adv_method', 'group_size', 'collect.groups', 'collect.temperature',
    'collect.top_k', 'collect.top_p', 'learn.batch_groups', 'learn.epoch_per_collect', 'learn.learning_rate',
    'learn.lr_scheduler.type', 'learn.kl.beta', 'learn.entropy.weight', 'model.lora.r', 'model.dtype', 'model.autocast'
)
_BODY = '''# {title}

{base}, trained from rewards by GRPO with ding-grpo, a plugin of [DI-engine](https://github.com/opendilab/DI-engine).
These are the weights after {updates} updates.

## Results

{results}

{curve}

## Data

{data}

## Reward

{reward}

## Settings

{settings}

## Repeat

{repeat}
'''
_REPEAT = '''In this folder, with the files that it reads beside it:

    {command}

The `model/last` of that run has these weights, {equal}, if all of this is equal:

{machine}

Files that it reads:

{files}'''


class _Evaluated(NamedTuple):
    """An evaluation. ``returns`` are those of its episodes, if they are of the policy that ``value`` is of."""
    update: int
    value: float
    seconds: float
    steps: int
    returns: Tuple[float, ...]
    parts: Tuple[str, ...]  # of the reward

    @classmethod
    def of(cls, record: Dict[str, Any]) -> '_Evaluated':
        episodes = record.get('completions', [])
        return cls(
            int(record['train_iter']),
            float(record['eval_episode_return']),
            float(record['seconds']),
            int(record['envstep']),
            () if 'greedy_return' in record else tuple(float(episode['return']) for episode in episodes),
            tuple(episodes[0]['reward_parts']) if episodes else (),
        )

    @property
    def measure(self) -> str:
        return 'accuracy' if self.returns and set(self.returns) <= {0.0, 1.0} else 'mean return'

    @property
    def interval(self) -> str:
        if self.measure != 'accuracy':
            return ''
        _, low, high = over_problems(np.array(self.returns))
        return f'{low:.3f} to {high:.3f}'


class Card(Observer):
    """Records what a run runs on, and at its end writes cards into the folders of its models."""

    def __init__(self, view: View) -> None:
        self._cuda = view.cfg.cuda

    def hooks(self) -> List[LearnerHook]:
        return [CallHook('card', 125, position='after_run', function=_write_cards)]

    def begin(self, learner: 'BaseLearner', collector: 'GroupCollector') -> None:  # noqa
        if parallel.rank() == 0:
            facts = dict(problems=collector.num_problems, machine=machine(self._cuda))
            with open(os.path.join(run_folder(learner.exp_name), FACTS), 'w', encoding='utf-8') as f:
                f.write(json.dumps(facts) + '\n')


def _write_cards(engine: 'BaseLearner') -> None:  # noqa
    run = run_folder(engine.exp_name)
    folders = {name: os.path.join(run, 'model', name) for name in ('last', 'best')}
    try:
        for name, folder in folders.items() if engine.rank == 0 else ():
            if os.path.isdir(folder):
                if os.path.exists(os.path.join(run, CURVE)):
                    shutil.copy(os.path.join(run, CURVE), folder)
                write_card(folder, run, engine.train_iter if name == 'last' else _best(_evaluations(run)).update)
    except (ConfigError, OSError) as error:  # not an error of the run, which has ended normally
        show(f'no model card: {describe(error)}')


def draw_and_write(folder: str, run: str, updates: int) -> None:
    """As ``write_card``, with the curve of the run so far."""
    draw_curves({os.path.basename(os.path.normpath(run)): run}, os.path.join(folder, CURVE))
    write_card(folder, run, updates)


def write_card(folder: str, run: str, updates: int) -> None:
    """Write the model card, and what repeats the run: ``config.py``, and its ``rewards.py`` if it has one. The card and
    ``config.py`` contain no path of this machine. ``folder`` is of the model, ``run`` of the run, which had its weights
    after so many updates."""
    repeated, facts = write_portable(folder, run, updates), next(json_lines(os.path.join(run, FACTS)), {})
    main, env = repeated.main, repeated.main['env']
    found = [evaluated for evaluated in _evaluations(run) if evaluated.update <= updates]
    shown = os.path.exists(os.path.join(folder, CURVE))
    body = _BODY.format(
        title=cell(main['exp_name']),
        base=cell(_base(main)),
        updates=updates,
        results=_table(_results(found)) if found else 'Not evaluated.',
        curve=f'![Reward and return over updates]({CURVE})' if shown else '',
        data=_table(_data(env, facts.get('problems'), found)),
        reward=_reward(env, found, os.path.join(folder, REWARDS)),
        settings=_table(_settings(repeated, updates)),
        repeat=_repeat(folder, repeated, facts.get('machine', {})) if updates > 0 else 'It has not been trained.',
    )
    metadata = _metadata(folder, main, [evaluated for evaluated in found[-1:] if evaluated.update == updates])
    ModelCard(f'---\n{metadata.to_yaml()}\n---\n\n{body}').save(os.path.join(folder, CARD))


def _evaluations(run: str) -> List[_Evaluated]:
    return list(json_lines(os.path.join(run, 'log', 'evaluator', 'evaluations.jsonl'), _Evaluated.of))


def _best(found: List[_Evaluated]) -> _Evaluated:
    return max(found, key=lambda evaluated: evaluated.value)


def _at(section: Any, path: str) -> Any:
    for name in path.split('.'):
        section = section.get(name) if isinstance(section, dict) else None
    return section


def _base(main: Dict[str, Any]) -> str:
    model = main['policy'].get('model', {})
    named = '/'.join(model[key] for key in ('pretrained', 'gguf_file') if model.get(key))
    return named or ('Random weights' if model else 'A model that was an object of Python')


def _metadata(folder: str, main: Dict[str, Any], measured: List[_Evaluated]) -> ModelCardData:
    texts, name = _at(main, 'env.env_id') is None, str(_at(main, 'env.task.type') or _at(main, 'env.env_id'))
    kind, base = 'text-generation' if texts else 'reinforcement-learning', _at(main, 'policy.model.pretrained') or ''
    library = 'peft' if os.path.exists(os.path.join(folder, 'adapter_config.json')) else 'transformers'
    results = [EvalResult(kind, name, name, of.measure.replace(' ', '_'), round(of.value, 6)) for of in measured]
    return ModelCardData(
        base_model=base if '/' in base else None,  # of the hub: names of folders have none
        library_name=library if texts else PACKAGE,
        pipeline_tag=kind,
        tags=['grpo', PACKAGE],
        model_name=main['exp_name'],
        eval_results=results or None,
    )


def _results(found: List[_Evaluated]) -> Iterator[Iterable[Any]]:
    yield 'after update', found[-1].measure, '95 % interval', 'seconds of training', 'environment steps'
    for of in sorted({found[0], _best(found), found[-1]}):
        yield of.update, f'{of.value:.4g}', of.interval, f'{of.seconds:.0f}', of.steps


def _data(env: Dict[str, Any], problems: Optional[int], found: List[_Evaluated]) -> Iterator[Iterable[Any]]:
    task = env.get('task') or {key: env[key] for key in ('env_id', 'env_kwargs') if key in env}
    yield 'data', ''
    yield from ((key, value) for key, value in task.items() if key != 'reward')
    if problems is not None:
        yield 'problems in training', problems
    held_out = ', held out' if task.get('eval_size') or task.get('eval_path') else ''
    if found and found[-1].returns:
        yield f'episodes of an evaluation{held_out}', len(found[-1].returns)


def _reward(env: Dict[str, Any], found: List[_Evaluated], source: str) -> str:
    keys = ('task.reward', 'reward_weights', 'reward_models', 'return_part')
    given = [(f'env.{key}', value) for key in keys if (value := _at(env, key))]
    text = _table(
        [('reward', ''), ('parts', ', '.join(found[-1].parts if found else ()) or 'that of the environment'), *given]
    )
    if os.path.exists(source):
        with open(source, encoding='utf-8') as f:
            text += f'\n\n{_fenced(f.read().rstrip())}'
    return text


def _settings(repeated: Repeated, updates: int) -> Iterator[Iterable[Any]]:
    yield 'policy', ''
    yield from ((name, value) for name in SETTINGS if (value := _at(repeated.policy, name)) is not None)
    yield 'updates', updates
    yield 'seed', repeated.seed


def _repeat(folder: str, repeated: Repeated, ran_on: Dict[str, str]) -> str:
    if not repeated.main['policy'].get('model'):
        return 'Its model was an object of Python, so that no file repeats the run.'
    exact = 'GPU' not in ran_on and ran_on.get('processes') == '1'
    files = [(name, _known(os.path.join(folder, name), path)) for name, path in repeated.files.items()]
    files += [(code, 'code that is imported') for code in code_of(repeated.main) if '.py' not in code]
    return _REPEAT.format(
        command=repeated.command,
        equal='bit for bit' if exact else 'up to rounding',
        machine=_table([('what', 'value'), *ran_on.items()]),
        files=_table([('file', ''), *files]) if files else 'none',
    )


def _known(own: str, path: str) -> str:
    """What identifies a file that a config names."""
    path = os.path.expanduser(path)
    if os.path.exists(own):
        return 'in this folder'
    if not os.path.isfile(path):
        return 'a folder' if os.path.isdir(path) else ''
    digest = sha256()
    with open(path, 'rb') as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return f'{os.path.getsize(path):,} bytes, SHA-256 {digest.hexdigest()}'


def _table(rows: Iterable[Iterable[Any]]) -> str:
    head, *below = ([cell(str(x)[:LONGEST]) for x in row] for row in rows)
    return '\n'.join(f"| {' | '.join(row)} |" for row in (head, ['---'] * len(head), *below))


def _fenced(code: str) -> str:
    fence = '`' * max([3, *(len(found) + 1 for found in re.findall('`+', code))])
    return f'{fence}python\n{printable(code)}\n{fence}'
