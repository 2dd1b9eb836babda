"""Clients that agents bring: in threads, and with connections of their own."""
import asyncio
import threading
import time

import openai
import pytest

from dizoo_llm.agents import AgentEnv

from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import begin, play, turn


def test_all_rows_may_ask_in_threads(env_of):
    """Few threads would wait for the model, which waits for the other rows."""
    first = env_of('in_a_thread', seconds=20)
    options = dict(tokenizer=dict(pretrained=first.tokenizer.name_or_path), max_prompt_length=80)
    envs = [first, *(AgentEnv(first.task, **options) for _ in range(39))]
    begin(envs, [0] * 40)
    for env in envs:
        env.begin_step(turn(env, 'hello'))
    ended = [env.step([0]) for env in envs]
    for env in envs:
        env.close()
    assert [(reward, info['failed']) for _, reward, *_, info in ended] == [(5, None)] * 40


def test_a_request_of_a_thread_does_not_wait_longer_than_its_row(env_of):
    """Nobody cancels a thread with the agent."""
    told = []

    async def run(problem, client):

        async def late():
            told.append(str(await asyncio.gather(programs.in_a_thread(problem, client), return_exceptions=True)))

        asyncio.get_running_loop().run_in_executor(None, asyncio.run, late())
        await programs.ask(client, [programs.user('x')])
        return 1.0

    env = env_of(run)
    env.reset(options=dict(index=0))
    time.sleep(0.3)
    env.step(turn(env, 'a'))
    env.close()
    assert len(told) == 1 and 'the episode of this row has ended' in told[0]


def test_a_thread_that_hangs_does_not_stop_the_end(env_of, monkeypatch, caplog):
    monkeypatch.setattr('dizoo_llm.agents.endpoint.GRACE', 0.2)

    async def run(problem, client):
        await programs.ask(client, [programs.user('x')])
        await asyncio.to_thread(time.sleep, 4)

    env, begun = env_of(run, seconds=0.1), time.monotonic()
    _, (*_, info) = play(env, 'x')
    env.close()
    assert 'took more than' in info['failed'] and '1 thread(s) of agents go on' in caplog.text
    assert time.monotonic() - begun < 3 and all(t.daemon for t in threading.enumerate() if t.name == 'agent')


def test_connections_end_with_their_row(env_of):
    """A client that is not closed keeps them for an hour, also one that asks when its row has ended."""
    clients = []

    async def run(problem, client):
        clients.append(openai.AsyncOpenAI(base_url=str(client.base_url), api_key='any'))
        await programs.ask(clients[-1], [programs.user('x')])
        return 1.0

    env = env_of(run)
    for _ in range(3):
        assert play(env, 'x')[1][1] == 1
    server = env._endpoint._runner.server
    late = openai.OpenAI(base_url=str(clients[-1].base_url), api_key='any', max_retries=0)
    with pytest.raises(openai.APIStatusError, match='the episode of this row has ended'):
        late.completions.create(model='policy', prompt='x')
    for _ in range(100):
        if not server.connections:
            break
        time.sleep(0.02)
    assert not server.connections and not env._endpoint._idle
