"""A model with a memory: learning reads whole episodes, and computes what sampling has computed step by step."""
from dataclasses import replace

import numpy as np
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy
from ding.policy import single_env_forward_wrapper
from gymnasium.spaces import Box, Discrete
from torch import nn

from ding_common import ConfigError
from ding_grpo.act.actor import Wanted
from ding_grpo.act.distributions import distribution
from ding_grpo.data.batch import Batch
from tests.act.matching import NUMBERS, STEPS, config
from tests.cases import long
from tests.policies import CONTINUOUS, DISCRETE, HYBRID, Step, change, sample_steps, step_policy
from tests.runs import evaluations, metrics
from tests.shipped import load

CRITIC = dict(learn=dict(advantage='gae'))
KINDS = dict(discrete=DISCRETE, several=dict(DISCRETE, action_shape=[4, 3]), continuous=CONTINUOUS, hybrid=HYBRID)
MEMORIES = ('gru', 'lstm')


def recurrent(base=DISCRETE, memory='gru', **sections):
    """A policy whose distributions depend on the past."""
    policy = step_policy(dict(base, type='recurrent_vac', memory=memory), **sections)
    change(policy.model, 2.)
    return policy


def plain(model, episode):
    """Logits and values of an episode (S, 3) by a loop over its steps, with torch's cells of the same weights."""
    kind = nn.LSTMCell if isinstance(model.memory, nn.LSTM) else nn.GRUCell
    cell, state = kind(64, 64), None
    for name in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh'):
        setattr(cell, name, getattr(model.memory, f'{name}_l0'))
    for obs in episode:
        state = cell(model.observer(obs.unsqueeze(0)), state)
        yield model.compute_actor_critic(state[0] if kind is nn.LSTMCell else state)


def read_plainly(model, batch):
    """Log-probabilities and values of the steps of a batch, (M, ) each."""
    steps = [out for episode in batch.obs.split(batch.length.tolist()) for out in plain(model, episode)]
    action = batch.action[batch.weight != 0].split(1)
    logp = [distribution(out['logit'], 1., None).log_prob(x) for out, x in zip(steps, action)]
    return torch.cat(logp), torch.cat([out['value'] for out in steps])


def uneven(policy):
    return Batch.of([sample_steps(policy, n, truncated=(0, ), number=i) for i, n in enumerate(([3, 1], [40, 17]))])


class TestReading:

    @pytest.mark.parametrize('kind', KINDS)
    @pytest.mark.parametrize('memory', MEMORIES)
    def test_log_probabilities_are_those_of_a_plain_loop(self, memory, kind):
        policy = recurrent(KINDS[kind], memory, **CRITIC)
        batch = uneven(policy)
        counted, reading = batch.weight != 0, policy.read(batch, critic=policy.terms['critic'].critic)
        with torch.no_grad():
            logp, value = read_plainly(policy.model, batch)
        for found in (batch.logp_old, reading.logp):  # of the sampler, of the learner
            assert (found[counted] - logp).abs().max() < 1e-6
        assert (reading.value[counted] - value).abs().max() < 1e-6
        backwards = policy.read(replace(batch, obs=batch.obs.flip(0))).logp[counted]
        assert policy.actor.exact and (backwards - logp).abs().max() > 0.01

    @pytest.mark.parametrize('memory', MEMORIES)
    def test_the_gradient_is_that_of_a_plain_loop(self, memory):
        policy = recurrent(memory=memory)
        batch, model = uneven(policy), policy.model.double()
        batch = replace(batch, obs=batch.obs.double())
        counted, gradients = batch.weight != 0, []
        reading = policy.actor.read(model, batch, Wanted(critic=policy.model))
        for logp, value in ((reading.logp[counted], reading.value[counted]), read_plainly(model, batch)):
            factor = torch.linspace(-1, 1, len(logp), dtype=torch.double)
            loss = (factor * logp).sum() + (factor * value ** 2).sum()
            gradients.append(torch.autograd.grad(loss, [*model.parameters()], allow_unused=True))
        assert all(x.abs().max() > 1e-3 for x in gradients[1])
        assert all(torch.allclose(*pair, rtol=1e-10, atol=1e-12) for pair in zip(*gradients))

    def test_values_after_a_time_limit_know_the_whole_row(self):
        policy = recurrent(**CRITIC)
        batch = uneven(policy)
        with torch.no_grad():
            found = policy.actor.final_value(policy.model, batch, None)
            for row, steps in enumerate(batch.obs.split(batch.length.tolist())):
                *_, last = plain(policy.model, torch.cat([steps, batch.final_obs[row:row + 1]]))
                expected = last['value'] if batch.truncated[row] else torch.zeros(1)
                assert (found[row] - expected).abs() < 1e-6
        assert batch.truncated.tolist() == [True, False] * 2 and found[0].abs() > 0.01

    @pytest.mark.parametrize('sections', [{}, CRITIC], ids=['outcome', 'gae'])
    def test_the_first_ratio_is_1(self, sections):
        policy = recurrent(**sections)
        policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))
        groups = [sample_steps(policy, [9, 4], lambda row, step: float(row), truncated=(0, ))]
        found = policy.learn_mode.forward(groups)
        assert found['ratio_max'] == pytest.approx(1, abs=2e-6) and found['grad_norm'] > 0


