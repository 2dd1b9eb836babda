"""Shared by loading a model and loading a tokenizer of ``transformers``."""
import logging
import pickle
import sys
from contextlib import contextmanager, nullcontext
from typing import Iterator

from transformers.utils import logging as hf_logging


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Hide log messages about network retries and weights while a model or tokenizer loads, and progress bars where
    there is no terminal; errors are shown."""
    loggers = [logging.getLogger('huggingface_hub'), hf_logging.get_logger()]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with nullcontext() if sys.stderr.isatty() else no_bars():
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


@contextmanager
def no_bars() -> Iterator[None]:
    """Without the progress bars of ``transformers``."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def reason(error: Exception) -> str:
    """Why a model or tokenizer cannot be loaded, as part of a one-line message."""
    if isinstance(error, pickle.UnpicklingError):
        return 'its weights are a pickle that contains other objects than weights; none of its code was executed'
    if 'ignore_mismatched_sizes' in str(error):
        return 'the shapes of its weights do not match its config.json'
    if 'trust_remote_code' in str(error):
        return 'it requires running its own code (trust_remote_code), which is not supported'
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
