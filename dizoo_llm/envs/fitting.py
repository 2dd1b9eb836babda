"""The problems of an environment, whose prompts are measured before a run."""
from array import array
from typing import Sequence, Tuple

import click

from ding_common import ConfigError, parallel
from dizoo_llm.base import Problem, Task
from dizoo_llm.text.encoder import Encoder

MOST_READ = 20_000  # problems at most whose prompts are all encoded
TOGETHER = 1000  # prompts that are encoded together


class Problems:
    """The problems of a task that an environment uses."""

    def __init__(self, task: Task, indices: Sequence[int]) -> None:
        self._task, self._indices = task, indices

    def __len__(self) -> int:
        return len(self._indices)

    def checked_problem(self, index: int) -> Problem:
        return self._task.checked_problem(self._indices[index])


def fitting_problems(encoder: Encoder, task: Task, evaluation: bool, drops: bool) -> Sequence[int]:
    """
    Indices of the training or evaluation problems that are left, found by encoding their prompts before a run. Without
    a limit, it becomes the longest prompt of training and evaluation. With one, only prompts of a ``listed`` task, or
    those to be dropped, are encoded; of more than ``MOST_READ`` only those that may be too long by their characters.
    """
    parts = dict(training=task, evaluation=task.evaluation())
    wanted, number = 'evaluation' if evaluation else 'training', sum(map(len, parts.values()))
    if encoder.max_prompt_length is None:
        if number > MOST_READ and not task.listed:
            raise ConfigError(
                f'env.max_prompt_length = None: the task has {number} problems; the longest prompt is searched for '
                f'only among at most {MOST_READ}. Set it to the length of the longest prompt in tokens.'
            )
        found = {name: _fitting(encoder, name, part, drops) for name, part in parts.items()}
        encoder.max_prompt_length = max(longest for _, longest in found.values())
        return found[wanted][0]
    if drops or task.listed:
        return _fitting(encoder, wanted, parts[wanted], drops)[0]
    return range(len(parts[wanted]))


def _fitting(encoder: Encoder, name: str, problems: Task, drops: bool) -> Tuple[Sequence[int], int]:
    """Indices of the problems that are left, and the longest of the prompts that were encoded."""
    number, longest, long, waiting = len(problems), 0, {}, []
    for i in range(number):
        problem = problems.checked_problem(i)
        if number <= MOST_READ or encoder.max_prompt_length is None or encoder.most_tokens(problem) > encoder.limit:
            waiting.append((i, problem))
        if len(waiting) == TOGETHER or i == number - 1:
            for (place, problem), ids in zip(waiting, encoder.prompts([problem for _, problem in waiting])):
                if len(ids) > encoder.limit:
                    long[place] = len(ids)
                else:
                    encoder.check_length(ids, problem)
                    longest = max(longest, len(ids))
            waiting = []
    if not long:
        return range(number), longest
    worst = max(long, key=long.get)
    told = (
        f'{len(long):,} of {number:,} prompts for {name} have more than {encoder.limit} tokens, the longest has '
        f'{long[worst]}: {problems.checked_problem(worst).text!r:.80}'
    )
    if not drops or len(long) == number:
        raise ConfigError(
            f"env.max_prompt_length = {encoder.max_prompt_length}: {told}. Set it to at least "
            f"{long[worst]}, shorten the prompts, or set env.overlong_prompts='drop'."
        )
    if parallel.rank() == 0:
        click.echo(f"env.overlong_prompts = 'drop': {told}. They are dropped.")
    return array('L', [i for i in range(number) if i not in long]), longest
