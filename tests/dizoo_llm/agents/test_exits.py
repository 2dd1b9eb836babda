"""A task of an agent that raises ``SystemExit`` ends asyncio's event loop, in which all agents run."""
import asyncio
import sys
import time

import pytest

from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import begin, play, turn


async def leaves(error=SystemExit):
    raise error(3)


async def begins(_):
    asyncio.create_task(leaves())
    await asyncio.sleep(60)


async def of_a_task_of_a_task(_):
    asyncio.create_task(begins(None))
    await asyncio.sleep(60)


async def awaits(_):
    await asyncio.create_task(leaves())


async def gathers(_):
    await asyncio.gather(asyncio.sleep(60), leaves(KeyboardInterrupt))


async def hides_it(_):
    try:
        await asyncio.create_task(leaves())
    except SystemExit:
        return


async def after_a_request(client):
    asyncio.create_task(leaves())
    await programs.ask(client, [programs.user('y')])


EXITS = (begins, of_a_task_of_a_task, awaits, gathers, hides_it, after_a_request)


@pytest.mark.parametrize('exits', EXITS, ids=lambda each: each.__name__)
def test_a_task_that_exits_costs_its_row_alone_and_at_once(env_of, exits):

    async def run(problem, client):
        await programs.ask(client, [programs.user('x')])
        if problem['answer'] == '0':
            await exits(client)
        await programs.ask(client, [programs.user('z')])
        return 1.0

    first = env_of(run)
    rows, begun = [first, env_of(run)], time.monotonic()
    begin(rows, range(2))
    loop = first._endpoint.loop
    step, other = [env.step(turn(env, 'a')) for env in rows]
    info = (step if step[2] or step[3] else first.step(turn(first, 'b')))[-1]  # its request may come first
    assert ('KeyboardInterrupt' if exits is gathers else 'SystemExit: 3') in info['failed']
    assert not other[2] and other[1] == 0
    *_, info = rows[1].step(turn(rows[1], 'b'))
    assert info['failed'] is None and info['reward_parts'] == dict(reward=1.0)
    _, (_, reward, *_) = play(first, 'a', 'b', index=1)
    assert reward == 1 and first._endpoint.loop is loop and time.monotonic() - begun < 20


@pytest.mark.parametrize(
    'ends, told', [(lambda loop: loop.call_soon(sys.exit, 4), 'a callback of an agent raised SystemExit: 4'),
                   (lambda loop: loop.stop(), '')],
    ids=['exit', 'stop']
)  # yapf: disable
def test_a_loop_that_an_agent_ends_goes_on(env_of, ends, told, caplog):

    async def run(problem, client):
        ends(asyncio.get_running_loop())
        await programs.ask(client, [programs.user('x')])
        return 1.0

    env = env_of(run)
    loop = [play(env, 'a')[1][1] == 1.0 and env._endpoint.loop for _ in range(2)]
    assert loop[0] and loop[0] is loop[1]
    env.close()
    assert loop[0].is_closed() and told in caplog.text
