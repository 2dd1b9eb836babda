"""Scorers by ``async def``: awaited together, each with its limits, tried again where that helps."""
import asyncio
import os
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from ding_common import ConfigError, TaskError
from ding_common.retry_after import retry_after
from dizoo_llm.base.awaited import Limits, await_all, is_worth_retrying, report
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import create_task
from tests.dizoo_llm.helper import PROBLEMS, Prompts, environments, interrupted, problems, python_task, section

LIMITS = Limits(concurrency=32, seconds=5.0, retries=3)
pytestmark = pytest.mark.usefixtures('quick')


class Served(Exception):
    """An error as clients of HTTP raise it."""

    def __init__(self, status, **headers):
        super().__init__(f'status {status}')
        self.status, self.headers = status, {key.replace('_', '-'): value for key, value in headers.items()}


class Asynchronous(Prompts):
    """A task of a class whose score is a coroutine."""

    def __init__(self, score, **attributes):
        super().__init__(*map(str, range(8)), scorer=score, **attributes)

    async def score(self, problem, completion):
        return dict(right=await self.scorer(problem, completion))


def failing(errors, value=1.0):
    """A scorer that raises these in turn, and then gives the value; and its calls."""
    left, calls = list(errors), []

    async def score():
        calls.append(time.monotonic())
        if left:
            raise left.pop(0)
        return value

    return score, calls


def test_all_of_a_batch_wait_at_once_up_to_a_bound_and_keep_their_order():
    running, most = 0, 0

    async def score(problem, completion):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02 if problem.answer in '02' else 0.001)
        running -= 1
        return float(problem.answer)

    for concurrency in (3, 8):
        most = 0
        task = Asynchronous(score, concurrency=concurrency)
        assert task.scores_batches
        assert task.checked_scores(problems(task), [''] * 8) == [dict(right=float(i)) for i in range(8)]
        assert most == concurrency
    assert task.checked_score(task.problem(3), '') == dict(right=3.0)


@pytest.mark.parametrize(
    'scorer', [
        'async def score(problem, completion): return float(completion == str(problem["answer"]))',
        'async def score(completion, answer, **others): return completion == str(answer)',
        'class S:\n    async def __call__(self, problem, completion): return completion == str(problem["answer"])\n'
        'score = S()',
        'async def score(solution_str, ground_truth): return dict(score=solution_str == ground_truth)',
        'weights = dict(score=1.0, short=0.5)\n'
        'async def score(completion, answer): return dict(score=completion == str(answer), short=len(completion) < 2)',
    ]
)
def test_functions_of_a_python_file(tmp_path, scorer):
    task = python_task(tmp_path, f'{PROBLEMS}{scorer}\n')
    for text, value in (('1', 1.0), ('33', 0.0)):
        assert task.checked_score(task.problem(0), text) == dict.fromkeys(task.weights, value)
    assert task.scores_batches and task.weights.get('short') == (0.5 if 'short' in scorer else None)


def test_beside_ordinary_functions_several_wait_together():
    met = []

    def scorer(value):

        async def score(completion):
            met.append(value)
            while len(met) < 2:  # waits for the other one
                await asyncio.sleep(0.001)
            return value

        return score

    rows, reward = [dict(question='1 + 1', answer='2')], dict(right='exact', first=scorer(0.5), second=scorer(0.25))
    task = create_task(dict(type='file', path=rows, reward=reward, seconds=5, retries=0))
    assert task.checked_scores(problems(task), ['2']) == [dict(right=1.0, first=0.5, second=0.25)]
    assert task.evaluation().limits_each and task.scores_batches


class OfLibrary(Exception):
    pass


OfLibrary.__name__ = 'APIConnectionError'


def caused(by):
    error = ValueError('of a wrapper')
    error.__cause__ = by
    return error


AGAIN = [
    *(kind() for kind in (ConnectionRefusedError, TimeoutError, asyncio.TimeoutError, OfLibrary)),
    *map(Served, (429, 500, 599)), *map(caused, (ConnectionResetError(), Served(503)))
]
ONCE = [*map(Served, (400, 428, 600)), ValueError('nonsense'), OSError('no such file'), RuntimeError()]


