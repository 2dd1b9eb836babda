"""Several tasks as one: problems of each in proportion to its weight."""
import copy
from typing import Any, Dict, List, Tuple, Union

import numpy as np

from ding_common import ConfigError, Rule
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Parts, Problem, Task, create_task
from dizoo_llm.base.task import check_values

MOST = 10_000_000  # problems of an epoch


@TASK_REGISTRY.register('mixture')
class MixtureTask(Task):
    """
    Training visits the problems of each task as often as its weight says; evaluation uses all held-out problems of all
    tasks, and reports the return of each kind. Parts of the reward of other tasks do not apply to a problem.
    """

    seconds = None  # each part has a limit of its own

    def __init__(self, parts: List[Dict[str, Any]]) -> None:
        """
        Arguments:
            - parts (:obj:`List[Dict]`): For each task what ``env.task`` would be, and ``weight``, its relative \
                frequency (default 1). All problems of all tasks make an epoch; those of tasks that their weight \
                favours occur more than once in it.
        """
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            raise ConfigError(f'env.task.parts = {parts!r:.200}: must be a list of dicts, each like env.task.')
        weight = [part.get('weight', 1) for part in parts]
        for i, value in enumerate(weight):
            check_values(**{f'parts[{i}].weight': (value, Rule.number(0, open_low=True))})
        tasks = []
        for i, part in enumerate(parts):
            tasks.append(create_task({k: v for k, v in part.items() if k != 'weight'}, f'env.task.parts[{i}]'))
            if isinstance(tasks[-1], MultiTurnTask):
                raise ConfigError(
                    f'env.task.parts[{i}]: {type(tasks[-1]).__name__} has several turns, which a mixture cannot have.'
                )
        self._set(tasks)
        self._check()
        share = np.array(weight) / sum(weight)
        epoch = max(len(task) / s for task, s in zip(tasks, share))
        number = [max(len(task), round(epoch * s)) for task, s in zip(tasks, share)]
        if sum(number) > MOST:
            sizes = ', '.join(f'{len(task):,} problems of weight {w:g}' for task, w in zip(tasks, weight))
            raise ConfigError(
                f'env.task.parts: an epoch over all problems would have {sum(number):,} of them, at most {MOST:,} are '
                f'allowed ({sizes}). Change the weights, or lower the size of the largest task.'
            )
        self._interleave(number)

    def _set(self, tasks: List[Task]) -> None:
        self._tasks = tasks
        self.weights = {name: weight for task in tasks for name, weight in task.weights.items()}
        self.return_part, self.must_end, self.tools = tasks[0].return_part, tasks[0].must_end, tasks[0].tools
        self.listed = all(task.listed for task in tasks)

    def _check(self) -> None:
        for task in self._tasks:
            for name in ('return_part', 'must_end', 'tools'):
                if getattr(task, name) != getattr(self, name):
                    raise ConfigError(
                        f'env.task.parts: {type(self._tasks[0]).__name__} has {name} = {getattr(self, name)!r}, '
                        f'{type(task).__name__} has {getattr(task, name)!r}; they must be equal.'
                    )
            for name, weight in task.weights.items():
                if weight != self.weights[name]:
                    raise ConfigError(
                        f'env.task.parts: the reward part {name!r} has the weights {weight:g} and '
                        f'{self.weights[name]:g} in different tasks; they must be equal.'
                    )

    def _interleave(self, number: List[int]) -> None:
        """Spread ``number`` problems of each task evenly."""
        part = np.repeat(np.arange(len(number)), number)
        place = np.concatenate([np.arange(n) for n in number])
        order = np.argsort((place + 0.5) / np.repeat(number, number), kind='stable')
        self._part, self._place = part[order], place[order]

    def __len__(self) -> int:
        return len(self._part)

    def problem(self, index: int) -> Problem:
        part = int(self._part[index])
        task = self._tasks[part]
        problem = task.checked_problem(int(self._place[index]) % len(task))
        kind = problem.metadata.get('kind') or type(task).__name__
        return problem._replace(metadata=dict(kind=kind, part=part, of_task=problem.metadata))

    def score(self, problem: Problem, completion: str) -> Parts:
        task, problem = self._of(problem)
        parts = task.checked_score(problem, completion)
        return {name: parts.get(name) for name in self.weights}

    @property
    def scores_batches(self) -> bool:
        return any(task.scores_batches for task in self._tasks)

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        scored: List[Union[Parts, Exception]] = [{}] * len(problems)
        part = [problem.metadata['part'] for problem in problems]
        for number, task in enumerate(self._tasks):
            rows = [i for i, own in enumerate(part) if own == number]
            own = task.checked_scores([self._of(problems[i])[1] for i in rows], [completions[i] for i in rows])
            for i, found in zip(rows, own):
                scored[i] = {name: found.get(name) for name in self.weights} if isinstance(found, dict) else found
        return scored

    def demonstration(self, problem: Problem) -> str:
        task, problem = self._of(problem)
        return task.demonstration(problem)

    @property
    def demonstrates(self) -> bool:
        return all(task.demonstrates for task in self._tasks)

    def _of(self, problem: Problem) -> Tuple[Task, Problem]:
        """The task of a problem, and the problem as the task gave it."""
        return self._tasks[problem.metadata['part']], problem._replace(metadata=problem.metadata['of_task'])

    def evaluation(self) -> Task:
        other = copy.copy(self)
        other._set([task.evaluation() for task in self._tasks])
        other._interleave([len(task) for task in other._tasks])
        return other
