"""What is wrong with the problems of a task: repeated, contradicting, and in training and evaluation at once."""
from typing import Dict, List

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
    groups = _groups(training)
    lines = [f'{len(task):,} problems for training, {len(groups):,} different ones among the {len(training):,} read']
    checks = (_repeated, _contradictions, _empty) if task.listed else ()
    findings = [each for check in checks for each in check(training, groups)]
    if held_out is task:
        lines.append('evaluation uses the training problems')
    else:
        evaluated = _read(held_out)
        lines.append(f'{len(held_out):,} problems held out')
        findings += _leaks(evaluated, _groups(evaluated), groups)
    return Found(lines, findings)


def _read(task: Task) -> Dict[int, Problem]:
    return {i: task.checked_problem(i) for i in range(0, len(task), max(1, -(-len(task) // MOST)))}


def _groups(problems: Dict[int, Problem]) -> Groups:
    """Indices of the problems that are the same."""
    groups: Groups = {}
    for i, problem in problems.items():
        groups.setdefault(as_written(problem), []).append(i)
    return groups


def _repeated(problems: Dict[int, Problem], groups: Groups) -> List[Finding]:
    number = len(problems) - len(groups)
    if number <= REPEATED * len(problems):
        return []
    one = max(groups.values(), key=len)
    return [
        finding(
            'repeated', f'{share(number, len(problems))} problems repeat another one, such as '
            f'{problems[one[0]].text!r:.80} ({len(one)} times). They count as often; remove them',
            repeated=number
        )
    ]


def _contradictions(problems: Dict[int, Problem], groups: Groups) -> List[Finding]:
    """Problems with one text and several answers, whose case does not count, as that of the text does not."""
    found = []
    for indices in groups.values():
        answers = {problems[i].answer.strip().casefold(): problems[i].answer for i in indices if problems[i].answer}
        if len(answers) > 1:
            found.append((indices[0], sorted(answers.values())))
    if not found:
        return []
    index, answers = found[0]
    told = ' and '.join(f'{a!r:.40}' for a in answers[:2])
    return [
        finding(
            'contradiction', f'{len(found):,} questions have different answers, such as {problems[index].text!r:.80}: '
            f'{told}. One of them is paid for nothing',
            questions=len(found),
            problem=index
        )
    ]


def _empty(problems: Dict[int, Problem], groups: Groups) -> List[Finding]:
    without = [i for i, p in problems.items() if not p.answer.strip()]
    if not without or len(without) == len(problems):  # a task without answers scores otherwise
        return []
    told = f'{share(len(without), len(problems))} problems have no answer, such as problem {without[0]}'
    return [finding('no_answer', told, problems=without[:20])]


def _leaks(evaluated: Dict[int, Problem], of_evaluation: Groups, of_training: Groups) -> List[Finding]:
    both = [indices for fact, indices in of_evaluation.items() if fact in of_training]
    if not both:
        return []
    number = sum(map(len, both))
    return [
        finding(
            'leak', f'{share(number, len(evaluated))} evaluation problems are in the training data too, such as '
            f'{evaluated[both[0][0]].text!r:.80}. Evaluation does not tell what is learned; hold out other ones',
            problems=number
        )
    ]
