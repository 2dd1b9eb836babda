import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from types import TracebackType
from typing import Any, Iterator, Optional, Type

ABORTED = '\nAborted!\n'  # as click says it


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """For imports of many modules: no garbage is collected meanwhile. PyTorch, DI-engine and transformers are 5,000
    modules with a million objects; to look through them again and again takes a quarter of the time of their import."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """
    For the imports of a program: as ``uncollected``, and collections ignore afterwards what has been imported
    (``gc.freeze``), which saves a second at the end of a process alone.

    Idle threads of torch's OpenMP spin before they sleep, by default (300,000 rounds) for so long that a run of two
    threads beside another process takes up to ten times as long. 10,000 rounds are enough to stay awake from one
    operation of a small model to the next. A value that the user has set stays.

    What a run prints contains text of models and data, see ``show_any_text``. Where the package that is imported runs
    as a program (``python -m``), Ctrl-C ends it in one line.
    """
    if sys.argv[:1] == ['-m']:  # Python's own, until it has found the module
        sys.excepthook = _print_error
    os.environ.setdefault('GOMP_SPINCOUNT', '10000')  # read when torch is imported
    show_any_text()
    with uncollected():
        try:
            with ending_at_once():
                yield
        finally:
            gc.freeze()


def is_program() -> bool:
    """Whether one of these packages runs as a program (``python -m``), and is being imported."""
    packages = ('ding_grpo', 'dizoo_llm')
    return sys.argv[:1] == ['-m'] and any(arg.partition('.')[0] in packages for arg in sys.orig_argv)


def show_any_text() -> None:
    """Write what the encoding of the screen lacks, such as Latin-1, as escapes. It would raise an error otherwise."""
    if getattr(sys.stdout, 'errors', None) == 'strict' and hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='backslashreplace')


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """For code that an exception must not interrupt, as it would be caught, printed or lost on its way: while a program
    is still importing, and while DI-engine builds a run. Ctrl-C ends the program in one line. It does what it did
    before in a program that only imports this package, such as a notebook."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in a background job of a script
    if ignored or sys.excepthook is not _print_error or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: Any) -> None:
    if multiprocessing.parent_process() is None:
        os.write(2, ABORTED.encode())
    os._exit(128 + signal.SIGINT)


def _print_error(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write(ABORTED)
    else:
        sys.__excepthook__(kind, error, trace)


def import_ding() -> None:
    """Import DI-engine without the notices that it, treevalue and the old gym print on import. They concern optional
    packages and the end of gym, on which a user of this plugin cannot act. Errors still show. If DI-engine is already
    imported (the ``ding`` command imports it before any plugin), this does nothing for them. ``bitsandbytes`` warns
    that it lacks another package as soon as it is installed, since peft imports it."""
    logging.getLogger('bitsandbytes').setLevel(logging.ERROR)
    if 'ding.entry' in sys.modules:
        return
    import gym_notices.notices  # gym prints notices[its version] to stderr when it is imported
    gym_notices.notices.notices.clear()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # record=True, since gym adds its own filter in front of any filter that is set here.
        with uncollected(), warnings.catch_warnings(record=True):
            import ding.entry  # noqa: F401
    finally:
        logging.disable(before)
