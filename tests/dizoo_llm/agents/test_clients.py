"""Clients that agents bring: in threads, and with connections of their own."""
import asyncio
import json
import threading
import time

import openai
import pytest

from dizoo_llm.agents import AgentEnv
from dizoo_llm.agents.endpoint import Endpoint

from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import begin, play, turn, until
from tests.dizoo_llm.agents.test_logprobs import play as with_logp


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


def test_a_thread_that_hangs_does_not_stop_the_end(env_of, little_grace, caplog):

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
    assert until(lambda: not server.connections) and not env._endpoint._idle


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def cases():
    """Options of requests, some of which openai converts, and some of which are refused."""
    yield dict(tools=[programs.TOOL])
    yield dict(tools=[programs.TOOL], user='me')
    yield dict()
    yield dict(n=2, logprobs=True, stop=['!'])
    yield dict(stop=openai.omit, max_tokens=50, n=None)
    yield dict(top_p=0.5)
    yield dict(tools=[programs.TOOL], stream=False)
    yield dict(extra_body=dict(user='me'))
    yield dict(temperature=0.3)
    yield dict(messages=iter([programs.user('x')]))


async def asks_each_case(problem, client):
    """Whole answers, or errors, to requests of which each goes on with the one before."""
    if problem['http']:
        client = openai.AsyncOpenAI(base_url=str(client.base_url), api_key='any', max_retries=0)
    messages, problem['told'] = [programs.user('a')], []
    for case in cases():
        try:
            answer = await client.chat.completions.create(**{'model': 'policy', 'messages': messages, **case})
            messages = [*messages, answer.choices[0].message, programs.user('b')]
            problem['told'].append(fields(answer))
        except openai.APIStatusError as error:
            problem['told'].append((type(error), error.status_code, error.message, error.body))
    return 1.0


def fields(value):
    """The type and the fields of an answer, which are those that go with a later request."""
    if isinstance(value, list):
        return [fields(each) for each in value]
    if isinstance(value, openai.BaseModel):
        return type(value), {key: fields(getattr(value, key)) for key in value.model_fields_set - {'created'}}
    return value


def test_a_client_asks_and_gets_the_same_with_and_without_http(env_of, monkeypatch):
    """Its own passes by openai's conversion of requests and answers."""
    bodies, found, respond = [], [], Endpoint.respond

    async def record(self, path, content):
        bodies.append(json.loads(content))
        return await respond(self, path, content)

    monkeypatch.setattr(Endpoint, 'respond', record)
    for http in (False, True):
        options = dict(max_turns=20, max_tokens=1000, max_prompt_length=600, max_new_tokens=80)
        env = env_of(asks_each_case, [dict(http=http)], options)
        with_logp(env, *(turn(env, text) for text in (CALL, 'b', 'c', 'd!', 'e!', 'f', 'g', 'h', 'i')))
        found.append((env.problem.metadata['row']['told'], list(bodies)))
        bodies.clear()
    assert found[0] == found[1] and len(found[0][0]) == len(found[0][1]) == 10
