"""Twenty set-ups that cannot teach what they should, each for one planted cause that is there before a run."""
import random
import time
from typing import Any, Dict, List, NamedTuple, Optional

import benchmarks.health.broken_runs  # noqa: F401  registers its tasks
from dizoo_llm.base.task import DividedTask
from dizoo_llm.tasks import TASK_REGISTRY, Problem

ROWS = [dict(question=f'What is {a} plus {b}?', answer=str(a + b)) for a in range(12) for b in range(12)]
CHARS = 'abcdefghijklmnopqrstuvwxyzW0123456789? '
LOSES = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}"


def exact(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


def none(completion: str, answer: str) -> None:
    return None


def first_number(completion: str, answer: str) -> float:
    """Fails where there is none."""
    return float(int(completion.split()[0]) == int(answer))


def by_place(completion: str, answer: str, place: int) -> float:
    """Of data without places."""
    return float(completion == answer and 1 / (place % 2) > 0)


def noisy(completion: str, answer: str) -> float:
    return exact(completion, answer) * random.random()


def slow(completion: str, answer: str) -> float:
    time.sleep(1.2)
    return exact(completion, answer)


def contains(completion: str, answer: str) -> float:
    return float(answer in completion)


def polite(completion: str, answer: str) -> float:
    return 1.0


@TASK_REGISTRY.register('leaks')
class Leaks(DividedTask):
    """A task that holds out problems which it trains."""
    weights, chars = dict(right=1.0), CHARS
    demonstrates = True

    def __init__(self) -> None:
        self._items, self._held_out = ROWS, ROWS[:20]

    def problem(self, index: int) -> Problem:
        return Problem(self._items[index]['question'], self._items[index]['answer'])

    def score(self, problem: Problem, completion: str) -> Dict[str, float]:
        return dict(right=exact(completion, problem.answer))


class SetUp(NamedTuple):
    """
    Overview:
        A set-up: its cause, the task, other keys of ``env``, whether prompts are encoded, and the chat template of a
        tokenizer of characters.
    """
    cause: str
    task: Dict[str, Any]
    env: Dict[str, Any] = {}
    tokens: bool = False
    template: Optional[str] = None


def _data(rows: List[Dict[str, Any]] = ROWS, reward: Any = exact) -> Dict[str, Any]:
    return dict(type='file', path=rows, reward=reward)


def _of_why(name: str) -> Dict[str, Any]:
    return dict(type=name)


_PLACED = [dict(row, place=i) for i, row in enumerate(ROWS)]
_SOLVED = dict(answer=0.0, solved=0.0)
OF_REWARD = {
    'the reward is always 0': SetUp('no_success', _of_why('pays_nothing')),
    'the scorer returns None for every completion': SetUp('no_success', _data(reward=none)),
    'the reward is always 1': SetUp('always_paid', _of_why('pays_everything')),
    'junk pays: any five words': SetUp('junk_pays', _of_why('pays_for_length')),
    'wrong answer key': SetUp('wrong_key', _of_why('wrong_key')),
    'the format part alone has a weight': SetUp('junk_pays', _of_why('think_answer'), dict(reward_weights=_SOLVED)),
    'the answer anywhere is paid': SetUp('junk_pays', _data(reward=contains)),
    'the scorer raises for some right answers': SetUp('not_scored', _data(_PLACED, by_place)),
    'the scorer raises without a number': SetUp('junk_not_scored', _data(reward=first_number)),
    'the reward is random': SetUp('not_deterministic', _data(reward=noisy)),
    'a score takes 1.2 s': SetUp('slow', _data(reward=slow)),
    'a part is always 1': SetUp('constant_part', _data(reward=dict(right=exact, polite=polite))),
}
OF_DATA = {
    'the template drops the system prompt': SetUp('not_encoded', _data(), dict(system_prompt='do it'), True, LOSES),
    'every third row twice': SetUp('repeated', _data([*ROWS, *ROWS[::3]])),
    'other answers to the same questions': SetUp(
        'contradiction', _data([*ROWS, *(dict(r, answer='7') for r in ROWS[:3])])
    ),
    'answers are missing': SetUp(
        'no_answer', _data([dict(r, answer=r['answer'] if i % 9 else '') for i, r in enumerate(ROWS)])
    ),
    'evaluation problems are trained': SetUp('leak', _of_why('leaks')),
    'prompts over the limit': SetUp(
        'prompt_too_long', _data(), dict(tokenizer=dict(chars=CHARS), max_prompt_length=16), True
    ),
    'completions over the limit': SetUp('cut', _of_why('think_answer'), dict(max_new_tokens=3), True),
    'a tokenizer without digits': SetUp('not_encoded', _data(), dict(tokenizer=dict(chars=CHARS[:27] + '? ')), True),
}
UNFIT = {**OF_REWARD, **OF_DATA}
