"""Environments behind an OpenEnv server on loopback."""
import contextlib
import gc
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from ding.utils import find_free_port

from ding_common import ConfigError
from dizoo_llm.tasks import create_task
from dizoo_llm.tasks.environments.openenv import Sessions, text_of

from tests.dizoo_llm.agents.programs import user
from tests.dizoo_llm.agents.episodes import play, turn

HERE = 'tests.dizoo_llm.agents.test_openenv'


def guess(text):
    """The action of ``guess``: a number; anything that begins with ? is for the server to reject."""
    if text.startswith('?'):
        return dict(number=text)
    return dict(number=int(text), note='code: VALIDATION_ERROR') if re.fullmatch(r'\d+', text, re.ASCII) else None


def hint(observation):
    return f"{observation['hint']}, {observation['left']} left"


def by_state(rewards, state):
    seed = float(state['episode_id'].split()[1])
    return dict(steps=float(state['step_count']), rewards=float(len(rewards)), last=rewards[-1], seed=seed)


def no_text(observation):
    return 3


def test_text_of_an_observation():
    assert text_of(dict(message='hi', number=3, done=False, reward=1, metadata={})) == 'hi'
    assert text_of(dict(a='x', b='y', done=False)) == '{"a": "x", "b": "y"}'
    assert text_of({}) == '{}'


def test_an_address_and_a_server_that_is_not_there():
    with pytest.raises(ConfigError, match=r"env.task.url = '127.0.0.1:8000': must be an address"):
        create_task(dict(type='openenv', url='127.0.0.1:8000'))
    url = f'http://127.0.0.1:{find_free_port("")}'
    with pytest.raises(ConfigError, match=f"env.task.url = '{url}': .*Start the server"):
        create_task(dict(type='openenv', url=url))


@contextlib.contextmanager
def server(kind, most=4):
    pytest.importorskip('openenv.core', reason="needs the extra: pip install '.[openenv]'")
    port = find_free_port('')
    program = os.path.join(os.path.dirname(__file__), 'openenv_server.py')
    process = subprocess.Popen([sys.executable, program, kind, str(port), str(most)])
    try:
        url, until = f'http://127.0.0.1:{port}', time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f'{url}/health', timeout=5):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, f'the server of {kind} did not start'
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope='module')
def echo():
    with server('echo') as url:
        yield url


@pytest.fixture(scope='module')
def guessing():
    with server('guess') as url:
        yield url


@pytest.fixture
def env_of(opened):

    def make(url, options={}, task=None, **given):
        task = task or create_task(dict(type='openenv', url=url, **given))
        limits = dict(max_prompt_length=200, max_new_tokens=50, max_turns=9, max_tokens=500)
        return opened(task, **{**limits, **options})

    return make


def numbers(url, **given):
    return dict(url=url, action=f'{HERE}:guess', text=f'{HERE}:hint', **given)


def replies(env, seen):
    """The last message of each observation."""
    return [re.findall(r'user\n(.*?)<', env.tokenizer.decode(each))[-1] for each in seen]


def test_echo_without_any_face(env_of, echo):
    env = env_of(f'{echo}/', options=dict(max_turns=2))
    (first, second), (_, reward, terminated, truncated, info) = play(env, '<think>say it</think> hello', 'hello world')
    start = '<|im_start|>user\nEcho environment ready!<|im_end|>\n<|im_start|>assistant\n'
    assert env.tokenizer.decode(first) == start
    assert env.tokenizer.decode(
        second[len(first):]
    ).endswith('hello<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n')
    assert reward == pytest.approx(1.6) and truncated and not terminated  # 0.1 for each character; env.max_turns
    assert info['reward_parts'] == dict(reward=pytest.approx(1.6), invalid=0.0) and info['failed'] is None


def test_a_game_until_it_is_done(env_of, guessing):
    env = env_of(**numbers(guessing, prompt='Guess. '))
    seen, (_, reward, terminated, truncated, info) = play(env, '9', 'nine', '?', '2', '3', index=2)
    assert terminated and not truncated and reward == pytest.approx(0.8)
    assert info['reward_parts'] == dict(reward=pytest.approx(0.8), invalid=2.0) and info['failed'] is None
    assert replies(env, seen) == ['Guess. 1 to 9, 5 left', 'lower, 4 left', 'invalid', 'invalid', 'higher, 3 left']


def test_columns_are_arguments_of_reset_and_the_prompt_is_not(env_of, guessing):
    env = env_of(**numbers(guessing, problems=[dict(prompt=[user('Play: ')], seed=4, high=3)]))
    (first, ), (_, reward, *_) = play(env, '2')
    assert 'Play: 1 to 3, 5 left' in env.tokenizer.decode(first) and reward == 1.0


def test_a_reward_of_steps_and_state(env_of, guessing):
    weights = dict(steps=-1, rewards=0, last=1, seed=0)
    env = env_of(**numbers(guessing, reward=f'{HERE}:by_state', weights=weights))
    _, (_, reward, *_, info) = play(env, '9', 'nine', '3', index=2)
    assert info['reward_parts'] == dict(steps=2.0, rewards=2.0, last=1.0, seed=2.0) and reward == -1.0


