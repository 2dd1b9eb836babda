"""What a scorer pays: for right completions, for junk, and again."""
import random
import statistics
import time
from functools import partial
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ding_common import TaskError
from dizoo_llm.base import Parts, Problem, Task

from .finding import Finding, Found, finding, share
from .texts import FORMS, LENGTHS, WRONG, junk, long, right

PROBLEMS = (3, 20)  # at least and at most: examined with junk, spread over all
ANSWERS = (10, 200)  # whose right completion is scored
BUDGET = 20.0  # seconds for each of both, by which their numbers are chosen
SLOW = 1.0  # seconds of a score, beyond which an update of 64 rows takes a minute more
PAID = 0.25  # share of problems in which a kind of junk is paid; fewer may be by chance, as a prompt that ends with 0
LONG_SECONDS = 0.5  # of a long text, beyond which no longer one is tried
RIGHT = 'right'


class Scored(NamedTuple):
    """A text and what the scorer said of it: parts of the reward, or why there are none."""
    problem: int
    kind: str
    text: str
    parts: Optional[Parts]
    failed: Optional[str]
    seconds: float
    reward: Optional[float]


Ask = Callable[[int, Problem, str, str], Scored]


def of_reward(task: Task, weights: Dict[str, float]) -> Found:
    """Compare what the scorer of a task of one turn pays for right completions and for junk, twice."""
    ask = partial(_ask, task, weights)
    drawn = random.Random(0).sample(range(len(task)), min(len(task), ANSWERS[1]))  # data may repeat in order
    problems = {i: task.checked_problem(i) for i in drawn}
    known = [i for i, problem in problems.items() if right(task, problem)]
    if not known:
        return _of_junk_alone(ask, problems)
    form, seconds = _form(ask, task, {i: problems[i] for i in known[:5]})
    problems = {i: problems[i] for i in known[:_within(ANSWERS, seconds)]}
    shown = {i: right(task, problem)[form] for i, problem in problems.items()}
    good = [ask(i, problems[i], RIGHT, text) for i, text in shown.items()]
    few = list(problems)[:_within(PROBLEMS, 10 * seconds)]
    bad = _junk(ask, few, problems, shown)
    again = [ask(i, problems[i], RIGHT, shown[i]) for i in few]
    findings = [
        *(list(_pays(good, bad, form)) or _rejected(good, bad)),
        *_changes(good, again),
        *_constant(weights, good, bad),
        *_slow(good),
    ]
    failures = list(_failures(good, bad)) or list(_long(ask, few[0], problems[few[0]], seconds))
    mean = statistics.mean(_rewards(good) or [0.0])
    floor = _floor(bad)
    paid = sum(reward > floor for reward in _rewards(good))
    told = f'right completions ({form}, for example {good[0].text!r:.60}): {share(paid, len(good))} are paid more'
    return Found(
        [f'{told} than a wrong answer', *_table(good, bad)], failures + findings, form if mean > floor else None, mean,
        seconds
    )


def _within(numbers: Tuple[int, int], seconds: float) -> int:
    """How many are examined, if one takes so long."""
    least, most = numbers
    return max(least, min(most, int(BUDGET / max(seconds, 1e-6))))


def _floor(bad: Sequence[Scored]) -> float:
    """What is paid for a wrong answer in the right form; without one, for the junk in the middle."""
    wrong = [s for s in bad if s.kind == WRONG]
    return statistics.median(_rewards(wrong) or _rewards(bad) or [0.0])


def _rewards(rows: Iterable[Scored]) -> List[float]:
    return [s.reward for s in rows if s.reward is not None]


def _ask(task: Task, weights: Dict[str, float], index: int, problem: Problem, kind: str, text: str) -> Scored:
    begun = time.perf_counter()
    scored = task.checked_scores([problem], [text])[0]
    seconds = time.perf_counter() - begun
    if isinstance(scored, TaskError):
        return Scored(index, kind, text, None, scored.message, seconds, None)
    reward = sum(weights[name] * (value or 0.0) for name, value in scored.items())
    return Scored(index, kind, text, scored, None, seconds, reward)


def _form(ask: Ask, task: Task, few: Dict[int, Problem]) -> Tuple[str, float]:
    """The form of right completions for which most is paid, and the seconds of a score."""
    forms = list(right(task, next(iter(few.values()))))
    scored = {form: [ask(i, p, form, right(task, p)[form]) for i, p in few.items()] for form in forms}
    best = max(forms, key=lambda form: sum(s.reward or 0.0 for s in scored[form]))
    return best, statistics.median(s.seconds for s in scored[best])


