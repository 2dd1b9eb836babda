"""What loading a model and loading a tokenizer of ``transformers`` have in common; no weights."""
import logging
import os
import pickle
from contextlib import contextmanager
from typing import Iterator

from transformers.utils import logging as hf_logging

from .errors import ConfigError
from .files import check_links


def check_model_folder(pretrained: str, key: str) -> None:
    """
    Overview:
        Hold what is to be loaded to be a name, or a folder that keeps to itself.
    Arguments:
        - pretrained (:obj:`str`): Folder or hub name; what the hub gives lies in its own cache.
        - key (:obj:`str`): Where a user wrote it, for messages.
    Raises:
        - ConfigError: If it is neither.
    """
    if not isinstance(pretrained, str) or not pretrained:
        raise ConfigError(f'{key} = {pretrained!r}: must be a folder or a hub name.')
    if os.path.isdir(pretrained):
        check_links(pretrained, key)


@contextmanager
def quiet_hub() -> Iterator[None]:
    """
    Overview:
        While a model or tokenizer is loaded, neither retries without a network nor reports on weights fill the screen.
    """
    loggers = [logging.getLogger('huggingface_hub'), hf_logging.get_logger()]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def reason(error: Exception) -> str:
    """
    Overview:
        Why a model or tokenizer cannot be loaded, in part of a line.
    """
    if isinstance(error, pickle.UnpicklingError):
        return 'its weights are a pickle that holds other things than weights; nothing of it was run'
    if 'ignore_mismatched_sizes' in str(error):
        return 'the shapes of its weights are not those of its config.json'
    if 'trust_remote_code' in str(error):
        return 'it wants code of its own to be run, which is never done'
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
