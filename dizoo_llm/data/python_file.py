"""
A task in a user's Python file:

    def problems():
        return [dict(prompt=f'{n} + 1 =', answer=n + 1) for n in range(9)]

    def score(problem, completion):
        return float(completion.strip() == str(problem['answer']))
"""
from typing import Any, Callable, Dict, List, Optional

from ding_common import ConfigError, Rule, check_not_async, describe, run_file
from dizoo_llm.base import TASK_REGISTRY, Parts, Problem
from dizoo_llm.base.problem import as_text, check_unanswered, is_missing, is_prompt, messages_of
from dizoo_llm.base.task import as_list, check_return_part, check_values

from .listed import ListTask
from dizoo_llm.rewards.parameters import by_name, keys_of


@TASK_REGISTRY.register('python')
class PythonTask(ListTask):
    """
    Problems and scores from a user's Python file, which is executed. ``problems()`` returns a list of dicts with
    ``prompt``, ``answer`` and any further keys. ``score(problem, completion)`` gets such a dict and a text, and returns
    a number or a dict of named numbers. Its parameters are bound by name, see ``dizoo_llm/rewards/parameters.py``:
    ``score(completion, answer)`` works too. The file may define the weights of the numbers in ``weights``, and in
    ``return_part`` the one that evaluation reports as the return. In place of ``score`` it may define
    ``score_batch(problems, completions)``, which gets lists and returns a list of such scores; an exception in this
    list says that a completion cannot be scored.
    """

    def __init__(self, file: str, eval_size: int = 0, seed: int = 0, seconds: Optional[float] = 60.0) -> None:
        """
        Arguments:
            - eval_size (:obj:`int`): Number of held-out problems; 0 evaluates on the training problems.
            - seconds (:obj:`Optional[float]`): Time limit of ``score``; ``score_batch`` has ten times as long. \
                None for none. The file runs in this process, because it may load a model or keep a state: raise the \
                limit for a scorer that waits for another machine.
        """
        check_values(seconds=(seconds, Rule.number(0, open_low=True).or_none()))
        self.seconds = seconds
        where = f'env.task.file = {file!r}'
        names = run_file(file, 'env.task.file')
        self._score: Optional[Callable[[Dict, str], Any]] = names.get('score')
        self._score_batch: Optional[Callable[[List[Dict], List[str]], Any]] = names.get('score_batch')
        scores = callable(self._score) or callable(self._score_batch)
        for name, defined in (('problems', callable(names.get('problems'))), ('score or score_batch', scores)):
            if not defined:
                raise ConfigError(f'{where}: must define a function {name}.')
        self.weights = names.get('weights', dict(score=1.0))
        if not isinstance(self.weights, dict) or not self.weights or not all(
                isinstance(name, str) and Rule.number().holds(weight) for name, weight in self.weights.items()):
            raise ConfigError(f'{where}: weights = {self.weights!r:.200}, must be a dict of names and numbers.')
        self.return_part = names.get('return_part')
        check_return_part(self.return_part, self.weights, f'{where}: return_part')
        self.words, self.chars = names.get('words'), names.get('chars')
        check_not_async(names['problems'], f'{where}: problems')
        try:
            rows = list(names['problems']())
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise ConfigError(f'{where}: problems() raised {describe(error)}') from error
        problems = [_problem(f'{where}: problem {number}', row) for number, row in enumerate(rows)]
        keys = keys_of(rows)
        if callable(self._score):
            self._score = by_name(self._score, keys, False, f'{where}: score')
        if callable(self._score_batch):
            self._score_batch = by_name(self._score_batch, keys, True, f'{where}: score_batch')
        super().__init__(problems, None, eval_size, seed)

    def score(self, problem: Problem, completion: str) -> Parts:
        if not callable(self._score):
            return super().score(problem, completion)
        return self._named(self._score(problem.metadata, completion))

    def score_batch(self, problems: List[Problem], completions: List[str]) -> Any:
        scored = as_list(self._score_batch([problem.metadata for problem in problems], completions))
        return list(map(self._named, scored)) if isinstance(scored, (list, tuple)) else scored

    @property
    def demonstrates(self) -> bool:
        return False  # the file's own scorer may not accept the bare answer

    @property
    def scores_batches(self) -> bool:
        return callable(self._score_batch)

    def _named(self, scored: Any) -> Any:
        return scored if isinstance(scored, (dict, Exception)) else {next(iter(self.weights)): scored}


def _problem(where: str, row: Any) -> Problem:
    if not isinstance(row, dict) or 'prompt' not in row:
        raise ConfigError(f'{where} is {row!r:.200}, must be a dict with the key prompt.')
    prompt, answer = row['prompt'], row.get('answer')
    if not is_prompt(prompt):
        raise ConfigError(f'{where} has the prompt {prompt!r:.80}, must be text or {messages_of(prompt)}.')
    check_unanswered(prompt, where)
    if is_missing(answer):
        raise ConfigError(f'{where} has the answer {answer!r:.80}. Leave out the problem, or set its answer.')
    return Problem(prompt, '' if answer is None else as_text(answer), row)
