import json
import time
from functools import partial

import numpy as np
import pytest
from ding.envs import create_env_manager, get_env_manager_cls, get_vec_env_setting
from ding.envs.env.env_implementation_check import check_all
from ding.utils import ENV_REGISTRY
from easydict import EasyDict

from ding_common import ConfigError, TaskError
from dizoo_llm import TASK_REGISTRY
from dizoo_llm.envs import DingTokenEnv, scorer
from tests.tasks import Ask, in_batches

TASK_REGISTRY.register('ask', Ask, force_overwrite=True)  # whose scorer always raises
FAILING = dict(task=dict(type='ask', prompt='a'), tokenizer=dict(chars='a'), max_new_tokens=1)


def config(**changes):
    return EasyDict(
        dict(
            type='token_env',
            import_names=['dizoo_llm'],
            task=dict(type='think_answer'),
            collector_env_num=4,
            evaluator_env_num=2,
            n_evaluator_episode=4,
            manager=dict(type='base'),
        ), **changes
    )


def walk(manager_type, evaluator_env_num, n_evaluator_episode, evaluations, length=5):
    """Which problems each of several evaluations meets, stepping all environments until each has its share."""
    cfg = config(evaluator_env_num=evaluator_env_num, n_evaluator_episode=n_evaluator_episode)
    env_fn, _, cfgs = get_vec_env_setting(cfg, collect=False)
    manager_cfg = get_env_manager_cls(EasyDict(type=manager_type)).default_config()
    manager_cfg.type = manager_type
    manager = create_env_manager(manager_cfg, [partial(env_fn, cfg=c) for c in cfgs])
    manager.seed(0, dynamic_seed=False)
    manager.launch()
    met = []
    for _ in range(evaluations):
        manager.reset()
        share = {i: len(range(i, n_evaluator_episode, evaluator_env_num)) for i in range(evaluator_env_num)}
        seen = {i: [] for i in share}
        while any(len(seen[i]) < share[i] for i in share):
            ready = manager.ready_obs
            # environment i writes i + 1 tokens a step, so that some run more episodes than their share
            for i, step in manager.step({i: np.array([1] * min(i + 1, length)) for i in ready}).items():
                if step.done:
                    seen[i] = (seen[i] + [step.info['index']])[-share[i]:]  # DI-engine's monitor keeps the last ones
        met.append(sorted(sum(seen.values(), [])))
    while len(manager.ready_obs) < evaluator_env_num:  # closing during an automatic reset breaks DI-engine's pipes
        time.sleep(0.01)
    manager.close()
    return met


