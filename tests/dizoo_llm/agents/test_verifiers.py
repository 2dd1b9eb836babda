"""Environments of ``verifiers``, whose model is the policy. They run where both fit: docs/tutorials/own_agent.md."""
import asyncio
import copy
import os
import shutil
from types import SimpleNamespace

import pytest

from ding_common import ConfigError
from dizoo_llm.agents.endpoint import Endpoint
from dizoo_llm.tasks import create_task
from dizoo_llm.tasks.verifiers import _weights

from tests.dizoo_llm.agents.episodes import begin, play, turn
from tests.project.documents import blocks_of

pytest.importorskip('verifiers.v1', reason='needs verifiers from 0.4 on, which numpy<2 excludes')
FOLDER = os.path.join(os.path.dirname(__file__), 'verifiers_tasksets')


@pytest.fixture(autouse=True)
def tasksets(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv('PYTHONPATH', FOLDER, prepend=os.pathsep)  # of a process that serves tools


def task_of(id, **options):
    return create_task(dict(type='verifiers', id=id, **options))


@pytest.fixture
def env_of(opened):

    def make(id, limits={}, evaluation=False, **options):
        task = task_of(id, **options) if isinstance(id, str) else id
        given = dict(max_prompt_length=120, max_new_tokens=70, max_turns=4, max_tokens=400)
        return opened(task, evaluation=evaluation, **{**given, **limits})

    return make


def test_rewards_keep_their_weights_and_metrics_have_none(env_of):
    env = env_of('vf-answer')
    assert env.weights == dict(right=2.0, short=1.0, letters=0.0)
    (seen, ), (_, reward, terminated, _, info) = play(env, '2', index=2)
    assert env.tokenizer.decode(seen) == '<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n'
    assert (reward, terminated) == (2.0, True)
    assert info['reward_parts'] == dict(right=1.0, short=0.0, letters=1.0)
    reward = play(env, '222', index=2)[1][1]
    assert reward == -1.0


def test_a_limit_of_problems():
    assert [len(task_of('vf-answer', size=size)) for size in (None, 2)] == [4, 2]


def test_a_dialogue_goes_on_with_its_ids_and_records_its_own_reward(env_of):
    env = env_of('vf-dialogue', size=2, weights=dict(different=0.5))
    assert len(env.problems) == 2
    seen, (_, reward, terminated, _, info) = play(env, 'a', 'b', 'a', index=1)
    assert all(later[:len(earlier)] == earlier for earlier, later in zip(seen, seen[1:]))
    assert env.tokenizer.decode(seen[-1]).count('more') == 2
    assert info['reward_parts'] == dict(different=2.0)
    assert (reward, terminated, info['trajectory']) == (1.0, True, 0)


def test_rows_of_one_task_at_once_keep_their_own_servers(env_of):
    task = task_of('vf-answer')
    rows = [env_of(task) for _ in range(3)]
    seen = begin(rows, range(3))
    assert [f'q{i}' in env.tokenizer.decode(ids) for i, (env, ids) in enumerate(zip(rows, seen))] == [True] * 3
    for index, env in enumerate(rows):
        env.begin_step(turn(env, str(index)))
    assert [env.step(turn(env, str(i)))[1] for i, env in enumerate(rows)] == [2.0] * 3


def test_an_episode_that_ends_leaves_the_servers_of_others(env_of):
    task = task_of('vf-dialogue', size=2, weights=dict(different=0.5))
    rows = [env_of(task) for _ in range(2)]
    begin(rows, range(2))
    for env in rows:
        *_, last = [env.step(turn(env, text)) for text in 'aba']
        assert last[1] == 1.0, last[4]['failed']


def test_servers_of_an_episode_are_its_own(env_of):
    """The address of the model is that of a row, and an environment starts servers for one address."""
    env, used = env_of('vf-answer'), []
    shared = env.task._env
    run_episode = type(shared).run_episode

    async def recorded(self, *args, **options):
        used.append((self, self._interception))
        return await run_episode(self, *args, **options)

    shared.__class__ = type('Recorded', (type(shared), ), dict(run_episode=recorded))
    for index in range(2):
        play(env, 'a', index=index)
    (first, one), (second, other) = used
    assert len({id(each) for each in (shared, first, second)}) == 3
    assert one is not None and other is not None and one is not other and shared._interception is None


def test_no_key_of_the_user_is_sent(env_of, monkeypatch):
    """The default of verifiers is a variable that holds a real key, if there is one."""
    given, post = [], Endpoint._post

    async def recorded(self, request):
        given.append(dict(request.headers))
        return await post(self, request)

    monkeypatch.setenv('PRIME_API_KEY', 'secret')
    monkeypatch.setenv('OPENAI_API_KEY', 'secret')
    monkeypatch.setattr(Endpoint, '_post', recorded)
    *_, info = play(env_of('vf-answer'), '0')[1]
    assert info['failed'] is None and given and 'secret' not in str(given)


def test_an_error_of_the_episode_itself_is_its_reason():
    task = task_of('vf-answer')

    async def run_episode(*args):
        return SimpleNamespace(ok=False, errors=[SimpleNamespace(type='Lost', message='no server')], traces=[])

    task._env.run_episode = run_episode
    with pytest.raises(RuntimeError, match='Lost: no server'):
        asyncio.run(task._rollout(dict(number=0), SimpleNamespace(base_url='http://127.0.0.1:1/v1')))


def test_judges_are_parts_with_their_weights():
    judge = SimpleNamespace(reward_name='polite', config=SimpleNamespace(weight=0.5))
    task = SimpleNamespace(hooks=lambda kind: [], plugged_judges=lambda: [judge])
    assert _weights(task) == dict(polite=0.5)


def test_a_config_is_not_changed():
    config = dict(taskset=dict(problems=3), agent=dict(max_turns=2))
    before = copy.deepcopy(config)
    for _ in range(2):
        task_of('vf-answer', config=config, eval_taskset=dict(first=7))
        assert config == before


@pytest.mark.parametrize('names, found', [('agent other', 1.0), ('other agent', 1.0), ('other', 0), ('agent agent', 2)])
def test_the_reward_is_that_of_the_one_run_of_the_policy(names, found):
    task = task_of('vf-answer')

    async def run_episode(*args):
        rewards = {name: dict(right=SimpleNamespace(score=1.0), short=None) for name in ('agent', )}
        traces = [
            SimpleNamespace(agent=SimpleNamespace(name=name), metrics={}, rewards=rewards.get(name, {}))
            for name in names.split()
        ]
        return SimpleNamespace(ok=True, traces=traces)

    task._env.run_episode = run_episode
    rollout = task._rollout(dict(number=0), SimpleNamespace(base_url='http://127.0.0.1:1/v1'))
    if found == 1.0:
        assert asyncio.run(rollout) == dict(right=1.0)
    else:
        with pytest.raises(RuntimeError, match=f"'agent' has run {found} times, must run once"):
            asyncio.run(rollout)


needs_uv = pytest.mark.skipif(shutil.which('uv') is None, reason='verifiers starts its harness `null` by uv')


@needs_uv
def test_the_taskset_of_the_page(env_of, tmp_path, monkeypatch):
    text, = (block.text for block in blocks_of('docs/tutorials/own_agent.md') if 'vf.Taskset' in block.text)
    (tmp_path / 'my_taskset.py').write_text(text, encoding='utf-8')
    monkeypatch.syspath_prepend(tmp_path)
    env = env_of('my-taskset', config=dict(agent=dict(harness=dict(id='null'))))
    for answer, reward in (('0 and 2 are 2', 1.0), ('3', 0.0)):
        *_, info = play(env, answer, index=2)[1]
        assert (info['prompt'], info['reward_parts'], info['failed']) == ('What is 0 + 2?', dict(right=reward), None)


@needs_uv
def test_a_tool_of_an_environment_is_called_by_its_own_harness(env_of):
    env = env_of('vf-tool')
    call = '<tool_call>{"name": "twice", "arguments": {"word": "a"}}</tool_call>'
    seen, (_, reward, _, _, info) = play(env, call, 'aa', index=0)
    assert 'twice' in env.tokenizer.decode(seen[0])
    assert env.tokenizer.decode(seen[1]).endswith('<|im_start|>tool\naa<|im_end|>\n<|im_start|>assistant\n')
    assert seen[1][:len(seen[0])] == seen[0]
    assert (reward, info['failed']) == (1.0, None)


def test_evaluation_asks_for_the_problems_of_its_own_taskset(env_of):
    options = dict(config=dict(taskset=dict(problems=3)), eval_taskset=dict(first=7, problems=1))
    env = env_of('vf-answer', evaluation=True, **options)
    assert (len(env.problems), len(env.task)) == (1, 3)
    _, (_, reward, _, _, info) = play(env, '7', index=0)
    assert (reward, info['prompt']) == (2.0, 'q7')


def test_a_request_beyond_the_limits_fails_the_episode_with_its_reason(env_of):
    env = env_of('vf-dialogue', size=1, weights=dict(different=0.5), limits=dict(max_turns=2))
    _, (_, reward, _, _, info) = play(env, 'a', 'b')
    assert reward == 0.0
    assert 'env.max_turns = 2' in info['failed']


def test_what_changes_the_sampling_fails_the_episode_with_its_reason(env_of):
    env = env_of('vf-answer', config=dict(agent=dict(sampling=dict(top_p=0.5))))
    info = play(env, 'a')[1][4]
    assert 'top_p = 0.5: must be 1' in info['failed']


def test_a_reward_that_weights_do_not_name_fails_the_episode(env_of):
    info = play(env_of('vf-answer', weights=dict(right=1.0)), '0')[1][4]
    assert "among ['right'] (env.task.weights)" in info['failed']


def test_a_metric_that_weights_do_not_name_is_left_out(env_of):
    info = play(env_of('vf-answer', weights=dict(right=1.0, short=0.0)), '0')[1][4]
    assert info['reward_parts'] == dict(right=1.0, short=0.0)


@pytest.mark.parametrize(
    'id, options, told', [
        ('vf-gone', {}, "env.task.id = 'vf-gone'.*verifiers cannot load it .*not found"),
        ('vf-answer', dict(config=dict(taskset=dict(problem=3))), 'verifiers cannot load it .*problem'),
        ('vf-answer', dict(config=dict(agent=dict(harness=dict(id='bash')))), "'bash' executes what the model writes"),
        ('vf-answer', dict(config=3), 'env.task.config = 3: must be a dict'),
        ('vf-answer', dict(config=dict(taskset=dict(problems=0))), 'the taskset is empty'),
        ('vf-dialogue', {}, 'env.task.size = None: the taskset is infinite'),
        ('vf-dialogue', dict(size=2), 'env.task.weights = None: Silent has no reward function'),
        ('vf-answer', dict(config=dict(id='user-sim')), 'agents .* ask the policy, must be one'),
    ]
)
def test_what_cannot_be_used_is_named(id, options, told):
    with pytest.raises(ConfigError, match=told):
        task_of(id, **options)
