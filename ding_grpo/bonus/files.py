"""What a run of ``GRPO`` writes beside its logs, so that a config can name it: objects of Python, and the config."""
import json
import os
import shutil
import tempfile
from hashlib import blake2b
from typing import Any, Callable, Dict, List, Optional, Tuple

import click
import torch

from ding_common import ConfigError
from ding_grpo.sharing.config_file import NAME, REWARDS, Saved, command_of, config_text

from .sources import of_script, source_of

DATA, MODELS = os.path.join('runs', 'data'), os.path.join('runs', 'models')


def write_config(folder: str, saved: Saved) -> Optional[str]:
    """Write ``config.py``, with functions of the script that runs in ``rewards.py``. Returns the command that repeats
    the run, or None if no file can."""
    main_config, functions = _with_names(saved.main_config, os.path.join(folder, REWARDS))
    try:
        if functions:
            with open(os.path.join(folder, REWARDS), 'w', encoding='utf-8') as f:
                f.write(source_of(functions))
        repeats = True
    except ValueError as error:
        click.echo(f'{NAME} alone cannot repeat this run: {error}. Import it from a file.')
        repeats = False
    path = os.path.join(folder, NAME)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(config_text(saved._replace(main_config=main_config), path))
    return command_of(saved, path) if repeats else None


def _with_names(value: Any, file: str) -> Tuple[Any, List[Callable]]:
    """A config in which functions of the script have their names in a file, and these functions."""
    if isinstance(value, dict):
        found = {key: _with_names(each, file) for key, each in value.items()}
        return {key: each for key, (each, _) in found.items()}, [f for _, below in found.values() for f in below]
    if isinstance(value, (list, tuple)):
        found = [_with_names(each, file) for each in value]
        return [each for each, _ in found], [f for _, below in found for f in below]
    return (f'{file}:{value.__name__}', [value]) if of_script(value) else (value, [])


def task_of(data: Any, eval_data: Any, reward: Any) -> Dict[str, Any]:
    """The section ``env.task`` for data and rewards."""
    given = dict(path=_named(data), eval_path=None if eval_data is None else _named(eval_data), reward=reward)
    return dict(type='file', **{name: value for name, value in given.items() if value is not None})


def _named(data: Any) -> Any:
    """Rows of Python, or a ``datasets.Dataset``, as the name of a file that has them; other data unchanged."""
    of_dicts = isinstance(data, (list, tuple)) and len(data) > 0 and isinstance(data[0], dict)
    if not of_dicts and not isinstance(getattr(data, 'column_names', None), list):
        return data
    try:
        lines = [json.dumps(dict(row), ensure_ascii=False) for row in data]
    except TypeError as error:
        raise ConfigError(f'GRPO(data=...): a row has what JSON has not ({error}). Give a file.') from error
    text = ('\n'.join(lines) + '\n').encode('utf-8', 'surrogatepass')
    path = os.path.join(DATA, f'{blake2b(text, digest_size=6).hexdigest()}.jsonl')
    if not os.path.exists(path):
        os.makedirs(DATA, exist_ok=True)
        with open(path, 'wb') as f:
            f.write(text)
    return path


def kept(what: Any) -> str:
    """The folder that ``save_pretrained`` of an object writes, named by its content."""
    os.makedirs(MODELS, exist_ok=True)
    made, digest = tempfile.mkdtemp(dir=MODELS), blake2b(digest_size=6)
    try:
        what.save_pretrained(made)
        for name in sorted(os.listdir(made)):
            digest.update(name.encode())
            with open(os.path.join(made, name), 'rb') as f:
                for part in iter(lambda: f.read(2 ** 20), b''):
                    digest.update(part)
        folder = os.path.join(MODELS, digest.hexdigest())
        if not os.path.exists(folder):
            os.rename(made, folder)
            os.chmod(folder, 0o755)  # ``mkdtemp`` made it for its owner alone
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _adapted(model: Any) -> Dict[str, Any]:
    """The section ``policy.model`` for a model of ``peft``, whose adapters are trained further."""
    base = model.active_peft_config.base_model_name_or_path
    if not base:
        raise ConfigError(
            'GRPO(model): the base model of these adapters has no name. Save it, and load it by its name.'
        )
    return dict(pretrained=base, lora=kept(model))


def split_model(model: Any) -> Tuple[Dict[str, Any], Optional[torch.nn.Module]]:
    """The section ``policy.model`` for what ``GRPO`` was given as a model, and a module that is no language model."""
    if model is None or isinstance(model, dict):
        return dict(model or {}), None
    if isinstance(model, (str, os.PathLike)):
        return dict(pretrained=os.fspath(model)), None
    if hasattr(model, 'peft_config'):
        return _adapted(model), None
    if hasattr(model, 'save_pretrained') and hasattr(model, 'generate'):
        return dict(pretrained=kept(model)), None
    if isinstance(model, torch.nn.Module):
        return {}, model
    raise ConfigError(f'GRPO(model={model!r:.80}): must be a name, a folder, a model, or a dict.')
