"""GRPO on environments that have nothing to do with language, through DI-engine's own pipeline."""
import os

import gymnasium
import numpy as np
import pytest
from ding.utils import deep_merge_dicts
from gymnasium.envs.classic_control import CartPoleEnv

from ding_common import ConfigError
from tests.cases import long
from tests.runs import distance, evaluations, findings, metrics, state, train, weights
from tests.same import same
from tests.shipped import load

pytestmark = pytest.mark.envtest
SHORT = dict(evaluator_env_num=3, n_evaluator_episode=3, stop_value=1e9, env_kwargs=dict(max_episode_steps=15))
WHOLE = dict(learn=dict(advantage='outcome', extend_truncated=False))  # no truncated episode is continued


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


class Pole(CartPoleEnv):
    """Notes its seeds, and breaks in the steps ``at`` of all."""

    def reset(self, seed=None, options=None):
        if seed is not None:
            Pole.seeds.add(seed)
        return super().reset(seed=seed if Pole.seeded else None, options=options)

    def step(self, action):
        obs, reward, done, truncated, info = super().step(action)
        Pole.taken += 1
        broken = Pole.taken in Pole.at
        return obs, reward, done or broken, truncated, dict(info, abnormal=True) if broken else info


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Pole.seeds, Pole.taken, Pole.at, Pole.seeded = set(), 0, (), True


def short(name='cartpole_grpo', manager='base', env={}, kind=None, **policy):
    """A shipped config with short episodes, of the environment ``kind``."""
    main, create = load(name, exp_name='run', env=deep_merge_dicts(SHORT, env), policy=policy)
    create.env_manager.type = manager
    if kind is not None:
        main.env.env_id = f'{kind.__name__}-v0'
        gymnasium.register(main.env.env_id, kind)
        main.env.env_kwargs = main.env.env_kwargs if kind is Pole else env.get('env_kwargs', {})
    return main, create


def eval_with(**evaluator):
    return dict(eval=dict(evaluator=evaluator))


class TestPipeline:

    @pytest.mark.curves
    @pytest.mark.parametrize('name', [long('cartpole_grpo'), 'pendulum_grpo', 'cartpole_gae'])
    def test_learns_and_leaves_its_record(self, name):
        train(short(name, **eval_with(eval_freq=1, samples_per_start=2)), 2)
        assert len(metrics()) == 2
        assert all(m['grad_norm'] > 0 for m in metrics())
        assert 1 <= metrics()[0]['episode_length_mean'] <= 15 and metrics()[0]['steps_per_second'] > 0
        assert all('sampled_return' in e for e in evaluations())
        assert os.path.exists('run/curve.png') and not os.path.exists('run/model')

    @pytest.mark.parametrize(
        'name, space, shape', [
            long('cartpole_grpo', gymnasium.spaces.Box(-1, 1, (1, ), np.float32), 1),
            ('cartpole_gae', gymnasium.spaces.Box(-1, 1, (), np.float32), 1),
            ('cartpole_grpo', gymnasium.spaces.Discrete(5), 5),
            long('cartpole_gae', gymnasium.spaces.Discrete(5), 5),
        ]
    )
    def test_observations_of_one_number(self, name, space, shape):
        """As a column, or one-hot."""
        model, learn = dict(obs_shape=shape, action_shape=2), dict(extend_truncated=False)
        train(short(name, env=dict(env_kwargs=dict(space=space)), kind=Seen, model=model, learn=learn), 2)
        assert all(m['grad_norm'] > 0 for m in metrics())

    def test_pictures_through_a_convolutional_encoder(self):
        main, create = short(kind=Sides, learn=dict(learning_rate=1e-3, extend_truncated=False))
        main.policy.model = dict(obs_shape=[1, 40, 40], action_shape=2, encoder_hidden_size_list=[8, 8, 64])
        train((main, create), 12)
        assert max(m['reward_mean'] for m in metrics()) > 3.5 > 2.8 > metrics()[0]['reward_mean']  # of 4; by chance 2

    def test_a_seed_is_the_whole_run_also_with_environments_in_processes(self):
        found = {}
        for name, manager, seed in (('base', 'base', 0), ('processes', 'subprocess', 0), ('other', 'base', 1)):
            policy = train(short(manager=manager), 2, seed, name)
            returns = [e['eval_episode_return'] for e in evaluations(name)]
            found[name] = weights(policy), [m['reward_mean'] for m in metrics(name)], returns
        same(found['base'], found['processes'])
        assert distance(found['base'][0], found['other'][0]) > 0

    def test_which_groups_are_replaced_does_not_depend_on_who_ends_first(self):
        """Many groups of two reach the limit of 12 steps both, and such are replaced; the others end before."""
        found = []
        for number in (4, 16):
            env = dict(collector_env_num=number, env_kwargs=dict(max_episode_steps=12))
            collect = dict(groups=6, discount_factor=1.0, collector=dict(max_replacements=3))
            train(short(env=env, group_size=2, collect=collect, **WHOLE), 1, name=str(number))
            found.append([metrics(str(number))[0][name] for name in ('reward_mean', 'replaced_groups')])
        assert found[0] == found[1] and found[0][1] > 0

    def test_nothing_to_learn_from_is_no_end(self):
        env = dict(env_kwargs=dict(max_episode_steps=3))  # all reach it
        train(short(env=env, collect=dict(discount_factor=1.0), **WHOLE), 2, drop_equal_groups=True)
        assert [m['optimizer_steps'] for m in metrics()] == [0, 0] and 'entropy' not in metrics()[0]
        assert open('run/log/learner/metrics.jsonl').read().count('NaN') == 0

    def test_another_network(self):
        main, create = short()
        main.policy.model = dict(type='pg', obs_shape=4, action_shape=2, encoder_hidden_size_list=[16, 16])
        train((main, create), 2)
        assert len(metrics()) == 2

    @pytest.mark.parametrize(
        'name, policy, message', [
            ('cartpole_grpo', dict(learn=dict(reduction='constant')), "reduction 'constant'"),
            ('cartpole_grpo', dict(collect=dict(top_k=3)), 'policy.collect.top_k = 3'),
            ('cartpole_grpo', dict(group_size=5), 'env.collector_env_num = 24'),
            ('cartpole_grpo', dict(model=dict(action_shap=1)), 'action_shap'),
            ('cartpole_ppo', eval_with(sample=True), "evaluator.sample = True: policy.type = 'ppo' only"),
            ('cartpole_ppo', eval_with(samples_per_start=2), "samples_per_start = 2: policy.type = 'ppo' only"),
        ],
        ids=str
    )
    def test_wrong_use(self, name, policy, message):
        with pytest.raises(ConfigError, match=message):
            train(short(name, **policy), 2)

    def test_a_run_with_abnormal_ends_can_be_repeated(self, monkeypatch):
        found = []
        for at in ((), (80, 120, 240), (80, 120, 240)):
            Pole.taken, Pole.at = 0, at
            found.append(weights(train(short(kind=Pole), 2, name=str(len(found)))))
            assert Pole.taken > 240
        same(found[1], found[2])
        assert distance(found[0], found[1]) > 0

    def test_an_environment_that_ignores_its_seed(self):
        Pole.seeded = False
        with pytest.raises(ConfigError,
                           match='policy.collect.shared_start = True: .* start differently with the same seed'):
            train(short(kind=Pole), 2)
        train(short(kind=Pole, collect=dict(shared_start=False)), 1)

    def test_the_training_starts_are_none_of_the_evaluators(self):
        train(short(kind=Pole), 2)
        of_evaluator = [seed for seed in Pole.seeds if seed < 2 ** 30]
        assert len(of_evaluator) >= 3 and len(Pole.seeds) - len(of_evaluator) == 12


