from typing import Any, Dict, List

from ding_common import TaskError

from .screen import show


def check_failures(infos: List[Dict[str, Any]], most: float, key: str) -> None:
    """
    Overview:
        Tell of completions that could not be scored, and stop when there are too many.
    Arguments:
        - infos (:obj:`List[Dict]`): One an episode, with ``failed``: None, or what went wrong.
        - most (:obj:`float`): Largest share that may fail.
        - key (:obj:`str`): The config key that gives it.
    Raises:
        - TaskError: If more failed.
    """
    failed = [info['failed'] for info in infos if info.get('failed') is not None]
    if not failed:
        return
    told = f'{len(failed)} of {len(infos)} completions could not be scored'
    if len(failed) > most * len(infos):
        raise TaskError(f'{told}, more than {key} = {most:g}; the first: {failed[0]}')
    show(f'{told} and are left out; the first: {failed[0]:.300}')
