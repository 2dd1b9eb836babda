"""Uploads a model to the Hugging Face hub."""
import json
import os
import tempfile
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from huggingface_hub import HfApi

from ding_common import ConfigError, describe


def push(save: Callable[[str], None], repo_id: str, private: bool, **kwargs: Any) -> Any:
    """Upload what ``save`` writes into a folder. What the hub refuses is a ``ConfigError``."""
    api = HfApi(**kwargs)
    with tempfile.TemporaryDirectory() as folder:
        with _in_one_line(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
        save(folder)
        _name_base(os.path.join(folder, 'adapter_config.json'))
        with _in_one_line(repo_id):
            return api.upload_folder(repo_id=repo_id, folder_path=folder)


@contextmanager
def _in_one_line(repo_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the hub's own, and those of its library for HTTP, which its releases change
        raise ConfigError(f'push_to_hub({repo_id!r}): {describe(error)}') from error


def _name_base(path: str) -> None:
    """Replace the folder of the base model of adapters by its name."""
    if not os.path.exists(path):
        return
    with open(path, encoding='utf-8') as f:
        config = json.load(f)
    if os.path.exists(config['base_model_name_or_path'] or ''):
        config['base_model_name_or_path'] = os.path.basename(os.path.normpath(config['base_model_name_or_path']))
        with open(path, 'w', encoding='utf-8') as f:
            json.dump(config, f, indent=2)