class Sampler:
    """Log-probabilities of action 1 in environments, and what they depend on."""

    def __init__(self):
        self.policy, self.mode = recurrent(), None
        self.mode = self.policy.collect_mode
        self.seen = dict(zip('abc', torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).numpy()))

    def __call__(self, letters, env=0):
        for letter in letters:
            obs, keys = {env: self.seen[letter]}, {env: (0, 0, env)}
            found = self.mode.forward(obs, row_keys=keys, forced={env: {0: 1}})[env]
        return found['logp'].item()


class TestStates:

    def test_an_episode_starts_without_the_memory_of_another(self):
        logp = Sampler()
        fresh = [logp('b'), logp.mode.reset([0]), logp('b'), logp.mode.reset(), logp('b')]
        assert fresh[0] == fresh[2] == fresh[4] and abs(logp('b') - fresh[0]) > 1e-3
        logp.mode.reset([0])
        assert logp('b', env=1) == fresh[0]

    def test_other_environments_and_evaluations_between_two_steps(self):
        logp = Sampler()
        expected = logp('abc')
        logp.mode.reset([0])
        logp('a'), logp('c', env=1), logp('b')
        logp.policy.eval_mode.forward({0: logp.seen['a']})
        logp.policy.eval_mode.reset()
        assert logp('c') == pytest.approx(expected, abs=1e-6) and abs(logp('c', env=2) - expected) > 1e-3

    def test_binding_leaves_no_state(self):
        policy = recurrent()
        policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))
        assert not policy.actor._states

    def test_deployment_remembers_until_it_is_reset(self):
        policy, obs = recurrent(CONTINUOUS), np.ones(3, np.float32)
        act = single_env_forward_wrapper(policy.eval_mode.forward)
        first, second = act(obs), act(obs)
        policy.eval_mode.reset([0])
        assert np.array_equal(act(obs), first) and np.abs(second - first).max() > 1e-3

    def test_masked_observations(self):
        policy, episodes = recurrent(), []
        for row, length in enumerate((3, 2)):
            episode = []
            for step in range(length):
                mask = np.eye(4, dtype=np.int8)[step % 2] + np.eye(4, dtype=np.int8)[3]
                obs = dict(observation=np.full(3, 1. + step, np.float32), action_mask=mask)
                out = policy.collect_mode.forward({row: obs})[row]
                assert mask[out['action'].item()] == 1
                timestep = Step(np.zeros(1), {}, step == length - 1)
                timestep.obs = obs
                episode.append(policy.collect_mode.process_transition(obs, out, timestep))
            episodes.append(episode)
        batch = Batch.of(policy.collect_mode.get_train_sample(episodes))
        logp = policy.read(batch).logp
        assert ((logp - batch.logp_old)[batch.weight != 0]).abs().max() < 1e-6 and logp.min() < -0.1


class TestRefusals:

    @pytest.mark.parametrize(
        'model, learn, message', [
            ({}, dict(batch_steps=4), 'policy.learn.batch_steps = 4: RecurrentVAC has a memory .*Set it to None'),
            (dict(memory='rnn'), {}, "policy.model.memory = 'rnn': must be 'gru' or 'lstm'"),
            (dict(share_encoder=False), {}, 'policy.model.share_encoder = False: not available'),
            (dict(memory_size=3), {}, "'recurrent_vac' cannot be built with them .*memory_size"),
        ]
    )
    def test_of_the_config(self, model, learn, message):
        with pytest.raises(ConfigError, match=message):
            step_policy(dict(DISCRETE, type='recurrent_vac', **model), learn=learn)

    @pytest.mark.parametrize('lstm_type', ['normal', 'pytorch', 'gru'])
    def test_other_models_with_a_memory_name_this_one(self, lstm_type):
        policy = step_policy(dict(type='drqn', obs_shape=3, action_shape=4, lstm_type=lstm_type))
        with pytest.raises(ConfigError, match=r"DRQN does not read .*grpo trains policy.model.type = 'recurrent_vac'"):
            policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))

    def test_observations_of_another_shape(self):
        with pytest.raises(ConfigError, match='obs_shape: RecurrentVAC does not read observations of shape') as caught:
            recurrent().bind(None, (Box(-1, 1, (4, )), Discrete(4)))
        assert 'grpo trains' not in str(caught.value)  # this model is the way out for others

    @pytest.mark.envtest
    def test_ppo_would_learn_without_the_memory(self, own_folder):
        main, create = load('cartpole_ppo', exp_name='run', policy=dict(model=dict(type='recurrent_vac')))
        create.policy.import_names, create.env_manager.type = ['ding_grpo'], 'base'
        with pytest.raises(ConfigError, match="neither whole episodes nor states. Set policy.type to 'grpo'"):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)


@pytest.mark.envtest
@pytest.mark.parametrize('model, seed', [(dict(memory='gru'), 4), long(dict(memory='lstm'), 4)], ids=str)
def test_learns_what_must_be_remembered(model, seed, own_folder):
    """``test_matching.py`` has five seeds."""
    main, create = config('memory', seed)
    main['policy']['model'].update(model)
    serial_pipeline_onpolicy((main, create), seed=seed, max_train_iter=20)
    assert evaluations(main['exp_name'])[-1]['eval_episode_return'] >= 0.9 * STEPS


@pytest.mark.algotest
def test_a_model_without_a_memory_learns_the_first_step_alone(own_folder):
    main, create = config('memory')
    main['policy']['model']['type'] = 'vac'
    serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=30)
    late = [record['reward_mean'] for record in metrics(main['exp_name'])[15:]]
    assert np.mean(late) == pytest.approx(1 + (STEPS - 1) / NUMBERS, abs=0.25)  # 2.75
