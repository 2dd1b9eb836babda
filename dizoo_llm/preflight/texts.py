"""Completions for which a scorer is asked: right ones, in the forms in which answers are written, and junk."""
from typing import Dict, List, Sequence

from dizoo_llm.base import Problem, Task

WRONG = 'answer of another problem'
MOST_LISTED = 20  # answers in the list of answers
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)  # characters of long texts
# Forms in which scorers of others expect an answer, tried where the task does not demonstrate one.
FORMS = dict(
    bare='{}',
    boxed='\\boxed{{{}}}',
    tag='<answer>{}</answer>',
    hashes='#### {}',
    sentence='The answer is {}.',
    think_tag='<think>.</think> <answer>{}</answer>',
    think_boxed='<think>.</think> \\boxed{{{}}}',
)


def right(task: Task, problem: Problem) -> Dict[str, str]:
    """Completions that should be right, by their form; empty if the problem has no answer."""
    if task.demonstrates:
        return dict(demonstration=task.demonstration(problem))
    return {form: text.format(problem.answer) for form, text in FORMS.items()} if problem.answer else {}


def junk(problem: Problem, shown: str, others: Sequence[Problem], shown_others: Sequence[str]) -> Dict[str, str]:
    """
    Completions that do not answer a problem. ``shown`` is a right one; ``others`` are problems with other answers, and
    ``shown_others`` their right completions.
    """
    found = dict(
        empty='',
        blank=' \n',
        prompt=problem.text,
        repeated='the ' * 200,
        unicode='\u202e\U0001f600\x00\ufffd e\u0301' * 20,
    )
    if others:
        found[WRONG] = shown_others[0]
        if shown != problem.answer:
            found['list of right completions'] = _listed(shown, shown_others)
        answers = [other.answer for other in others if other.answer]
        if answers and problem.answer:
            found['list of answers'] = _listed(problem.answer, answers)
    if problem.answer and problem.answer in shown and shown.replace(problem.answer, '').strip():
        found['form without the answer'] = shown.replace(problem.answer, '')
    return found


def long(length: int) -> str:
    """A text of so many characters that answers nothing."""
    return 'a ' * (length // 2)


def _listed(answer: str, others: List[str]) -> str:
    """Many answers, of which the right one is neither the first nor the last."""
    listed = list(dict.fromkeys(others))[:MOST_LISTED]
    return '\n'.join([listed[0], answer, *listed[1:], listed[-1]])
