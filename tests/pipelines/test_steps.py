"""GRPO on environments that have nothing to do with language, through DI-engine's own pipeline."""
import os

import gymnasium
import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from ding_common import ConfigError, TaskError, read_json_lines
from tests.shipped import load


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A shipped config with short episodes: (name, manager, changes) -> (main_config, create_config)."""
    monkeypatch.chdir(tmp_path)

    def made(name, manager='base', **changes):
        main, create = load(name, exp_name='run')
        create.env_manager.type = manager
        main.env.update(
            evaluator_env_num=3, n_evaluator_episode=3, stop_value=1e9, env_kwargs=dict(max_episode_steps=15)
        )
        for path, value in changes.items():
            section = main
            *keys, last = path.split('__')
            for key in keys:
                section = section[key]
            section[last] = value
        return main, create

    return made


class Sides(gymnasium.Env):
    """A picture of which one half is bright; the action must name it, for four steps."""
    observation_space = gymnasium.spaces.Box(0, 1, (1, 40, 40), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._picture(), {}

    def step(self, action):
        reward = float(int(action) == self._bright)
        self._steps += 1
        return self._picture(), reward, self._steps == 4, False, {}

    def _picture(self):
        self._bright = int(self.np_random.integers(2))
        picture = np.zeros((1, 40, 40), np.float32)
        picture[:, :, 20 * self._bright:20 * (self._bright + 1)] = 1
        return picture


class Both(gymnasium.Env):
    """Reward 1 if both actions were taken in five steps, of which the observation tells nothing."""
    observation_space = gymnasium.spaces.Box(0, 1, (4, ), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._taken = []
        return np.ones(4), {}

    def step(self, action):
        self._taken.append(int(action))
        done = len(self._taken) == 5
        return np.ones(4), float(done and len(set(self._taken)) == 2), done, False, {}


class Worst(Both):
    """The end costs 100, and action 1 costs 0.1 more."""

    def step(self, action):
        obs, _, done, *rest = super().step(action)
        return obs, -0.1 * float(action) - 100 * float(done), done, *rest


class Seen(Both):
    """Observations of a space."""

    def __init__(self, space):
        self.observation_space = space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(100)))
        return self.observation_space.sample(), {}

    def step(self, action):
        return (self.observation_space.sample(), *super().step(action)[1:])


def run(configs, updates=2, seed=0):
    policy = serial_pipeline_onpolicy(configs, seed=seed, max_train_iter=updates)
    log = os.path.join('run', 'log')
    return (
        policy, read_json_lines(os.path.join(log, 'learner', 'metrics.jsonl')),
        read_json_lines(os.path.join(log, 'evaluator', 'evaluations.jsonl'))
    )


def learned(policy):
    return torch.cat([p.detach().flatten() for p in policy._model.parameters()])


@pytest.mark.envtest
class TestPipeline:

    @pytest.mark.curves
    @pytest.mark.parametrize('name', ['cartpole_grpo', 'acrobot_grpo', 'pendulum_grpo', 'cartpole_gae'])
    def test_learns_and_leaves_its_record(self, small, name):
        configs = small(name, policy__eval=dict(evaluator=dict(eval_freq=1, samples_per_start=2)))
        _, metrics, evaluations = run(configs)
        assert len(metrics) == 2
        if name != 'acrobot_grpo':  # of which fifteen steps are all alike
            assert all(m['grad_norm'] > 0 for m in metrics)
        assert 1 <= metrics[0]['episode_length_mean'] <= 15 and metrics[0]['steps_per_second'] > 0
        assert all('sampled_return' in e for e in evaluations)
        assert os.path.exists(os.path.join('run', 'curve.png')) and not os.path.exists(os.path.join('run', 'model'))

    @pytest.mark.parametrize('name', ['cartpole_grpo', 'cartpole_gae'])
    @pytest.mark.parametrize(
        'space, shape', [
            (gymnasium.spaces.Box(-1, 1, (1, ), np.float32), 1),
            (gymnasium.spaces.Box(-1, 1, (), np.float32), 1),
            (gymnasium.spaces.Discrete(5), 5),
        ]
    )
    def test_observations_of_one_number(self, small, name, space, shape):
        """As a column, or one-hot."""
        gymnasium.register('Seen-v0', Seen)
        main, create = small(name, policy__learn__extend_truncated=False)
        main.env.update(env_id='Seen-v0', env_kwargs=dict(space=space))
        main.policy.model.obs_shape, main.policy.model.action_shape = shape, 2
        assert all(m['grad_norm'] > 0 for m in run((main, create))[1])

    def test_pictures_through_a_convolutional_encoder(self, small):
        gymnasium.register('Sides-v0', Sides)
        main, create = small(
            'cartpole_grpo',
            policy__model=dict(obs_shape=[1, 40, 40], action_shape=2, encoder_hidden_size_list=[8, 8, 64]),
            policy__learn__learning_rate=1e-3,
            policy__learn__extend_truncated=False,
        )
        main.env.update(env_id='Sides-v0', env_kwargs={})
        _, metrics, _ = run((main, create), updates=12)
        best = max(m['reward_mean'] for m in metrics)
        assert best > 3.5 > 2.8 > metrics[0]['reward_mean']  # of 4; by chance 2

    def test_processes_change_nothing(self, small):
        whole = []
        for manager in ('base', 'subprocess'):
            policy, metrics, evaluations = run(small('cartpole_grpo', manager))
            returns = [e['eval_episode_return'] for e in evaluations]
            whole.append((learned(policy), [m['reward_mean'] for m in metrics], returns))
            os.rename('run', manager)
        assert torch.equal(whole[0][0], whole[1][0])
        assert whole[0][1] == whole[1][1] and whole[0][2] == whole[1][2]

    def test_which_groups_are_replaced_does_not_depend_on_who_ends_first(self, small):
        """Many groups of two reach the limit of 12 steps both, and such are replaced; the others end before."""
        found = []
        for number in (4, 8, 16):
            main, create = small(
                'cartpole_grpo',
                env__collector_env_num=number,
                policy__group_size=2,
                policy__learn__advantage='outcome',
                policy__learn__extend_truncated=False,
                policy__collect=dict(n_sample=6, discount_factor=1.0, collector=dict(max_replacements=3)),
            )
            main.env.env_kwargs.max_episode_steps = 12
            _, metrics, _ = run((main, create), updates=1)
            found.append((metrics[0]['reward_mean'], metrics[0]['replaced_groups']))
            os.rename('run', str(number))
        assert found[0] == found[1] == found[2] and found[0][1] > 0

    def test_nothing_to_learn_from_is_no_end(self, small):
        _, metrics, _ = run(
            small(
                'cartpole_grpo',
                policy__learn__advantage='outcome',
                policy__learn__extend_truncated=False,
                policy__learn__drop_equal_groups=True,
                policy__collect__discount_factor=1.0,
                env__env_kwargs=dict(max_episode_steps=3),  # all reach it
            )
        )
        assert [m['optimizer_steps'] for m in metrics] == [0, 0] and 'entropy' not in metrics[0]
        assert open(os.path.join('run', 'log', 'learner', 'metrics.jsonl')).read().count('NaN') == 0

    def test_a_seed_is_the_whole_run(self, small):
        first, second, other = (self.of_seed(small, seed) for seed in (0, 0, 1))
        assert torch.equal(first, second) and not torch.equal(first, other)

    @staticmethod
    def of_seed(small, seed):
        policy, _, _ = run(small('cartpole_grpo'), seed=seed)
        return learned(policy)

    @pytest.mark.parametrize(
        'changes', [
            dict(policy__learn__advantage='outcome', policy__learn__extend_truncated=False),
            dict(policy__collect__shared_start=False),
            dict(policy__learn__beta=0.1),
            dict(policy__model=dict(type='pg', obs_shape=4, action_shape=2, encoder_hidden_size_list=[16, 16])),
        ],
        ids=str
    )
    def test_options(self, small, changes):
        _, metrics, _ = run(small('cartpole_grpo', **changes))
        assert len(metrics) == 2

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(policy__learn__reduction='constant'), "reduction 'constant'"),
            (dict(policy__collect__top_k=3), 'policy.collect.top_k = 3'),
            (dict(policy__group_size=5), 'env.collector_env_num = 24'),
            (dict(policy__model=dict(obs_shape=4, action_shape=2, action_shap=1)), 'action_shap'),
        ],
        ids=str
    )
    def test_wrong_use(self, small, changes, message):
        with pytest.raises(ConfigError, match=message):
            run(small('cartpole_grpo', **changes))

    def test_a_run_with_abnormal_ends_can_be_repeated(self, small, monkeypatch):
        from ding_grpo.envs import GymnasiumEnv
        expected, _, _ = run(small('cartpole_grpo'))
        taken, step = [], GymnasiumEnv.step

        def break_at_times(self, action):
            timestep = step(self, action)
            taken.append(timestep)
            if len(taken) in (80, 120, 240):
                timestep = timestep._replace(done=True, info=dict(timestep.info, abnormal=True, eval_episode_return=0.))
            return timestep

        monkeypatch.setattr(GymnasiumEnv, 'step', break_at_times)
        disturbed = []
        for name in ('first', 'second'):
            os.rename('run', name)
            taken.clear()
            disturbed.append(learned(run(small('cartpole_grpo'))[0]))
            assert len(taken) > 240
        assert torch.equal(*disturbed) and not torch.equal(disturbed[0], learned(expected))

    def test_an_environment_that_ignores_its_seed(self, small, monkeypatch):
        from ding_grpo.envs import GymnasiumEnv
        monkeypatch.setattr(GymnasiumEnv, 'seed', lambda self, value, dynamic_seed=True: None)
        with pytest.raises(ConfigError,
                           match='policy.collect.shared_start = True: .* start differently with the same seed'):
            run(small('cartpole_grpo'))
        run(small('cartpole_grpo', policy__collect__shared_start=False), updates=1)

    def test_the_training_starts_are_none_of_the_evaluators(self, small, monkeypatch):
        from ding_grpo.envs import GymnasiumEnv
        seeds = dict(collector=set(), evaluator=set())
        seed = GymnasiumEnv.seed

        def note(self, value, dynamic_seed=True):
            seeds['evaluator' if value < 2 ** 30 else 'collector'].add(value)
            seed(self, value, dynamic_seed)

        monkeypatch.setattr(GymnasiumEnv, 'seed', note)
        run(small('cartpole_grpo'))
        assert len(seeds['evaluator']) >= 3 and len(seeds['collector']) == 12

    @pytest.fixture
    def both(self, small):
        gymnasium.register('Both-v0', Both)
        main, create = small('cartpole_grpo', policy__learn__extend_truncated=False)
        main.env.update(env_id='Both-v0', env_kwargs={})
        main.policy.eval.evaluator.eval_freq = 1
        return main, create

    @pytest.mark.parametrize('samples', [0, 8])
    def test_greedy_evaluations_that_fail_where_samples_succeed_are_a_finding(self, both, samples):
        """Greedy evaluations stay at 0 while training succeeds: no known cause, said the page of findings."""
        both[0].policy.eval.evaluator.samples_per_start = samples
        run(both, updates=5)
        found, = [f for f in read_json_lines('run/findings.jsonl') if f['cause'] == 'greedy_behind']
        assert found['greedy'] == 0 and found['sampled'] > 0.75 and 'evaluator.sample=True' in found['message']

    def test_not_where_wrappers_change_the_rewards_of_training(self, both):
        """The best return is -100, and training is rewarded with -10 for it: greedy evaluations looked far behind."""
        gymnasium.register('Worst-v0', Worst)
        main, _ = both
        main.env.update(env_id='Worst-v0', rew_clip=True)
        run(both, updates=5)
        assert os.path.getsize('run/findings.jsonl') == 0

    def test_evaluation_by_sampling_stops_the_run_and_chooses_the_best(self, both):
        main, create = both
        main.policy.eval.evaluator.update(sample=True, eval_freq=2)
        main.env.update(stop_value=0.2, n_evaluator_episode=30)
        _, metrics, evaluations = run(both, updates=5)
        assert len(metrics) == 2 and [e['greedy_return'] for e in evaluations] == [0, 0]
        assert all(e['eval_episode_return'] == e['sampled_return'] > 0.2 for e in evaluations)
        assert os.path.getsize('run/findings.jsonl') == 0

    def test_the_best_by_sampling_is_saved(self, both, monkeypatch):
        """All greedy evaluations return 0, so that the first was the best by them."""
        returns = [0.2, 0.9, 0.3, 0.5]
        left = iter(returns)

        def sampled(*args):
            return {'return': np.full((2, 1), next(left))}, [None] * 2

        monkeypatch.setattr('ding_grpo.evaluate.evaluator.sampled_episodes', sampled)
        both[0].policy.eval.evaluator.update(sample=True)
        assert [e['eval_episode_return'] for e in run(both, updates=3)[2]] == returns
        best = torch.load('run/ckpt/ckpt_best.pth.tar', weights_only=True)
        assert best['last_iter'] == 1

    @pytest.mark.parametrize('options', [dict(sample=True), dict(samples_per_start=2)])
    def test_other_policies_do_not_sample_in_evaluations(self, small, options):
        configs = small('cartpole_ppo')
        configs[0].policy.setdefault('eval', {}).setdefault('evaluator', {}).update(options)
        name, value = next(iter(options.items()))
        with pytest.raises(ConfigError, match=f"evaluator.{name} = {value}: policy.type = 'ppo' only evaluates gree"):
            run(configs)

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    @pytest.mark.parametrize('method, message', [
        ('__init__', 'create_config.env: GymnasiumEnv cannot be created .*No module named .its_engine.*Install'),
        ('reset', 'an environment failed in (reset|missing): .*No module named .its_engine'),
    ])  # yapf: disable
    def test_an_environment_that_lacks_a_package(self, small, monkeypatch, manager, method, message):
        from ding_grpo.envs import GymnasiumEnv

        def missing(*args, **kwargs):
            raise ImportError("No module named 'its_engine'")

        monkeypatch.setattr(GymnasiumEnv, method, missing)
        with pytest.raises((ConfigError, TaskError), match=message) as caught:
            run(small('cartpole_grpo', manager))
        assert len(caught.value.message.splitlines()) == 1 and not os.path.exists('run')
