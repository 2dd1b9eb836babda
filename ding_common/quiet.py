import contextlib
import gc
import logging
import os
import sys
import warnings
from typing import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """
    Overview:
        For imports of many modules: no garbage is collected meanwhile, and collections ignore afterwards what has been
        imported (``gc.freeze``). PyTorch, DI-engine and transformers are 5,000 modules with a million objects; to look
        through them takes a second at the end of a process alone.

        Idle threads of torch's OpenMP spin before they sleep, by default (300,000 rounds) for so long that a run of two
        threads beside another process takes up to ten times as long. 10,000 rounds are enough to stay awake from one
        operation of a small model to the next. A value that the user has set stays.

        What a run prints contains text of models and data, see ``show_any_text``.
    """
    os.environ.setdefault('GOMP_SPINCOUNT', '10000')  # read when torch is imported
    show_any_text()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def show_any_text() -> None:
    """Write what the encoding of the screen lacks, such as Latin-1, as escapes. It would raise an error otherwise."""
    if getattr(sys.stdout, 'errors', None) == 'strict' and hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='backslashreplace')


def import_ding() -> None:
    """
    Overview:
        Import DI-engine without the notices that it, treevalue and the old gym print on import. They concern optional
        packages and the end of gym, on which a user of this plugin cannot act. Errors still show. If DI-engine is
        already imported (the ``ding`` command imports it before any plugin), this does nothing.
    """
    if 'ding' in sys.modules:
        return
    import gym_notices.notices  # gym prints notices[its version] to stderr when it is imported
    gym_notices.notices.notices.clear()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # record=True, since gym adds its own filter in front of any filter that is set here.
        with warnings.catch_warnings(record=True):
            import ding.entry  # noqa: F401
    finally:
        logging.disable(before)