def test_rows_have_sessions_of_their_own_which_are_kept(env_of, guessing):
    """The server has four: five episodes at once do not fit, and eight one after the other do."""
    first = env_of(**numbers(guessing))
    envs = [first, *(env_of(guessing, task=first.task) for _ in range(2))]
    for i, env in enumerate(envs):
        env.reset(options=dict(index=i))
    for i, env in reversed(list(enumerate(envs))):
        *_, info = env.step(turn(env, str(i + 1)))
        assert info['reward_parts'] == dict(reward=1.0, invalid=0.0)
    for i in range(8):
        assert play(first, str(i + 1), index=i)[1][1] == 1.0
    more = [env_of(guessing, task=first.task) for _ in range(5)]
    for env in more[:4]:
        env.reset(options=dict(index=0))
    _, (*_, info) = play(more[4], '1')
    assert 'it needs max_concurrent_envs of at least the rows' in info['failed']


def servers_of(env, times):
    """The server's environment of each of several episodes."""
    return [env.tokenizer.decode(play(env, '1')[0][0]).partition('server ')[2].partition(',')[0] for _ in range(times)]


def test_the_end_of_an_episode_does_not_close_its_session(env_of, guessing):
    env = env_of(**numbers(guessing, problems=[dict(named=True)]))
    first, *others = servers_of(env, 4)
    assert first.isdigit() and others == [first] * 3


def test_a_session_that_was_lost_while_no_row_had_it_costs_no_row(env_of, guessing):
    env = env_of(**numbers(guessing, problems=[dict(named=True)]))
    first, = servers_of(env, 1)
    (client, held), = env.task._sessions._idle
    held.get_loop().call_soon_threadsafe(client._ws.transport.abort)
    second, third = servers_of(env, 2)
    assert second.isdigit() and second != first and third == second


def test_an_error_that_quotes_a_rejection_is_none(env_of, guessing):
    env = env_of(**numbers(guessing))
    assert 'bad luck: code: VALIDATION_ERROR' in play(env, '13')[1][-1]['failed']


def test_each_answer_has_the_reward_of_its_step(env_of, guessing):
    _, (_, reward, *_, info) = play(env_of(**numbers(guessing)), '9', 'nine', '', '?', '12', '3', index=2)
    assert info['rewards'] == pytest.approx([-0.1, 0.0, 0.0, 0.0, 0.0, 1.0]) and reward == pytest.approx(0.9)
    assert [each['reward_parts']['invalid'] for each in info['turns']] == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_weights_of_rewards_and_of_invalid_turns(env_of, guessing):
    env = env_of(**numbers(guessing, weights=dict(reward=2.0, invalid=-0.5), games=3))
    assert play(env, 'nine', '3', index=2)[1][1] == 1.5 and len(env.problems) == 3


def test_what_costs_a_row_closes_its_session(env_of, guessing):
    env = env_of(**numbers(guessing))
    for _ in range(6):
        _, (_, reward, *_, info) = play(env, '13')
        assert 'bad luck' in info['failed'] and reward == 0
    bad = env_of(**{**numbers(guessing), 'text': f'{HERE}:no_text'})
    assert 'env.task.text returned 3' in play(bad, '1')[1][-1]['failed']


def test_an_error_of_reset_costs_the_row_and_closes_its_session(env_of, guessing):
    """Without the garbage collector, which closes lost sessions too."""
    rows = [dict(seed=0), dict(seed=0, colour='red')]
    env = env_of(**numbers(guessing, problems=rows, seconds=20.0))
    gc.disable()
    try:
        failed = [play(env, '1', index=index)[1][-1]['failed'] for index in (0, 1, 1, 1, 1, 1, 0)]
    finally:
        gc.enable()
    assert failed[0] is failed[-1] is None and all("no columns ['colour']" in each for each in failed[1:-1])


def test_a_server_that_takes_too_long_costs_the_row_and_its_late_answer_reaches_no_other(env_of, guessing):
    env = env_of(**numbers(guessing, seconds=2.0))
    assert 'more than env.task.seconds = 2' in play(env, '14')[1][-1]['failed']
    seen, (_, reward, *_) = play(env, '9', '1')
    assert replies(env, seen) == ['1 to 9, 5 left', 'lower, 4 left'] and reward == pytest.approx(0.9)


def test_sessions_end_with_the_loop_of_their_agents(env_of, guessing):
    """The server has four."""
    task = env_of(**numbers(guessing)).task
    for _ in range(6):
        env = env_of(guessing, task=task)
        assert play(env, '1')[1][1] == 1.0
        env.close()


def test_a_message_may_take_as_long_as_an_episode():
    assert Sessions(dict, 'http://127.0.0.1:1', 300.0)._make() == dict(
        base_url='http://127.0.0.1:1', message_timeout_s=300.0
    )


def test_actions_that_are_not_one_text(guessing):
    with pytest.raises(ConfigError, match=r"env.task.action = None: .*'number': 'integer'.*requires \['number'\]"):
        create_task(dict(type='openenv', url=guessing))
