"""A handful of a task's problems, which a tiny model can learn by heart if their reward can be learned at all."""
from typing import Any, Callable, Dict, List

from ding_common import ConfigError, Rule
from dizoo_llm.base import TASK_REGISTRY, Problem, Task, create_task
from dizoo_llm.base.task import check_values

from .texts import right

LOOKED_AT = 1000  # problems among which the shortest are chosen
PROMPT = 200  # characters of a prompt that the tiny model reads
WRONG = list('0123456789abcdefghijklmnopqrstuvwxyz')  # tokens that a policy can write wrong answers with


@TASK_REGISTRY.register('few')
class FewTask(Task):
    """
    The problems of another task with the shortest right completions, all of them different. The scorer gets the
    problems as they are; the policy reads the end of a long prompt. Tokens are words, or characters where right
    completions have other white space than one blank between words.
    """

    listed = True
    demonstrates = True

    def __init__(self, task: Dict, number: int = 4, form: str = 'demonstration') -> None:
        """
        Arguments:
            - task (:obj:`Dict`): Config of a task of one turn, with reference answers.
            - number (:obj:`int`): Of problems at most.
            - form (:obj:`str`): Of right completions, ``'demonstration'`` or one of ``FORMS``.
        """
        check_values(number=(number, Rule.integer(1)))
        self._task = create_task(dict(task))
        shown: Dict[str, Problem] = {}
        for i in range(0, len(self._task), max(1, -(-len(self._task) // LOOKED_AT))):
            problem = self._task.checked_problem(i)
            shown.setdefault(right(self._task, problem).get(form, ''), problem)
        shown.pop('', None)
        if not shown:
            raise ConfigError(f'env.task.form = {form!r}: no problem has such a right completion.')
        self._shown = sorted(shown, key=len)[:number]
        self._own = [shown[text] for text in self._shown]
        self.weights, self.return_part = self._task.weights, None
        self.seconds, self.must_end = None, False
        self._by_words = all(text == ' '.join(text.split()) for text in self._shown)
        cut: Callable = str.split if self._by_words else list
        texts = [*self._shown, *(self.problem(i).prompt for i in range(len(self)))]
        tokens = list(dict.fromkeys([*WRONG, *(token for text in texts for token in cut(text))]))
        self.longest = max(len(cut(text)) for text in self._shown)  # tokens of a right completion
        if self._by_words:
            self.words = tokens
        else:
            self.chars = ''.join(tokens)

    def __len__(self) -> int:
        return len(self._own)

    def problem(self, index: int) -> Problem:
        text = self._own[index].text
        text = ' '.join(text.split()) if self._by_words else text
        text = text if len(text) <= PROMPT else f'{index} {text[-PROMPT:]}'
        return Problem(text, self._own[index].answer, dict(index=index))

    def score_batch(self, problems: List[Problem], completions: List[str]) -> List[Any]:
        return self._task.checked_scores([self._own[p.metadata['index']] for p in problems], completions)

    def demonstration(self, problem: Problem) -> str:
        return self._shown[problem.metadata['index']]