def _junk(ask: Ask, few: List[int], problems: Dict[int, Problem], shown: Dict[int, str]) -> List[Scored]:
    """What is paid for junk. A kind that cannot be scored is asked for once."""
    found, failed = [], set()
    for index in few:
        own = problems[index]
        others = [i for i, p in problems.items() if not _same(p.answer, own.answer) and shown[i] != shown[index]]
        texts = junk(own, shown[index], [problems[i] for i in others], [shown[i] for i in others])
        for kind, text in texts.items():
            if kind not in failed:
                found.append(ask(index, own, kind, text))
                failed.update([kind] if found[-1].failed is not None else [])
    return found


def _same(answer: str, other: str) -> bool:
    """Whether two answers are one in other forms: x and X, 1,000 and 1000.0."""
    if answer.strip().casefold() == other.strip().casefold():
        return True
    try:
        return float(answer.replace(',', '')) == float(other.replace(',', ''))
    except ValueError:
        return False


def _of_junk_alone(ask: Ask, problems: Dict[int, Problem]) -> Found:
    few = list(problems.items())[:PROBLEMS[0]]
    bad, again = ([ask(i, p, kind, text) for i, p in few for kind, text in junk(p, '', [], []).items()] for _ in '12')
    paid = set(_rewards(bad))
    findings = [*_failures([], bad), *_changes(bad, again)]
    if len(paid) == 1 and max(paid) > 0:
        findings.append(finding('always_paid', f'the scorer pays {max(paid):g} for every junk text'))
    return Found(['no problem has an answer: only junk is scored', *_table([], bad)], findings)


def _failures(good: Sequence[Scored], bad: Sequence[Scored]) -> Iterator[Finding]:
    failed, junk_failed = ([s for s in rows if s.failed is not None] for rows in (good, bad))
    if failed:
        yield finding(
            'not_scored', f'the scorer fails for {share(len(failed), len(good))} right completions: '
            f'{failed[0].failed}. Such rows are dropped in training',
            failed=len(failed)
        )
    elif junk_failed:
        kinds = list(dict.fromkeys(s.kind for s in junk_failed))
        yield finding(
            'junk_not_scored',
            f"the scorer fails for junk ({', '.join(kinds)}): {junk_failed[0].failed:.300}. A policy "
            'writes such texts, and each costs its row. Pay 0 for what cannot be read',
            kinds=kinds
        )


def _pays(good: Sequence[Scored], bad: Sequence[Scored], form: str) -> Iterator[Finding]:
    """The scorer cannot tell right completions from others, in most problems."""
    tried = f" (none of the forms {', '.join(FORMS)})" if form in FORMS else ''
    rewards = set(_rewards([*good, *bad]))
    if len(rewards) == 1:
        reward, = rewards
        kind, what, tried = ('always_paid', 'everything', '') if reward > 0 else ('no_success', 'nothing', tried)
        told = f'the scorer pays for {what}: right completions and junk all have the reward {reward:g}{tried}'
        yield finding(kind, told, reward=reward)
        return
    worse, problems = _worse(good, bad), {s.problem for s in bad}
    if 2 * len({shown.problem for shown, _ in worse}) <= len(problems):
        return
    shown, other = max(worse, key=lambda pair: pair[1].reward)
    unpaid = {s.problem for s in good if s.reward is not None and s.reward <= min(0.0, _floor(bad))}
    if 2 * len(unpaid & problems) <= len(problems):
        yield _hack(shown, other, worse, len(problems))
        return
    instead = f', but {other.reward:g} for {other.text!r:.60} ({other.kind})' if other.reward > 0 else ''
    yield finding(
        'wrong_key', f'the scorer does not pay for {share(len(unpaid), len(good))} right completions{tried}, such as '
        f'{shown.text!r:.60} of problem {shown.problem} ({shown.reward:g}){instead}: check the answer key and how '
        'answers are compared',
        problem=shown.problem,
        rejected=len(unpaid)
    )


def _worse(good: Sequence[Scored], bad: Sequence[Scored]) -> List[Tuple[Scored, Scored]]:
    """Right completions, each with junk that is paid at least as much."""
    right_of = {s.problem: s for s in good if s.reward is not None}
    paid = [s for s in bad if s.reward is not None and s.problem in right_of]
    return [(right_of[s.problem], s) for s in paid if s.reward >= right_of[s.problem].reward]


