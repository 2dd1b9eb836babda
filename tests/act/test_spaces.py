"""Spaces of observations and actions: those that do not fit the model are refused."""
import numpy as np
import pytest
import torch
from ding.utils import MODEL_REGISTRY
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from ding_common import ConfigError
from tests.policies import CONTINUOUS, DISCRETE, HYBRID, Timestep, step_policy

pytestmark = pytest.mark.unittest


@pytest.mark.parametrize(
    'model, observations, actions, message',
    [
        (DISCRETE, (4, ), Discrete(4), r'policy.model.obs_shape: VAC does not read observations of shape \(4,\)'),
        (DISCRETE, (3, ), Discrete(3), 'policy.model.action_shape = 4: the environment has 3'),
        (DISCRETE, (3, ), Box(-1, 1, (4, )), "policy.model.action_space = 'discrete': .* are continuous"),
        (CONTINUOUS, (3, ), Discrete(2), "policy.model.action_space = 'continuous': .* are discrete"),
        (CONTINUOUS, (3, ), Box(-1, 1, (3, )), 'policy.model.action_shape = 2: the environment has 3'),
        (DISCRETE, (3, ), MultiDiscrete([4, 5]), r'action_shape = 4: the actions .* are .*Set it to \[4, 5\]'),
        (dict(DISCRETE, action_shape=[4, 4]), (3, ), MultiDiscrete([4, 5]), r'action_shape = \[4, 4\]: the actions'),
        (dict(DISCRETE, action_shape=[4, 4]), (3, ), Discrete(4), r'action_shape = \[4, 4\]: the actions'),
        (HYBRID, (3, ), Tuple([Discrete(3), Box(-1, 1, (3, ))]), r'action_type_shape=3, action_args_shape=2\): the a'),
        (HYBRID, (3, ), Discrete(3), r'action_type_shape=3, action_args_shape=2\): the actions of the .* Discrete'),
        # actions outside of the space ran without a message
        *(
            (model, (3, ), actions, r'create_config.env: the actions .* are .*, and grpo gives .*wrap')
            for model, actions in (
                (DISCRETE, MultiBinary(4)),
                (DISCRETE, Tuple([Discrete(4)])),
                (DISCRETE, Dict(a=Discrete(4))),
                (CONTINUOUS, Box(-2, 2, (2, ), int)),
                (CONTINUOUS, Box(0, 255, (2, ), 'uint8')),
            )
        ),
    ],
    ids=str
)
def test_a_model_that_does_not_fit_the_environment(model, observations, actions, message):
    policy = step_policy(model)
    with pytest.raises(ConfigError, match=message):
        policy.bind(None, (Box(-1, 1, observations), actions))


@pytest.mark.parametrize(
    'model, actions', [(DISCRETE, Discrete(4)), (CONTINUOUS, Box(-1, 1, (2, ))), (DISCRETE, Discrete(4, start=7))]
)
def test_one_that_does_is_left_as_it_is(model, actions):
    policy = step_policy(dict(model, norm_type='BN'))
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    policy.bind(None, (Box(-1, 1, (3, )), actions))
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


@pytest.mark.parametrize(
    'model, actions', [(DISCRETE, Discrete(4, start=10)), (dict(CONTINUOUS, action_shape=4), Box(-9, 9, (2, 2)))]
)
def test_the_environment_gets_its_own_actions_and_the_learner_the_models(model, actions):
    policy, discrete = step_policy(model), isinstance(actions, Discrete)
    policy.bind(None, (Box(-1, 1, (3, )), actions))
    obs = {i: np.full(3, i, np.float32) for i in range(20)}
    outputs = policy.collect_mode.forward(obs, row_keys={i: (0, 0, i) for i in obs})
    outputs.update({i + 20: out for i, out in policy.eval_mode.forward(obs).items()})
    # DI-engine's policies give discrete actions in the shape (1, ), which environments such as frozen_lake index
    of_environment = (out['action'].numpy() for out in outputs.values())
    assert all(actions.contains(a[0] if discrete else a) for a in of_environment)
    step = policy.collect_mode.process_transition(obs[3], outputs[3], Timestep(1.))
    of_model = outputs[3]['action'][0] - 10 if discrete else outputs[3]['action'].flatten()
    assert torch.equal(step['action'][0], of_model)


class First(nn.Module):
    """Reads the first leaf of its observations."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 4)

    def forward(self, x):
        while not isinstance(x, torch.Tensor):
            x = [*getattr(x, 'values', lambda: x)()][0]
        return dict(logit=self.net(x.float()))


@pytest.mark.parametrize('change', [
    lambda box: setattr(box, 'dtype', np.float32),  # as DI-engine's wrapper does with spaces of float64
    lambda box: vars(box).update(low=box.high, high=box.low),  # as gym-hybrid has them
    lambda box: vars(box).update(low=np.full(3, -1.7e308), high=np.full(3, 1.7e308)),
])  # yapf: disable
@pytest.mark.parametrize('around', [lambda box: box, lambda box: Dict(a=Dict(b=box)), lambda box: Tuple([box])])
def test_spaces_that_cannot_be_sampled(change, around):
    MODEL_REGISTRY.register('first', First, force_overwrite=True)
    box, policy = Box(-1, 1, (3, ), np.float64), step_policy(dict(type='first'))
    change(box)
    policy.bind(None, (around(box), Discrete(4)))
    assert policy.actor.exact  # no NaN
