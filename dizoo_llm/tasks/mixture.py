"""Several tasks as one: problems of each in proportion to its weight."""
import copy
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from ding_common import ConfigError, Rule
from dizoo_llm.base import TASK_REGISTRY, MultiTurnTask, Parts, Problem, Reply, Task, Turn, create_task
from dizoo_llm.base.task import check_return_part, check_values

MOST = 10_000_000  # problems of an epoch
OF_PART = ('weight', 'max_turns')  # keys of a part that are not arguments of its task


@TASK_REGISTRY.register('mixture')
class MixtureTask(MultiTurnTask):
    """
    Training visits the problems of each task as often as its weight says; evaluation uses all held-out problems of all
    tasks, and reports the return of each kind. Parts of the reward of other tasks do not apply to a problem. If a task
    has several turns, so has the mixture, and the episodes of tasks of one turn end after it with their score.
    """

    seconds = None  # each part has a limit of its own

    def __init__(self, parts: List[Dict[str, Any]], return_part: Optional[str] = None) -> None:
        """
        Arguments:
            - parts (:obj:`List[Dict]`): For each task what ``env.task`` would be, and ``weight``, its relative \
                frequency (default 1). All problems of all tasks make an epoch; those of tasks that their weight \
                favours occur more than once in it. ``max_turns`` of a task of several turns is its limit in place of \
                ``env.max_turns``, at most that.
            - return_part (:obj:`Optional[str]`): Part of the reward of all tasks that evaluation reports. None: that \
                of the tasks, which must be equal.
        """
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            raise ConfigError(f'env.task.parts = {parts!r:.200}: must be a list of dicts, each like env.task.')
        weight, self._most = [part.get('weight', 1) for part in parts], [part.get('max_turns') for part in parts]
        self._reported = return_part
        tasks = [_task_of(part, f'env.task.parts[{i}]') for i, part in enumerate(parts)]
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
        self.has_turns = any(task.has_turns for task in tasks)
        self.return_part = tasks[0].return_part if self._reported is None else self._reported
        self.must_end, self.tools = tasks[0].must_end and not self.has_turns, tasks[0].tools
        self.listed = all(task.listed for task in tasks)

    def _check(self) -> None:
        equal = ['return_part'] * (self._reported is None) + ['must_end'] * (not self.has_turns) + ['tools']
        for task in self._tasks:
            if self._reported is not None:
                check_return_part(self._reported, task.weights, 'env.task.return_part')
                if self.must_end and task.return_part != self._reported:
                    raise ConfigError(
                        f'env.task.return_part = {self._reported!r}: must be {task.return_part!r}, the part that '
                        f'{type(task).__name__} sets to 0 for a cut completion (must_end).'
                    )
            for name in equal:
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

    def begin(self, problem: Problem, seed: int) -> Any:
        task, problem = self._of(problem)
        return task.checked_begin(problem, seed) if task.has_turns else None

    def respond(self, problem: Problem, state: Any, turn: Turn) -> Reply:
        task, problem = self._of(problem)
        if task.has_turns:
            return task.checked_respond(problem, state, turn)
        return Reply('', task.checked_score(problem, turn.text, turn.cut), done=True)

    def turn_limit(self, problem: Problem) -> Optional[int]:
        own, (task, problem) = self._most[problem.metadata['part']], self._of(problem)
        limits = [own, task.turn_limit(problem) if task.has_turns else None]
        return min(filter(None, limits), default=None)

    @property
    def most_turns(self) -> Optional[int]:
        limits = [*self._most, *(task.most_turns for task in self._tasks if task.has_turns)]
        return max(filter(None, limits), default=None)

    @property
    def scores_batches(self) -> bool:
        return not self.has_turns and any(task.scores_batches for task in self._tasks)

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Union[Parts, Exception]]:
        scored: List[Union[Parts, Exception]] = [{}] * len(problems)
        part = [problem.metadata['part'] for problem in problems]
        for number, task in enumerate(self._tasks):
            rows = [i for i, own in enumerate(part) if own == number]
            own = task.checked_scores([self._of(problems[i])[1] for i in rows], [completions[i] for i in rows])
            for i, found in zip(rows, own):
                scored[i] = {name: found.get(name) for name in self.weights} if isinstance(found, dict) else found
        return scored

    def demonstration(self, problem: Problem, turns: Sequence[Tuple[str, str]] = ()) -> str:
        task, problem = self._of(problem)
        return task.demonstration(problem, turns) if task.has_turns else task.demonstration(problem)

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


def _task_of(part: Dict[str, Any], where: str) -> Task:
    weight, most = part.get('weight', 1), part.get('max_turns')
    check_values(where, weight=(weight, Rule.number(0, open_low=True)), max_turns=(most, Rule.integer(1).or_none()))
    task = create_task({key: value for key, value in part.items() if key not in OF_PART}, where)
    kind = type(task).__name__
    if task.environment is not None:
        raise ConfigError(f'{where}: {kind} has its own environment. Train it alone.')
    if task.rewards_tokens:
        raise ConfigError(f'{where}: {kind} has token_rewards. Train it alone.')
    if most is not None and not task.has_turns:
        raise ConfigError(f'{where}.max_turns = {most}: {kind} has one turn. Remove it.')
    return task
