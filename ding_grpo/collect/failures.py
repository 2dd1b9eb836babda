from typing import List, Optional

from ding_common import TaskError
from ding_grpo.logs.screen import show


def check_failures(failures: List[Optional[str]], most: float, key: str, what_then: str) -> None:
    """Log completions that could not be scored, and raise ``TaskError`` if their share is larger than ``most``, the
    value of ``key``. ``failures`` has the reason of each episode's failure, or None; ``what_then`` is what happens to
    failed completions, for the message."""
    failed = [failure for failure in failures if failure is not None]
    if not failed:
        return
    told = f'{len(failed)} of {len(failures)} completions could not be scored'
    if len(failed) > most * len(failures):
        raise TaskError(f'{told}, more than {key} = {most:g}; the first: {failed[0]}')
    show(f'{told} and {what_then}; the first: {failed[0]:.300}')