def _hack(shown: Scored, other: Scored, worse: List[Tuple[Scored, Scored]], problems: int) -> Finding:
    number = len({s.problem for s, each in worse if each.kind == other.kind})
    return finding(
        'junk_pays', f'junk pays: for problem {shown.problem} the text {other.text!r:.60} ({other.kind}) gets '
        f'{other.reward:g}, the right completion {shown.text!r:.60} {shown.reward:g}; so in {number} of '
        f'{problems} problems. Make the scorer stricter',
        kinds=list(dict.fromkeys(s.kind for _, s in worse if s.reward > 0)),
        problem=shown.problem,
        text=other.text[:200]
    )


def _rejected(good: Sequence[Scored], bad: Sequence[Scored]) -> Iterator[Finding]:
    """Some right completions are not paid, or a kind of junk is paid in some problems."""
    rejected = [s for s in good if s.reward is not None and s.reward <= _floor(bad)]
    if rejected:
        first = rejected[0]
        yield finding(
            'answers_rejected', f'the scorer does not pay for {share(len(rejected), len(good))} right completions, '
            f'such as {first.text!r:.60} of problem {first.problem}: correct these answers, or remove the problems',
            problems=[s.problem for s in rejected][:20]
        )
    problems, of_kind = len({s.problem for s in bad}), {}
    for shown, other in _worse(good, bad):
        if other.reward > 0:
            of_kind.setdefault(other.kind, []).append((shown, other))
    paid = [pair for pairs in of_kind.values() if len(pairs) >= PAID * problems for pair in pairs]
    if paid:
        yield _hack(*paid[0], paid, problems)


def _changes(first: Sequence[Scored], again: Sequence[Scored]) -> Iterator[Finding]:
    """``again`` has the first of ``first``."""
    other = [(a, b) for a, b in zip(first, again) if a.parts != b.parts]
    if other:
        a, b = other[0]
        yield finding(
            'not_deterministic', f'scored again, {share(len(other), len(again))} right completions have another '
            f'reward: {a.text!r:.60} {a.reward} and then {b.reward}. This is noise in every group',
            problem=a.problem
        )


def _constant(weights: Dict[str, float], good: Sequence[Scored], bad: Sequence[Scored]) -> Iterator[Finding]:
    """Parts that are the same for right completions and for junk."""
    parts = [s.parts for s in (*good, *bad) if s.parts is not None]
    for name, weight in weights.items():
        values = {p.get(name) for p in parts}
        if len(weights) > 1 and weight and len(values) == 1:
            value, = values
            told = 'never applies' if value is None else f'is {value:g} for right completions and for junk alike'
            yield finding('constant_part', f'the reward part {name} {told}. It teaches nothing', part=name)


def _slow(good: Sequence[Scored]) -> Iterator[Finding]:
    seconds = statistics.median(s.seconds for s in good)
    if seconds > SLOW:
        told = f'a score takes {seconds:.1f} s, one after the other. Score batches (score_batch), or await (async def)'
        yield finding('slow', told, seconds=seconds)


def _long(ask: Ask, index: int, problem: Problem, usual: float) -> Iterator[Finding]:
    """Longer and longer texts, as long as they are scored fast. After a slow one another: the machine may be busy."""
    most = LONG_SECONDS + 10 * usual
    for length in LENGTHS:
        kind = f'{length:,} characters'
        scored = ask(index, problem, kind, long(length))
        if scored.failed is not None:
            told = f'the scorer fails for a text of {kind}: {scored.failed:.300}'
            yield finding('junk_not_scored', told, length=length)
            return
        seconds = scored.seconds
        if seconds > most:  # another text, because scorers may keep scores
            seconds = min(seconds, ask(index, problem, kind, long(length + 2)).seconds)
        if seconds > most:
            told = f'a text of {kind} takes {seconds:.1f} s to score, a right completion {usual:.2g} s'
            yield finding('slow', f'{told}. Limit what is read of a completion', length=length, seconds=seconds)
            return


def _table(good: Sequence[Scored], bad: Sequence[Scored]) -> List[str]:
    """A line for each kind of text: the mean reward, and its share of that of right completions."""
    kinds: Dict[str, List[Scored]] = {}
    for s in (*good, *bad):
        kinds.setdefault(s.kind, []).append(s)
    best, lines = statistics.mean(_rewards(good) or [0.0]), []
    for kind, rows in kinds.items():
        rewards = _rewards(rows)
        if not rewards:
            lines.append(f'  {kind}: not scored')
            continue
        mean = statistics.mean(rewards)
        part = f', {100 * mean / best:.0f} % of a right completion' if mean >= 0 and best > 0 else ''
        lines.append(f'  {kind}: {mean:.3g}{part}')
    return lines
