"""Tasks that change one thing of another task."""
from typing import Any, Sequence

from dizoo_llm.tasks import Problem, Task


class WrappedTask(Task):
    """
    Overview:
        A task as it is; whatever a subclass does not define is the task's.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        for name in Task.__annotations__:
            setattr(self, name, getattr(task, name))

    def __getattr__(self, name: str) -> Any:
        if name == 'task' or name.startswith('__'):  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.task, name)

    def __len__(self) -> int:
        return len(self.task)

    def problem(self, index: int) -> Problem:
        return self.task.problem(index)

    def checked_problem(self, index: int) -> Problem:
        return self.task.checked_problem(index)

    def demonstration(self, problem: Problem) -> str:
        return self.task.demonstration(problem)

    @property
    def demonstrates(self) -> bool:
        return self.task.demonstrates

    def evaluation(self) -> Task:
        return self.task.evaluation()


class ChosenProblems(WrappedTask):
    """
    Overview:
        Some problems of a task. Its scorer is the task itself.
    """

    def __init__(self, task: Task, indices: Sequence[int]) -> None:
        super().__init__(task)
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def problem(self, index: int) -> Problem:
        return self.task.problem(self._indices[index])

    def checked_problem(self, index: int) -> Problem:
        return self.task.checked_problem(self._indices[index])