class TestGreedyBehind:
    """Greedy evaluations stay at 0 while training succeeds."""

    @staticmethod
    def both(kind=Both, env={}, **evaluator):
        evaluator.setdefault('eval_freq', 1)
        return short(kind=kind, env=env, learn=dict(extend_truncated=False), **eval_with(**evaluator))

    @pytest.mark.parametrize('samples', [0, 8])
    def test_is_a_finding(self, samples):
        """No known cause, said the page of findings."""
        train(self.both(samples_per_start=samples), 5)
        found, = [f for f in findings() if f['cause'] == 'greedy_behind']
        assert found['greedy'] == 0 and found['sampled'] > 0.75 and 'evaluator.sample=True' in found['message']

    def test_not_where_wrappers_change_the_rewards_of_training(self):
        """The best return is -100, and training is rewarded with -10 for it: greedy evaluations looked far behind."""
        train(self.both(Worst, env=dict(rew_clip=True)), 5)
        assert os.path.getsize('run/findings.jsonl') == 0

    def test_evaluation_by_sampling_stops_the_run(self):
        train(self.both(sample=True, eval_freq=2, env=dict(stop_value=0.2, n_evaluator_episode=30)), 5)
        assert len(metrics()) == 2 and [e['greedy_return'] for e in evaluations()] == [0, 0]
        assert all(e['eval_episode_return'] == e['sampled_return'] > 0.2 for e in evaluations())
        assert os.path.getsize('run/findings.jsonl') == 0

    def test_the_best_by_sampling_is_saved(self, monkeypatch):
        """All greedy evaluations return 0, so that the first was the best by them."""
        returns = [0.2, 0.9, 0.3, 0.5]
        left = iter(returns)

        def sampled(*args):
            return {'return': np.full((2, 1), next(left))}, [None] * 2

        monkeypatch.setattr('ding_grpo.evaluate.evaluator.sampled_episodes', sampled)
        train(self.both(sample=True), 3)
        assert [e['eval_episode_return'] for e in evaluations()] == returns
        assert state('best')['last_iter'] == 1
