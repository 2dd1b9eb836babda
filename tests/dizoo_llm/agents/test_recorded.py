"""Requests of agents as plain data, and episodes that make them again without their agents."""
import json

import numpy as np
import pytest

from ding_common import ConfigError
from dizoo_llm.envs.token_env import TokenEnv

from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import play, read, turn

RECORDS = dict(record_requests=True, max_new_tokens=99)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
REFUSED = dict(question='q', refused=[dict(top_p=0.5), dict(messages=[programs.user('x' * 200)])])


async def must_not_run(problem, client):
    raise AssertionError('the agent runs')


async def ids_with_logprobs(problem, client):
    """Goes on with ids, and returns what the answers weigh."""
    prompt, total = [5, 6], 0.0
    for _ in range(2):
        reply = await client.completions.create(model='policy', prompt=prompt, logprobs=0, stop=['#'])
        total += sum(reply.choices[0].logprobs.token_logprobs)
        prompt = [*prompt, *client_ids(reply), 7]
    return total


def client_ids(reply):
    return [ord(c) % 50 for c in reply.choices[0].text]


def steps(env, texts, recorded=None):
    """All that an episode shows: observations, and what each step returns."""
    obs, info = env.reset(options=dict(index=0, recorded=recorded))
    seen = [(read(obs), info)]
    for text in texts:
        action = np.array([(token, -0.5) for token in turn(env, text)], dtype=[('token', 'i8'), ('logp', 'f8')])
        obs, *others = env.step(action)
        seen.append((read(obs), *others))
    return seen


@pytest.mark.parametrize(
    'run, texts, problem', [
        ('twice', ['hello', 'bye'], None),
        ('anew', ['one', 'two', 'three'], None),
        ('at_once', ['a', 'b', 'c'], None),
        ('plain', ['a', 'b'], None),
        (ids_with_logprobs, ['a', 'b#'], None),
        ('with_tools', [CALL, 'five'], None),
        ('choices', ['a', 'b', 'c'], None),
        ('streamed', ['a'], None),
        ('over_http', ['a', 'bc'], None),
        ('refused', ['x'], REFUSED),
        ('by_answer', ['one', 'three'], None),
        ('raises_later', ['x'], None),
        ('nothing', ['x'], None),
        ('other_parts', ['x'], None),
        ('silent', ['x'], None),
    ]
)
def test_an_episode_is_repeated_without_its_agent(env_of, run, texts, problem):
    problems = None if problem is None else [problem]
    was = steps(env_of(run, problems, options=RECORDS), texts)
    record = json.loads(json.dumps(was[-1][-1]['record']))
    assert steps(env_of(must_not_run, problems, options=RECORDS), texts, record) == was


def test_an_answer_that_the_agent_did_not_get_ends_the_episode(env_of):
    record = play(env_of('twice', options=RECORDS), 'hello', 'bye')[1][-1]['record']
    env = env_of(must_not_run)
    *_, (_, reward, terminated, _, info) = steps(env, ['hallo'], record)
    assert (reward, terminated, info['failed']
            ) == (0.0, True, 'the answer to request 1 is not that of the run, so what the agent asks next is unknown')
    *_, (_, reward, *_, info) = steps(env, ['hello', 'Bye'], record)
    assert 'the answer to request 2 is not that of the run' in info['failed']
    assert steps(env, ['hello', 'bye'], record)[-1][1] == 3.0


def test_a_request_is_recorded_by_what_is_new_in_it(env_of):
    record = play(env_of('twice', options=RECORDS), 'hello', 'bye')[1][-1]['record']
    first, second, end = record
    assert first['asked'] == dict(messages=[0, [dict(role='user', content='q0')]])
    assert second['asked'] == dict(
        messages=[1, [dict(role='assistant', content='hello'),
                      dict(role='user', content='more')]]
    )
    assert end == dict(parts=[dict(reward=3.0)], failed=None)


def test_requests_are_recorded_only_if_asked_for(env_of):
    assert 'record' not in play(env_of('once'), 'x')[1][-1]
    with pytest.raises(ConfigError, match='env.record_requests = True: is for agents. Rows of ThinkAnswerTask'):
        TokenEnv('think_answer', record_requests=True)
