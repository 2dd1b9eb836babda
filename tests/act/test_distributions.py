"""Every kind of actions: sampled, learned and given to the environment as the model means them."""
import math

import numpy as np
import pytest
import torch
from ding.torch_utils import to_ndarray
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from torch.distributions import Categorical, Normal

from ding_common import TaskError
from ding_grpo.act.distributions import NEVER, distribution
from ding_grpo.data.batch import Batch
from tests.policies import CONTINUOUS, DISCRETE, HYBRID, Timestep, step_policy

SEVERAL = dict(DISCRETE, action_shape=[4, 2, 3])
KINDS = [
    (DISCRETE, Discrete(4, start=7)),
    (SEVERAL, MultiDiscrete([4, 2, 3], start=[0, 5, 1])),
    (CONTINUOUS, Box(-9, 9, (2, 1))),
    (HYBRID, Tuple([Discrete(3, start=1), Box(-9, 9, (1, )), Box(-9, 9, (1, ))])),
    (HYBRID, Dict(action_type=Discrete(3), action_args=Box(-9, 9, (2, )))),
]


def plain_parts(model, obs, action):
    """Of one step: torch's distributions of the independent parts of its action, and these parts."""
    logit = model.compute_actor(obs.unsqueeze(0))['logit']
    if isinstance(logit, list):
        return [(Categorical(logits=each[0]), a) for each, a in zip(logit, action)]
    if not isinstance(logit, dict):
        return [(Categorical(logits=logit[0]), action)]
    args, parts = logit.get('action_args', logit), []
    if 'action_type' in logit:
        parts, action = [(Categorical(logits=logit['action_type'][0]), action[0].long())], action[1:]
    return [*parts, (Normal(args['mu'][0], args['sigma'][0]), action)]


@pytest.mark.parametrize('model, space', KINDS, ids=lambda x: getattr(x, 'action_space', None) and str(x))
def test_learned_log_probabilities_are_those_of_single_steps(model, space):
    policy = step_policy(model)
    policy.bind(None, (Box(-1, 1, (3, )), space))
    episodes, plain, generator = [], [], np.random.default_rng(0)
    start = generator.standard_normal(3).astype(np.float32)
    for row, length in enumerate((2, 3)):
        episode, obs = [], start
        for step in range(length):
            out = policy.collect_mode.forward({row: obs})[row]
            parts = plain_parts(policy.model, torch.from_numpy(obs), out['taken'])
            logp, entropy = (d.log_prob(a) for d, a in parts), (d.entropy() for d, _ in parts)
            plain.append([sum(x.sum().item() for x in numbers) for numbers in (logp, entropy)])
            done = step == length - 1
            episode.append(policy.collect_mode.process_transition(obs, out, Timestep(float(row), done=done)))
            obs = generator.standard_normal(3).astype(np.float32)
        episodes.append(episode)
    batch = Batch.of(policy.collect_mode.get_train_sample(episodes))
    read = policy.actor.read(policy.model, batch)
    logp, entropy = torch.tensor(plain).T
    for found, expected in ((batch.logp_old, logp), (read.logp, logp), (read.entropy, entropy)):
        assert torch.allclose(found[batch.weight != 0], expected, atol=1e-6, rtol=0)
    assert policy.learn_mode.forward(policy.collect_mode.get_train_sample(episodes))['optimizer_steps'] > 0


@pytest.mark.parametrize('model, space', KINDS, ids=range(len(KINDS)))
def test_the_environment_gets_actions_of_its_space(model, space):
    """DI-engine's environments as tensors, groups in arrays as values: the same ones."""
    policy = step_policy(model)
    policy.bind(None, (Box(-9, 9, (3, )), space))
    obs, keys = torch.randn(20, 3), {i: (0, 0, i) for i in range(20)}
    for row_keys in (keys, None):
        action, _ = policy.actor.act(obs, list(keys), row_keys)
        policy.collect_mode.reset()
        mode, options = (policy.eval_mode, {}) if row_keys is None else (policy.collect_mode, dict(row_keys=keys))
        outputs = mode.forward(dict(enumerate(obs)), **options).values()
        for value, given in zip(policy.actor.to_values(action), (to_ndarray(out['action']) for out in outputs)):
            if isinstance(given, dict):
                parts = space.spaces.values() if isinstance(space, Dict) else space.spaces
                kind, = (part for part in parts if isinstance(part, Discrete))
                number, args = given['action_type'], given['action_args']
                assert value['action_type'] == number.item() and kind.contains(number[()])
                assert np.array_equal(value['action_args'], args) and args.shape == (2, )
            else:
                # DI-engine's policies give discrete actions in the shape (1, ), which some environments index
                assert space.contains(given[0] if isinstance(space, Discrete) else given)
                assert space.contains(value) and np.array_equal(np.ravel(value), np.ravel(given))