@pytest.mark.parametrize('error', [*AGAIN, *ONCE], ids=repr)
def test_what_is_tried_again(error):
    again = error in AGAIN
    assert is_worth_retrying(error) == again
    score, calls = failing([error])
    found, = await_all([score], LIMITS)
    assert found == (1.0 if again else error) and len(calls) == 1 + again


@pytest.mark.parametrize('carried', ['status_code', 'status', 'code', 'response'])
def test_a_status_as_the_clients_of_http_carry_it(carried):
    error = RuntimeError()
    setattr(error, carried, SimpleNamespace(status_code=502, headers={}) if carried == 'response' else 502)
    assert is_worth_retrying(error)


def test_retries_end_and_only_their_row_is_lost():
    for retries in (0, 3):
        (lost, calls), (good, _) = failing([ConnectionError('gone')] * 9), failing([])
        found = await_all([lost, good], LIMITS._replace(retries=retries))
        assert isinstance(found[0], ConnectionError) and found[1] == 1.0 and len(calls) == 1 + retries
    assert await_all([], LIMITS) == []


def test_waits_double_and_do_not_change_pythons_random_numbers():
    import random
    random.seed(5)
    before = random.getstate()
    score, at = failing([ConnectionError()] * 6)
    await_all([score], LIMITS._replace(retries=6))
    waits = [b - a for a, b in zip(at, at[1:])]
    assert len(waits) == 6 and all(wait >= 0.0025 * 2 ** i for i, wait in enumerate(waits))
    assert random.getstate() == before


def test_retry_after_holds_for_all():
    limited, calls = failing([Served(429, Retry_After='0.3')])
    later, other = failing([])

    async def after():
        while not calls:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        return 0.0

    found = await_all([limited, after, later], LIMITS._replace(concurrency=2))
    assert found == [1.0, 0.0, 1.0]
    assert calls[1] - calls[0] >= 0.29 and other[0] - calls[0] >= 0.29


def test_retry_after_as_a_date():
    error = caused(Served(429, Retry_After=formatdate(time.time() + 500, usegmt=True)))
    assert 400 < retry_after(error.__cause__.headers) <= 500
    assert retry_after({'Retry-After': formatdate(time.time() - 500, usegmt=True)}) == 0


@pytest.mark.parametrize('value', ['soon', 'nan', '', 'Mon, 01 Jan 2024 00:00:00 +99999999999999', [1], b'x', {}])
def test_a_retry_after_that_is_nonsense_costs_no_other_row(value):
    limited, calls = failing([Served(429, Retry_After=value)])
    other, _ = failing([])
    assert retry_after({'Retry-After': value}) is None
    assert await_all([limited, other], LIMITS) == [1.0, 1.0] and len(calls) == 2


def test_a_server_that_asks_for_an_hour_costs_the_row_at_once():
    limited, calls = failing([caused(Served(429, Retry_After='3600'))])
    found, = await_all([limited], LIMITS)
    assert isinstance(found.__cause__, Served) and len(calls) == 1


def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again():
    ended, begun, over = [], [], []

    async def slow():
        begun.append(1)
        try:
            await asyncio.sleep(60 if len(begun) < 3 else 0)
            return 1.0
        except asyncio.CancelledError:
            ended.append(1)
            raise

    async def deaf():
        while not over:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    start = time.monotonic()
    found = await_all([slow, deaf], Limits(2, 0.2, 2))
    took = time.monotonic() - start
    over.append(1)
    assert found[0] == 1.0 and len(begun) == 3 and len(ended) == 2
    assert isinstance(found[1], TimeoutError) and 'longer than 0.2 s' in str(found[1])
    assert took < 30


