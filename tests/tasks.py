"""A game, a task of one prompt that cannot be scored, and tasks that score batches."""
from dizoo_llm.tasks import MultiTurnTask, Problem, Task


class Game(MultiTurnTask):
    """Several turns after each of ``prompts``, without a state."""
    weights, prompts = dict(right=1.0), ('a', )

    def __len__(self):
        return len(self.prompts)

    def problem(self, index):
        return Problem(self.prompts[index])

    def begin(self, problem, seed):
        return None


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


def in_batches(monkeypatch, kind):
    """Give a task a ``score_batch`` that returns what its ``score`` returns or raises, with the same last bit. Returns
    a list that grows by the problems and the completions of each call in this process."""
    calls = []

    def score_batch(self, problems, completions):
        calls.append((problems, completions))
        return [alone(self, *row) for row in zip(problems, completions)]

    def alone(self, problem, completion):
        try:
            return self.score(problem, completion)
        except Exception as error:
            return error

    monkeypatch.setattr(kind, 'score_batch', score_batch)
    return calls
