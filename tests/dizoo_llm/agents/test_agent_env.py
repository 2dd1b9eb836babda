"""Agents that ask the policy by OpenAI's interface."""
import threading
import time

import pytest

from ding_common import ConfigError, TaskError
from dizoo_llm.agents.endpoint import Endpoint
from dizoo_llm.tasks import create_task
from dizoo_llm.agents import AgentEnv

from tests.dizoo_llm.agents import programs
from tests.dizoo_llm.agents.episodes import play, read, turn, until


def test_a_conversation_goes_on_with_its_ids(env_of):
    env = env_of('twice')
    (first, second), (_, reward, terminated, truncated, info) = play(env, 'hello', 'bye')
    text = env.tokenizer.decode(second)
    assert text.startswith(
        '<|im_start|>user\nq0<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nmore'
    )
    assert second[:len(first) + 6] == first + turn(env, 'hello')
    assert (reward, terminated, truncated, info['failed']) == (3.0, True, False, None)
    assert (info['turn'], info['trajectory'], info['taken']) == (1, 0, 4)
    assert [t['text'] for t in info['turns']] == ['hello', 'bye'] and info['turns'][0]['reply'] == 'user: more'
    assert info['reward_parts'] == dict(reward=3.0) and info['return'] == 3.0


def test_ids_are_not_encoded_again(env_of):
    """A turn that no tokenizer would encode this way stays as it was sampled."""
    env = env_of('twice')
    obs, _ = env.reset(options=dict(index=0))
    odd = [env.tokenizer.convert_tokens_to_ids('<|im_start|>'), *turn(env, 'a')]
    after, *_ = env.step(odd)
    assert read(after)[len(read(obs)):][:len(odd)] == odd


def test_another_conversation_is_another_trajectory(env_of):
    env = env_of('anew')
    env.reset(options=dict(index=1))
    found = [env.step(turn(env, text))[-1] for text in ('one', 'two', 'three')]
    assert [(info['trajectory'], info['turn']) for info in found] == [(0, 0), (1, 0), (0, 1)]
    assert found[-1]['return'] == 2.0


def test_requests_at_once_are_answered_one_by_one(env_of):
    seen, (_, reward, *_, info) = play(env_of('at_once'), 'a', 'b', 'c')
    assert len(set(map(tuple, seen))) == 3 and info['trajectory'] == 2 and reward == 1


def test_a_problem_that_could_not_begin_begins_again(env_of):
    env = env_of('once')
    problem, env.task.problem = env.task.problem, lambda index: 1 / 0
    with pytest.raises(TaskError):
        env.reset(options=dict(index=1))
    env.task.problem = problem
    assert play(env, 'x', index=1)[1][1] == 1


def test_a_reward_for_each_answer(env_of):
    _, (_, reward, *_, info) = play(env_of('by_answer'), 'one', 'three')
    assert info['rewards'] == [3, 5] and reward == 8 and info['reward_parts'] == dict(reward=8)
    assert [turn['reward'] for turn in info['turns']] == [3, 5]
    _, (_, reward, *_, info) = play(env_of('by_answer', [dict(question='q', more=[1.0])]), 'one', 'three')
    assert 'returned 3 rewards, must return one for each of 2 answers' in info['failed'] and reward == 0


def test_choices_are_trajectories_with_one_prompt(env_of):
    seen, (*_, info) = play(env_of('choices'), 'a', 'b', 'c')
    assert seen[0] == seen[1] == seen[2] and info['trajectory'] == 2 and info['failed'] is None


def test_choices_of_a_conversation_that_is_longer_than_a_prompt_may_be(env_of):

    async def run(problem, client):
        messages = [programs.user('x' * 50)]
        messages += [await programs.ask(client, messages), programs.user('more')]
        reply = await client.chat.completions.create(model='policy', messages=messages, n=2)
        return float(len(reply.choices))

    (first, second, third), (_, reward, *_, info) = play(env_of(run), 'hello', 'a', 'b')
    assert len(second) > 80 > len(first) and second == third and reward == 2 and info['trajectory'] == 1


def test_plain_text_goes_on(env_of):
    env = env_of('plain')
    (first, second), (*_, info) = play(env, 'x', 'y')
    assert env.tokenizer.decode(first) == 'ab' and second == first + turn(env, 'x') + turn(env, 'c', end=False)
    assert info['turn'] == 1 and info['turns'][0]['reply'] == 'c'