@pytest.mark.envtest
class TestDingTokenEnv:

    def test_registered(self):
        assert ENV_REGISTRY.get('token_env') is DingTokenEnv

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    @pytest.mark.parametrize('number, episodes', [(1, 4), (2, 4), (4, 4), (3, 4)])
    def test_evaluations_meet_every_problem_exactly_once(self, manager, number, episodes):
        assert walk(manager, number, episodes, evaluations=3) == [[0, 1, 2, 3]] * 3

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_one_seed_starts_one_problem_in_every_environment(self, manager):
        cfg = config(collector_env_num=4)
        env_fn, cfgs, _ = get_vec_env_setting(cfg)
        manager_cfg = get_env_manager_cls(EasyDict(type=manager)).default_config()
        manager_cfg.type = manager
        envs = create_env_manager(manager_cfg, [partial(env_fn, cfg=c) for c in cfgs])
        envs.launch()
        for seed in range(5):
            envs.seed({i: seed for i in range(4)}, dynamic_seed=False)
            envs.reset({i: None for i in range(4)})
            obs = envs.ready_obs
            assert len(obs) == 4 and all(np.array_equal(obs[0], o) for o in obs.values())
        envs.close()

    def test_a_scorer_that_always_fails_ends_the_run_whoever_collects(self):
        env = DingTokenEnv(FAILING)
        for _ in range(scorer.MOST_FAILED_IN_A_ROW):  # a collector of DI-engine's would run another episode each time
            env.reset()
            assert env.step(np.array([0])).info['abnormal']
        env.reset()
        with pytest.raises(TaskError, match='101 completions in a row could not be scored: Ask raised ValueError: bb'):
            env.step(np.array([0]))

    def test_end_of_an_episode_as_ding_engine_reads_it(self):
        env = DingTokenEnv(config())
        env.seed(0, dynamic_seed=False)
        assert env.reset().dtype == np.int64
        step = env.step([26, 29])
        assert step.done and step.reward.shape == (1, ) and step.reward.dtype == np.float32
        assert step.info['eval_episode_return'] == 0.0
        recorded, = step.info['episode_info']['record']
        recorded = json.loads(recorded)
        assert recorded['completion'] == '</think>' and recorded['reward_parts'] == dict(
            answer=0, format=1 / 3, solved=0
        )

    @pytest.mark.parametrize('evaluates', [False, True])
    @pytest.mark.parametrize('overlong', [None, 4])
    def test_a_score_that_comes_later_is_that_of_the_environment(self, monkeypatch, evaluates, overlong):
        """Each completion is scored by its environment, and by the reference of another one together with all others:
        the last steps are equal, with rewards, reward parts, records and failures."""
        from dizoo_llm.tasks import ThinkAnswerTask
        score = ThinkAnswerTask.score

        def failing(self, problem, completion):
            if completion == '1':
                raise KeyError('oh')
            return dict(score(self, problem, completion), format=None if completion == '2' else 0.3)

        monkeypatch.setattr(ThinkAnswerTask, 'score', failing)
        cfg = dict(task=dict(type='think_answer'), overlong_buffer=overlong, max_new_tokens=5)
        if evaluates:
            cfg['walk'] = [0, 3]
        ends, cut = [26, 27, 3, 28, 29], [26, 27, 3, 28, 5]
        actions = [ends, cut, [1, 29], [2, 29], [29], [3, 3, 3, 3, 29]]
        env, other = DingTokenEnv(cfg), DingTokenEnv(cfg)
        assert env.scorer is None
        alone, unscored = [], []
        in_batches(monkeypatch, ThinkAnswerTask)
        for action in actions:
            env.reset(index=0)
            alone.append(env.step(action))
            other.reset(index=0, defer_score=True)
            unscored.append((7, other.step(action)))
            info = unscored[-1][1].info
            assert not {'reward_parts', 'return', 'failed', 'eval_episode_return', 'episode_info'} & set(info)
        together = DingTokenEnv(cfg).scorer.score(unscored)
        for one, all_ in zip(alone, together):
            assert all_.reward.dtype == np.float32 and all_.done and np.array_equal(one.obs, all_.obs)
            assert one.reward == all_.reward and one.info == all_.info
        assert len({float(step.reward) for step in together}) >= 3
        assert [step.info.get('abnormal', False) for step in together] == [False, False, not evaluates] + [False] * 3
        other.reset(index=0)  # the next episode is scored at its end again
        assert other.step(ends).info['return'] == 1

    def test_a_batch_scorer_that_always_fails_ends_the_run_as_well(self, monkeypatch):
        """The failures in a row are counted for each environment, as if it scored its episodes itself."""
        in_batches(monkeypatch, Ask)
        env = DingTokenEnv(FAILING)
        env.reset(defer_score=True)
        step = env.step([0])
        failing = env.scorer
        for _ in range(scorer.MOST_FAILED_IN_A_ROW):
            failing.score([(0, step), (1, step)])
        with pytest.raises(TaskError, match='101 completions in a row could not be scored: Ask raised ValueError: bb'):
            failing.score([(0, step)])

    @pytest.mark.parametrize('episodes, told', [(4, False), (2, False), (8, False), (6, True)])
    def test_problems_that_count_more_often_are_told(self, capsys, episodes, told):
        get_vec_env_setting(config(n_evaluator_episode=episodes))
        assert ('there are 4 problems for evaluation, so 2 of them count once more' in capsys.readouterr().out) == told

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(max_new_token=3), "env.max_new_token = 3: unknown key; did you mean 'max_new_tokens'"),
            (dict(max_new_tokens=0), 'env.max_new_tokens = 0: must be an integer of at least 1'),
            (dict(max_new_tokens='8'), 'env.max_new_tokens'),
            (dict(task='think_answer'), 'env.task'),
            (dict(task=dict(type='nothing')), "env.task.type = 'nothing'"),
            (dict(manager=dict(type='base', shared_memroy=False)), "'shared_memory'|env.manager.shared_memroy"),
            (dict(n_evaluator_episode=1), 'n_evaluator_episode = 1: must be at least env.evaluator_env_num = 2'),
            (dict(stop_value='1'), 'env.stop_value'),
        ]
    )
    def test_wrong_config_names_the_key(self, changes, message):
        with pytest.raises(ConfigError, match=message):
            env_fn, cfgs, _ = get_vec_env_setting(config(**changes))
            env_fn(cfgs[0])

    @pytest.mark.parametrize('key', ['collector_env_num', 'evaluator_env_num', 'n_evaluator_episode'])
    def test_missing_number(self, key):
        cfg = config()
        cfg.pop(key)
        with pytest.raises(ConfigError, match=f'env.{key}: missing'):
            get_vec_env_setting(cfg)

    @pytest.mark.parametrize(
        'env', [dict(task=dict(type='think_answer')),
                dict(task=dict(type='guess'), max_turns=3, max_reply_tokens=8)]
    )
    def test_it_passes_the_checks_of_di_engine(self, env):
        check_all(DingTokenEnv(dict(env, max_new_tokens=3)))

    def test_a_seed_that_is_not_dynamic_is_that_of_every_episode(self):
        env, met = DingTokenEnv(dict(task=dict(type='think_answer'))), {}
        for dynamic in (False, True):
            env.seed(3, dynamic_seed=dynamic)
            met[dynamic] = [tuple(env.reset()) for _ in range(8)]
        assert len(set(met[False])) == 1 and met[True][0] == met[False][0]
        assert len(set(met[True])) > 1

    def test_text_is_its_picture(self, tmp_path):
        env = DingTokenEnv(config(walk=[1]))
        env.enable_save_replay(str(tmp_path / 'texts'))
        for action in ([26, 29], [5, 29]):
            env.reset()
            prompt, shown = env.render(), env.step(action).info['completion']
            assert env.render().startswith(prompt) and shown in env.render()[len(prompt):]
        saved = (tmp_path / 'texts' / 'problem_1.txt').read_text()
        assert saved.count(prompt) == 2 and saved.endswith(f'{env.render()}\n\n')
