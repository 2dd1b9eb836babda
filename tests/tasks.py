"""A task of one prompt that cannot be scored."""
from dizoo_llm.tasks import Problem, Task


class Ask(Task):
    weights = dict(right=1.0)

    def __init__(self, prompt):
        self.prompt = prompt

    def __len__(self):
        return 1

    def problem(self, index):
        return Problem(self.prompt)

    def score(self, problem, completion):
        raise ValueError('b' * 10 ** 6)
