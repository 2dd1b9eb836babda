"""One answer."""
import verifiers.v1 as vf

from in_process import Asks, Data, Task


class Config(vf.TasksetConfig):
    first: int = 0
    problems: int = 4


class Answers(vf.Taskset[Task, Config]):

    def load(self):
        for i in range(self.config.first, self.config.first + self.config.problems):
            yield Task(Data(prompt=f'q{i}', answer=str(i)), self.config.task)


__all__ = ['Answers', 'Asks']
