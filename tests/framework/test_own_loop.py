"""The three modes of the policy in a loop without DI-engine's pipeline and without the group collector."""
import numpy as np
import pytest
import torch
from ding.config import compile_config
from ding.policy import PPOPolicy, single_env_forward_wrapper

from ding_common import ConfigError
from examples import plain_loop
from tests.policies import Timestep, sample_steps, step_policy, token_policy
from tests.same import same
from tests.shipped import small

VAC = dict(type='vac', obs_shape=3, action_shape=2, action_space='discrete')
CONTINUOUS = dict(VAC, action_space='continuous')


class TestOwnKeys:

    def actions(self, policy, episodes):
        """Of two steps of each episode in environments 0 and 1."""
        found, obs = [], {0: np.ones(3, np.float32), 1: np.ones(3, np.float32)}
        for _ in range(episodes):
            for _ in range(2):
                out = policy.collect_mode.forward(obs)
                found += [out[i]['action'].item() for i in obs]
            policy.collect_mode.reset([0, 1])
        return found

    def test_the_same_seed_gives_the_same_actions_also_in_a_resumed_loop(self):
        first, second, resumed = (step_policy(CONTINUOUS | dict(action_shape=1)) for _ in range(3))
        found = self.actions(first, 3)
        assert found == self.actions(second, 3) and len(set(found)) == len(found)
        for policy in (first, resumed):
            policy._learning.updater.optimizer_steps = 3
        assert self.actions(first, 2) == self.actions(resumed, 2)

    def test_extra_rows_need_the_collector(self):
        policy = token_policy(collect=dict(extra_rows=1))
        with pytest.raises(ConfigError, match='policy.collect.extra_rows: needs the group collector'):
            policy.collect_mode.forward({0: torch.tensor([1, 2])})


class TestTransitions:

    def episodes(self, policy):
        found = []
        for row, length in enumerate((2, 3)):
            obs = np.ones(3, np.float32)
            for step in range(length):
                out = policy.collect_mode.forward({row: obs})[row]
                done = step == length - 1
                found.append(policy.collect_mode.process_transition(obs, out, Timestep(float(row), done=done)))
            policy.collect_mode.reset([row])
        return found

    def test_one_list_is_divided_at_the_ends_of_episodes(self):
        policy = step_policy(VAC)
        flat = self.episodes(policy)
        one, = policy.collect_mode.get_train_sample(flat)
        two, = policy.collect_mode.get_train_sample([flat[:2], flat[2:]])
        same(one, two)
        assert one['length'].tolist() == [2, 3]
        with pytest.raises(ConfigError, match='get_train_sample: the last episode has not ended'):
            policy.collect_mode.get_train_sample(flat[:-1])

    def test_an_update_needs_nothing_of_the_collector(self):
        policy = step_policy(VAC)
        metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(self.episodes(policy)))
        assert metrics['optimizer_steps'] >= 1 and metrics['reward_mean'] == 1.5


class TestSingleEnv:

    @pytest.mark.parametrize(
        'model, obs, shape', [
            (VAC, np.ones(3), ()),
            (dict(VAC, obs_shape=[3, 44, 44], encoder_hidden_size_list=[8, 8, 64]), np.ones((3, 44, 44)), ()),
            (CONTINUOUS, np.ones(3), (2, )),
        ]
    )
    def test_the_action_is_that_of_the_evaluator(self, model, obs, shape):
        policy = step_policy(model)
        action = single_env_forward_wrapper(policy.eval_mode.forward)(obs.astype(np.float32))
        greedy = policy.eval_mode.forward({0: obs.astype(np.float32)})[0]['action']
        assert action.shape == shape and np.array_equal(action.reshape(-1), greedy.numpy().reshape(-1))

    def test_a_language_model_takes_ids_and_text(self):
        policy = token_policy()
        tokenizer = policy.spec.tokenizer
        ids = torch.tensor(tokenizer.encode('1 + 2'))
        action = single_env_forward_wrapper(policy.eval_mode.forward)(ids)
        for given in (ids, '1 + 2'):
            assert np.array_equal(policy.eval_mode.forward({0: given})[0]['action'].numpy().squeeze(), action)


@pytest.mark.envtest
def test_ppo_reads_a_checkpoint_of_grpo():
    policy = step_policy(VAC)
    sample = sample_steps(policy, [2, 3], lambda row, step: float(row))
    policy.learn_mode.forward([sample])
    state = policy.learn_mode.state_dict()
    main, create = small('cartpole_ppo')
    main.policy.model = {key: value for key, value in VAC.items() if key != 'type'}
    cfg = compile_config(main, seed=0, create_cfg=create, auto=True, save_cfg=False).policy
    ppo = PPOPolicy(cfg)
    for mode in (ppo.learn_mode, ppo.eval_mode):
        mode.load_state_dict(state)
    obs = np.ones(3, np.float32)
    same(dict(ppo._model.state_dict()), dict(policy._model.state_dict()))
    assert ppo.eval_mode.forward({0: torch.from_numpy(obs)})[0]['action'] == \
        policy.eval_mode.forward({0: obs})[0]['action']


@pytest.mark.algotest
@pytest.mark.parametrize('seed', range(3))
def test_the_example_learns_cartpole(seed, own_folder):
    assert plain_loop.main(seed) >= 475
