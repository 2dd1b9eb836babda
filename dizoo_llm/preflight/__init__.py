"""
What can be known of a task before a run, from its problems and its scorer alone: ``python -m ding_grpo.preflight``
prints it.
"""
from typing import Any, Dict, Iterator, Tuple

from dizoo_llm.base import Task

from .data import of_data
from .few import FewTask
from .finding import Found
from .prompts import of_prompts
from .reward import of_reward

__all__ = ['FewTask', 'Found', 'examine']


def examine(task: Task, options: Dict[str, Any], tokens: bool, scores: bool = True) -> Iterator[Tuple[str, Found]]:
    """
    What is found, with the name of what was examined: the data, the reward of a task of one turn, and the prompts.
    ``options``: all keys of the section ``env``. ``tokens``: whether there is a tokenizer for prompts. ``scores``:
    whether the reward is examined.
    """
    yield 'data', of_data(task)
    if scores and (task.has_turns or task.environment is not None):
        told = 'not examined: this task has several turns, and its score follows all of them'
        yield 'reward', Found([told], [], examined=False)
    elif scores:
        yield 'reward', of_reward(task, {**task.weights, **options['reward_weights']})
    if tokens:
        yield 'prompts', of_prompts(task, options)
