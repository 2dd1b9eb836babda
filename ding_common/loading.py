"""Shared by loading a model and loading a tokenizer of ``transformers``."""
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
        Require that a model is given by a hub name, or by a folder without links that lead outside.
    Arguments:
        - pretrained (:obj:`str`): Folder or hub name. Only a folder is checked for links; hub files are in the cache.
        - key (:obj:`str`): Config key or option that names it, for messages.
    Raises:
        - ConfigError: If it is neither.
    """
    if not isinstance(pretrained, str) or not pretrained:
        raise ConfigError(f'{key} = {pretrained!r}: must be a folder or a hub name.')
    if os.path.isdir(pretrained):
        check_links(pretrained, key)


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Hide log messages about network retries and weights while a model or tokenizer loads; errors are shown."""
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
    """Why a model or tokenizer cannot be loaded, as part of a one-line message."""
    if isinstance(error, pickle.UnpicklingError):
        return 'its weights are a pickle that contains other objects than weights; none of its code was executed'
    if 'ignore_mismatched_sizes' in str(error):
        return 'the shapes of its weights do not match its config.json'
    if 'trust_remote_code' in str(error):
        return 'it requires running its own code (trust_remote_code), which is not supported'
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
