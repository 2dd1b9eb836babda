from typing import List, Optional

from ding_common import TaskError
from ding_grpo.logs.screen import show


def check_failures(failures: List[Optional[str]], most: float, key: str, what_then: str) -> None:
    """
    Overview:
        Log completions that could not be scored, and stop the run when there are too many.
    Arguments:
        - failures (:obj:`List[Optional[str]]`): One entry per episode: the reason of the failure, or None.
        - most (:obj:`float`): Largest share that may fail.
        - key (:obj:`str`): The config key that sets ``most``.
        - what_then (:obj:`str`): What happens to failed completions, for the message.
    Raises:
        - TaskError: If the share of failures is larger than ``most``.
    """
    failed = [failure for failure in failures if failure is not None]
    if not failed:
        return
    told = f'{len(failed)} of {len(failures)} completions could not be scored'
    if len(failed) > most * len(failures):
        raise TaskError(f'{told}, more than {key} = {most:g}; the first: {failed[0]}')
    show(f'{told} and {what_then}; the first: {failed[0]:.300}')
