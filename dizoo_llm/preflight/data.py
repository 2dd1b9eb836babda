"""What is wrong with the problems of a task: repeated, contradicting, and in training and evaluation at once."""
from typing import Dict, Iterator, List

from dizoo_llm.base import Problem, Task
from dizoo_llm.data.facts import as_written

from .finding import Finding, Found, finding, share

MOST = 100_000  # problems that are read, spread over all
REPEATED = 0.05  # share of repeated problems beyond which it is a finding

Groups = Dict[bytes, List[int]]


def of_data(task: Task) -> Found:
    """The problems of a task, and those held out. Only problems of data may not repeat: a task that makes them may."""
    held_out = task.evaluation()
    training = _read(task)
    groups: Groups = {}  # indices of the problems that are the same
    for i, problem in training.items():
        groups.setdefault(as_written(problem), []).append(i)
    lines = [f'{len(task):,} problems for training, {len(groups):,} different ones among the {len(training):,} read']
    checks = (_repeated, _contradictions, _empty) if task.listed else ()
    findings = [each for check in checks for each in check(training, groups)]
    if held_out is task:
        lines.append('evaluation uses the training problems')
    else:
        evaluated = _read(held_out)
        lines.append(f'{len(held_out):,} problems held out')
        findings += _leaks(evaluated, groups)
    return Found(lines, findings)


def _read(task: Task) -> Dict[int, Problem]:
    return {i: task.checked_problem(i) for i in range(0, len(task), max(1, -(-len(task) // MOST)))}


def _repeated(problems: Dict[int, Problem], groups: Groups) -> Iterator[Finding]:
    number = len(problems) - len(groups)
    if number > REPEATED * len(problems):
        one = max(groups.values(), key=len)
        yield finding(
            'repeated', f'{share(number, len(problems))} problems repeat another one, such as '
            f'{problems[one[0]].text!r:.80} ({len(one)} times). They count as often; remove them',
            repeated=number
        )


def _contradictions(problems: Dict[int, Problem], groups: Groups) -> Iterator[Finding]:
    """Problems with one text and several answers, whose case does not count, as that of the text does not."""
    found = []
    for indices in groups.values():
        answers = {problems[i].answer.strip().casefold(): problems[i].answer for i in indices if problems[i].answer}
        if len(answers) > 1:
            found.append((indices[0], sorted(answers.values())))
    if found:
        index, answers = found[0]
        told = ' and '.join(f'{a!r:.40}' for a in answers[:2])
        yield finding(
            'contradiction', f'{len(found):,} questions have different answers, such as {problems[index].text!r:.80}: '
            f'{told}. One of them is paid for nothing',
            questions=len(found),
            problem=index
        )


def _empty(problems: Dict[int, Problem], groups: Groups) -> Iterator[Finding]:
    without = [i for i, p in problems.items() if not p.answer.strip()]
    if 0 < len(without) < len(problems):  # a task without answers scores otherwise
        told = f'{share(len(without), len(problems))} problems have no answer, such as problem {without[0]}'
        yield finding('no_answer', told, problems=without[:20])


def _leaks(evaluated: Dict[int, Problem], training: Groups) -> Iterator[Finding]:
    both = [i for i, problem in evaluated.items() if as_written(problem) in training]
    if both:
        yield finding(
            'leak', f'{share(len(both), len(evaluated))} evaluation problems are in the training data too, such as '
            f'{evaluated[both[0]].text!r:.80}. Evaluation does not tell what is learned; hold out other ones',
            problems=len(both)
        )