def test_calls_of_functions(env_of):
    env = env_of('with_tools', options=dict(max_new_tokens=99))
    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    (first, second), (_, reward, *_, info) = play(env, call, 'two')
    text = env.tokenizer.decode(second)
    assert env.tokenizer.decode(first).startswith('<|im_start|>system\nadd <|im_end|>') and info['trajectory'] == 0
    assert call + '<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n' in text and reward == 1


def test_a_malformed_call_is_text(env_of):
    _, (_, reward, *_,
        info) = play(env_of('with_tools', options=dict(max_new_tokens=99)), '<tool_call>{"name"</tool_call>')
    assert reward == 1 and len(info['turns']) == 1


def test_limits_of_a_request(env_of):

    async def run(problem, client):
        reply = await client.chat.completions.create(model='policy', messages=[programs.user('x')], max_tokens=2)
        problem['reason'] = reply.choices[0].finish_reason
        reply = await client.chat.completions.create(model='policy', messages=[programs.user('x')], stop='lo')
        problem['text'] = reply.choices[0].message.content
        return 1.0

    problem = dict(question='x')
    env = env_of(run, [problem])
    env.reset(options=dict(index=0))
    first, second = env.step(turn(env, 'hello'))[-1], env.step(turn(env, 'hello'))[-1]
    assert problem['reason'] == 'length' and first['taken'] == 2
    assert problem['text'] == 'hel' and second['taken'] == 5 and second['turns'][1]['cut'] is False


WRONG = [
    (dict(temperature=0.5), 400, 'temperature = 0.5: must be 1'),
    (dict(top_p=0.9), 400, 'top_p = 0.9: must be 1'),
    (dict(logprobs=True, top_logprobs=2), 400, 'top_logprobs = 2: must be 0'),
    (dict(seed=3), 400, 'seed = 3: must be left out'),
    (dict(n=0), 400, 'n = 0: must be an integer from 1 to 64'),
    (dict(extra_body=dict(min_p=0.1)), 400, 'min_p: unknown'),
    (dict(messages=[]), 400, 'messages = []: must be a list of messages'),
    (dict(messages=[dict(role='user', content=[dict(type='image_url', image_url=dict(url='x'))])]), 400, 'not text'),
    (dict(messages=[dict(role='assistant', tool_calls=3)]), 400, 'tool_calls = 3: must be a list of calls'),
    (dict(messages=[programs.user('x' * 90)]), 400, 'must have 1 to env.max_prompt_length = 80'),
    (dict(messages=[programs.user('\u4e2d')]), 400, 'no token for'),
    (dict(messages=[dict(role='assistant', content='x')]), 400, 'end with the assistant'),
    (dict(max_tokens=0), 400, 'max_tokens = 0: must be a positive integer'),
    (dict(stop=['']), 400, "stop = ['']: must be text"),
]


def test_what_a_request_may_not_ask_is_told_as_openai_does(env_of):
    problem = dict(question='x', refused=[options for options, *_ in WRONG])
    env = env_of('refused', [problem], options=dict(max_turns=20))
    _, (*_, info) = play(env, 'a')
    assert info['failed'] is None and len(problem['told']) == len(WRONG)
    for (_, status, told), found in zip(WRONG, problem['told']):
        assert found[0] == status and told in found[1], found


@pytest.mark.parametrize('run', ['streamed', 'over_http'])
def test_other_ways_to_ask(env_of, run):
    env = env_of(run, [dict(question='q')])
    texts = ['hello'] if run == 'streamed' else ['hi', 'hello']
    _, (_, reward, *_, info) = play(env, *texts)
    assert info['failed'] is None and env.problem.metadata['row'].get('streamed', 'hello') == 'hello'
    if run == 'over_http':
        assert reward == 5.0 and env.problem.metadata['row']['address'].startswith('http://127.0.0.1:')


@pytest.mark.parametrize(
    'run, options, told', [
        ('raises', {}, 'the agent raised RuntimeError: no sandbox'),
        ('raises_later', {}, 'the agent raised RuntimeError: sandbox lost'),
        ('silent', {}, 'the agent returned without a request'),
        ('nothing', {}, 'could not score'),
        ('other_parts', {}, "returned {'wrong': 1.0}, must return parts among"),
        ('hangs', {}, 'took more than env.task.seconds = 0.3'),
        ('twice', dict(max_tokens=20), 'goes on with 24 tokens and has room for 17: env.max_tokens = 20'),
        ('twice', dict(max_turns=1), 'env.max_turns = 1'),
    ]
)
def test_an_agent_that_fails_costs_its_row(env_of, run, options, told):
    begun = time.monotonic()
    _, (_, reward, *_, info) = play(env_of(run, options=options, seconds=0.3), 'x')
    assert told in info['failed'] and reward == 0 and time.monotonic() - begun < 10
    assert info['reward_parts'] == dict(reward=None)


