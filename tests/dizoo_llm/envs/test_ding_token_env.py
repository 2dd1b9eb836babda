import json
import time
from functools import partial

import numpy as np
import pytest
from ding.envs import create_env_manager, get_env_manager_cls, get_vec_env_setting
from ding.envs.env.env_implementation_check import check_all
from easydict import EasyDict

from ding_common import ConfigError, TaskError
from dizoo_llm import TASK_REGISTRY
from dizoo_llm.envs import DingTokenEnv, scorer
from tests.tasks import Ask, in_batches

TASK_REGISTRY.register('ask', Ask, force_overwrite=True)  # whose scorer always raises
FAILING = dict(task=dict(type='ask', prompt='a'), tokenizer=dict(chars='a'), max_new_tokens=1)
IN_A_ROW = '101 completions in a row could not be scored: Ask raised ValueError: bb'
THINK = dict(task=dict(type='think_answer'))


def config(**changes):
    numbers = dict(collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=4, manager=dict(type='base'))
    return EasyDict(dict(type='token_env', import_names=['dizoo_llm'], **THINK, **numbers), **changes)


def walk(kind, number, episodes, evaluations):
    """Which problems each of several evaluations meets, stepping all environments until each has its share."""
    env_fn, _, cfgs = get_vec_env_setting(config(evaluator_env_num=number, n_evaluator_episode=episodes))
    settings, met = get_env_manager_cls(EasyDict(type=kind)).default_config(), []
    settings.type = kind
    manager = create_env_manager(settings, [partial(env_fn, cfg=cfg) for cfg in cfgs])
    manager.seed(0, dynamic_seed=False)
    manager.launch()
    for _ in range(evaluations):
        manager.reset()
        share = {i: len(range(i, episodes, number)) for i in range(number)}
        seen = {i: [] for i in share}
        while any(len(seen[i]) < share[i] for i in share):
            # environment i writes i + 1 tokens a step, so that some run more episodes than their share
            for i, step in manager.step({i: np.array([1] * (i + 1)) for i in manager.ready_obs}).items():
                if step.done:
                    seen[i] = (seen[i] + [step.info['index']])[-share[i]:]  # DI-engine's monitor keeps the last ones
        met.append(sorted(sum(seen.values(), [])))
    while len(manager.ready_obs) < number:  # closing during an automatic reset breaks DI-engine's pipes
        time.sleep(0.01)
    manager.close()
    return met


def end(env, action, **options):
    """The step that ends an episode of the first problem."""
    env.reset(index=0, **options)
    return env.step(action)


@pytest.mark.envtest
class TestDingTokenEnv:

    @pytest.mark.parametrize('kind, number, episodes', [('base', 2, 4), ('base', 4, 4), ('subprocess', 3, 4)])
    def test_evaluations_meet_every_problem_exactly_once(self, kind, number, episodes):
        assert walk(kind, number, episodes, evaluations=3) == [[0, 1, 2, 3]] * 3

    def test_a_scorer_that_always_fails_ends_the_run_whoever_collects(self):
        env = DingTokenEnv(FAILING)
        for _ in range(scorer.MOST_FAILED_IN_A_ROW):  # a collector of DI-engine's would run another episode each time
            assert end(env, [0]).info['abnormal']
        with pytest.raises(TaskError, match=IN_A_ROW):
            end(env, [0])

    def test_a_batch_scorer_that_always_fails_ends_the_run_as_well(self, monkeypatch):
        """The failures in a row are counted for each environment, as if it scored its episodes itself."""
        in_batches(monkeypatch, Ask)
        env = DingTokenEnv(FAILING)
        step, failing = end(env, [0], defer_score=True), env.scorer
        for _ in range(scorer.MOST_FAILED_IN_A_ROW):
            failing.score([(0, step), (1, step)])
        with pytest.raises(TaskError, match=IN_A_ROW):
            failing.score([(0, step)])

    def test_end_of_an_episode_as_ding_engine_reads_it(self):
        env = DingTokenEnv(config())
        env.seed(0, dynamic_seed=False)
        assert env.reset().dtype == np.int64
        step = env.step([26, 29])
        assert step.done and step.reward.shape == (1, ) and step.reward.dtype == np.float32
        assert step.info['eval_episode_return'] == 0.0
        recorded = json.loads(step.info['episode_info']['record'][0])
        assert recorded['completion'] == '</think>'
        assert recorded['reward_parts'] == dict(answer=0, format=1 / 3, solved=0)

    @pytest.mark.parametrize('episodes, told', [(2, False), (8, False), (6, True)])
    def test_problems_that_count_more_often_are_told(self, capsys, episodes, told):
        get_vec_env_setting(config(n_evaluator_episode=episodes))
        assert ('there are 4 problems for evaluation, so 2 of them count once more' in capsys.readouterr().out) == told

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(max_new_token=3), "env.max_new_token = 3: unknown key; did you mean 'max_new_tokens'"),
            (dict(max_new_tokens=0), 'env.max_new_tokens = 0: must be an integer of at least 1'),
            (dict(task='think_answer'), 'env.task'),
            (dict(manager=dict(type='base', shared_memroy=False)), "'shared_memory'|env.manager.shared_memroy"),
            (dict(n_evaluator_episode=1), 'n_evaluator_episode = 1: must be at least env.evaluator_env_num = 2'),
            (dict(stop_value='1'), 'env.stop_value'),
            (dict(tokenizer='two\nlines'), r"env.tokenizer = 'two\\nlines': must be dict"),
            (dict(manager=dict(type='base', reset_timeout=10 ** 12)), 'env.manager.reset_timeout = 10{12}: must be an'),
        ]
    )
    def test_wrong_config_names_the_key(self, changes, message):
        cfg = config(**changes)
        with pytest.raises(ConfigError, match=message):
            env_fn, cfgs, _ = get_vec_env_setting(cfg)
            env_fn(cfgs[0])

    @pytest.mark.parametrize('env', [THINK, dict(task=dict(type='guess'), max_turns=3, max_reply_tokens=8)])
    def test_it_passes_the_checks_of_di_engine(self, env):
        check_all(DingTokenEnv(dict(env, max_new_tokens=3)))

    def test_a_seed_that_is_not_dynamic_is_that_of_every_episode(self):
        env, met = DingTokenEnv(THINK), {}
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