def test_one_that_does_not_await_is_named_and_later_ones_score():
    free = threading.Event()

    async def blocking():
        free.wait(30)

    async def good():
        return 1.0

    await_all([good], LIMITS)  # starts the event loop
    found = await_all([good, blocking, good], Limits(1, 0.5, 3, grace=0.5))
    free.set()
    assert found[0] == 1.0
    for lost in found[1:]:
        assert isinstance(lost, TimeoutError) and 'blocks the event loop' in str(lost)
    assert await_all([good], LIMITS) == [1.0]


@pytest.mark.parametrize('error', [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_what_would_end_the_event_loop_costs_its_row(error):
    lost, _ = failing([error])
    good, _ = failing([])
    found = await_all([lost, good], LIMITS)
    assert isinstance(found[0], RuntimeError) and found[1] == 1.0


def test_a_client_finds_its_event_loop_in_every_batch_and_in_the_form_of_trl():
    loops = []

    async def mine(completion):
        loops.append(asyncio.get_running_loop())
        return 1.0

    async def trl(prompts, completions):
        return [await mine(completion) for completion in completions]

    rows = [dict(question='1 + 1', answer='2')]
    for reward in (mine, mine, trl):
        task = create_task(dict(type='file', path=rows, reward=reward))
        assert list(task.checked_scores(problems(task), ['2'])[0].values()) == [1.0]
    assert len(loops) == 3 and len(set(map(id, loops))) == 1


def test_a_fork_has_an_event_loop_of_its_own():
    good, _ = failing([])
    assert await_all([good], LIMITS) == [1.0]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if await_all([good], LIMITS) == [1.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_step_that_takes_too_long_ends_the_coroutines():
    ended = []

    async def score(problem, completion):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    task = Asynchronous(score)
    with interrupted():
        task.score_batch(problems(task), [''] * 8)
    until = time.monotonic() + 5
    while len(ended) < 8 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(ended) == 8


def test_a_failure_drops_its_row_and_says_why():

    async def score(problem, completion):
        if completion == 'lost':
            raise ConnectionError('no route')
        return 1.0 if completion == 'good' else float('nan')

    task = Asynchronous(score, retries=1)
    good, lost, wrong = task.checked_scores(problems(task)[:3], ['good', 'lost', 'nan'])
    assert good == dict(right=1.0)
    assert 'ConnectionError: no route' in lost.message and 'test_awaited.py' in lost.message
    assert 'must be a finite number' in wrong.message
    with pytest.raises(TaskError, match='no route'):
        task.checked_score(task.problem(0), 'lost')


def test_the_end_of_a_run_counts_once(tmp_path, capsys):
    scorer = (
        'failed = []\nasync def score(problem, completion):\n    if not failed:\n        failed.append(1)\n'
        '        raise ConnectionError("once")\n    if problem["answer"] == 2:\n        raise ValueError("never")\n'
        '    return 1.0\n'
    )
    (tmp_path / 't.py').write_text(PROBLEMS + scorer)
    collects, evaluates = environments(section(str(tmp_path / 't.py')))
    assert collects[0].scorer is not None
    task = collects[0]._env.task
    found = task.checked_scores(problems(task), [''] * 9)
    assert [isinstance(row, TaskError) for row in found] == [i == 1 for i in range(9)]
    capsys.readouterr()
    for env in (*collects, *evaluates):
        env.close()
    out = capsys.readouterr().out
    assert out.count('\n') == 1
    assert out.startswith('scorers that wait: 9 scores, 1 retries, 1 failures, 0.')
    assert report() is None


@pytest.mark.parametrize('key, value', [('concurrency', 0), ('retries', -1)])
def test_wrong_limits(key, value):

    async def score(completion):
        return 1.0

    with pytest.raises(ConfigError, match=f'env.task.{key} = {value}: must be an integer of at least'):
        create_task(dict(type='file', path=[dict(question='1', answer='2')], reward=score, **{key: value}))
    with pytest.raises(ConfigError, match=f'{key} = {value}: must be an integer of at least'):
        TokenEnv(Asynchronous(score, **{key: value}))


def test_a_batch_that_is_async_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='score_batch: is defined by async def.*only score'):
        python_task(tmp_path, f'{PROBLEMS}async def score_batch(problems, completions):\n    return []\n')