def test_an_agent_that_blocks_the_loop_is_named_and_does_not_stop_others(env_of, little_grace):

    async def blocks(problem, client):
        await programs.ask(client, [programs.user('x')])
        time.sleep(2)

    _, (*_, info) = play(env_of(blocks, seconds=0.3), 'x')
    assert 'blocks the event loop' in info['failed']
    _, (_, reward, *_) = play(env_of('once'), 'x')
    assert reward == 1


def test_a_flood_is_bounded(env_of):
    env = env_of('floods', options=dict(max_turns=5))
    _, (_, reward, *_, info) = play(env, *['x'] * 5)
    assert reward == 5 and len(info['turns']) == 5


def test_a_request_that_was_given_up_is_not_sampled(env_of):
    env = env_of('gives_up')
    env.reset(options=dict(index=0))
    time.sleep(0.3)
    first = env.step(turn(env, 'a'))
    assert 'first' in env.render() and first[-1].get('failed') is None
    while not (first[2] or first[3]):
        first = env.step(turn(env, 'b'))
    assert first[1] == 1


def test_nothing_is_left_behind(env_of):
    before = set(threading.enumerate())
    envs = [env_of('once') for _ in range(3)]
    for env in envs:
        env.reset(options=dict(index=0))
    assert 'agents' in [thread.name for thread in set(threading.enumerate()) - before]
    for env in envs:
        env.close()
    assert not set(threading.enumerate()) - before and Endpoint._shared is None


def test_an_episode_ends_what_its_agent_began(env_of):
    problem = dict(question='q')
    env = env_of('leaves_a_task', [problem])
    env.task.problem(0).metadata['row'] = problem  # which the test sees
    _, (_, reward, *_) = play(env, 'x')
    assert reward == 1 and until(problem['task'].done) and problem['task'].cancelled()


def test_an_agent_that_cannot_be_cancelled_does_not_stop_the_end(env_of, little_grace, caplog):
    problem = dict(question='q')
    env = env_of('cannot_be_cancelled', [problem], seconds=0.1)
    env.task.problem(0).metadata['row'] = problem
    _, (*_, info) = play(env, 'x')
    env.close()
    problem['over'] = True
    assert 'took more than env.task.seconds' in info['failed'] and '1 agent(s) go on' in caplog.text


def test_an_agent_that_asks_after_its_end_is_refused(env_of):
    """Nobody reads its request, so that it would wait forever."""
    problem = dict(question='q')
    env = env_of('asks_after_its_end', [problem], seconds=0.1)
    env.task.direct, env.task.problem(0).metadata['row'] = True, problem
    play(env, 'x')
    assert until(lambda: 'told' in problem) and problem['told'] == 'the episode of this row has ended'


@pytest.mark.parametrize(
    'task, options, told', [
        (dict(run='tests.dizoo_llm.agents.programs:user'), {}, 'env.task.run = .*must be a coroutine function'),
        (dict(run='tests.dizoo_llm.agents.programs:onces'), {}, "did you mean 'once"),
        (dict(problems=[]), {}, 'there is no problem'),
        (dict(seconds=0), {}, 'env.task.seconds = 0: must be'),
        (dict(weights={}), {}, 'env.task.weights = {}: must be a dict of at least one'),
        (dict(return_part='x'), {}, "env.task.return_part = 'x': must be a part"),
        ({}, dict(max_prompt_length=None), 'env.max_prompt_length = None: must be set'),
        ({}, dict(system_prompt='x'), "env.system_prompt = 'x': an agent writes its messages"),
        ({}, dict(stop=['x']), 'env.stop'),
    ],
    ids=range(9)
)
def test_one_line_for_what_cannot_run(env_of, task, options, told):
    given = dict(type='agent', run='tests.dizoo_llm.agents.programs:once', problems=programs.PROBLEMS)
    with pytest.raises(ConfigError, match=told):
        AgentEnv(create_task({**given, **task}), **{'max_prompt_length': 9, **options})


def test_problems_of_a_function_and_held_out_ones():
    task = create_task(
        dict(type='agent', run=programs.once, problems='tests.dizoo_llm.agents.programs:problems', eval_size=1)
    )
    assert len(task) == 3 and len(task.evaluation()) == 1
    assert task.problem(0).metadata['row'] in programs.PROBLEMS