def test_several_actions_by_hand():
    # probabilities 1/4, 3/4 and 1/2, 1/2
    found = distribution([torch.tensor([[0., math.log(3)]]), torch.zeros(1, 2)], 1.0, None)
    assert torch.allclose(found.log_prob(torch.tensor([[1, 0]])), torch.tensor([math.log(3 / 8)]))
    assert torch.allclose(found.squares(), torch.tensor([(1 / 16 + 9 / 16) * 0.5]))
    entropy = -(math.log(1 / 4) / 4 + math.log(3 / 4) * 3 / 4) + math.log(2)
    assert torch.allclose(found.entropy(), torch.tensor([entropy]))
    assert found.mode().tolist() == [[1, 0]]


class TestMasks:

    @pytest.mark.parametrize('kind', ['one', 'several', 'hybrid'])
    def test_a_masked_action_is_never_drawn_and_has_no_gradient(self, kind):
        logit = torch.randn(200, 4, requires_grad=True)
        mask = torch.ones(200, 4)
        mask[:, 1] = 0
        given = dict(
            one=logit,
            several=[logit[:, :2], logit[:, 2:]],
            hybrid=dict(action_type=logit, action_args=dict(mu=torch.zeros(200, 2), sigma=torch.ones(200, 2)))
        )[kind]
        found = distribution(given, 1.0, mask)
        action = found.sample([np.random.default_rng(i) for i in range(200)])
        nothing = mask.clone()
        nothing[7, :2 if kind == 'several' else 4] = 0  # of two actions, the first
        with pytest.raises(TaskError, match='an action_mask that allows no action'):
            distribution(given, 1.0, nothing).mode()
        first = action if kind == 'one' else action[:, 0]
        assert (first != 1).all() and len(first.unique()) == (1 if kind == 'several' else 3)
        assert (found.mode() if kind == 'one' else found.mode()[:, 0]).ne(1).all()
        (found.log_prob(action).sum() + found.entropy().sum()).backward()
        assert logit.grad.isfinite().all() and (logit.grad[:, 1] == 0).all() and logit.grad.ne(0).any()

    def test_the_learner_masks_what_the_sampler_masked(self):
        policy = step_policy(DISCRETE)
        observations = Dict(observation=Box(-1, 1, (3, )), action_mask=Box(0, 1, (4, ), np.int8))
        policy.bind(None, (observations, Discrete(4)))
        obs = {
            i: dict(observation=np.ones(3, np.float32), action_mask=np.array([0, 1, i % 2, 0], np.int8))
            for i in range(40)
        }
        out = policy.collect_mode.forward(obs)
        assert {o['action'].item() for i, o in out.items() if i % 2 == 0} == {1}
        assert {o['action'].item() for i, o in out.items() if i % 2 == 1} == {1, 2}
        episodes = [[policy.collect_mode.process_transition(obs[i], out[i], Timestep(float(i)))] for i in (1, 3)]
        read = policy.actor.read(policy.model, Batch.of(policy.collect_mode.get_train_sample(episodes)))
        assert torch.allclose(read.logp.flatten(), torch.stack([out[i]['logp'] for i in (1, 3)]), atol=1e-6)
        assert (read.entropy < math.log(2) + 1e-6).all()
        assert torch.tensor(NEVER).exp() == 0
        with pytest.raises(TaskError, match='an action_mask that allows no action'):
            policy.collect_mode.forward({0: dict(obs[0], action_mask=np.zeros(4, np.int8))})


def test_images_stay_uint8_in_groups():
    model = dict(DISCRETE, obs_shape=[1, 44, 44], encoder_hidden_size_list=[8, 8, 64])
    policy = step_policy(model)
    policy.bind(None, (Box(0, 255, (1, 44, 44), np.uint8), Discrete(4)))
    obs = np.random.default_rng(0).integers(0, 256, (1, 44, 44)).astype(np.uint8)
    out = policy.collect_mode.forward({0: obs, 1: obs})
    floats = policy.collect_mode.forward({2: obs.astype(np.float32)}, row_keys={2: (0, 0, 0)})[2]
    step = Timestep(1.)
    step.obs = obs
    sample, = policy.collect_mode.get_train_sample(
        [[policy.collect_mode.process_transition(obs, out[i], step)] for i in out]
    )
    assert sample['obs'].dtype is sample['final_obs'].dtype is torch.uint8
    read = policy.actor.read(policy.model, Batch.of([sample]))
    assert torch.allclose(read.logp.flatten(), torch.stack([o['logp'] for o in out.values()]), atol=1e-6)
    logits = policy.model.compute_actor(torch.from_numpy(obs).float().unsqueeze(0))['logit']
    assert torch.allclose(logits.log_softmax(-1)[0, floats['taken']], floats['logp'], atol=1e-6)
