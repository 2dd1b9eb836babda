"""Spaces of observations and actions: those that do not fit the model are refused."""
import copy

import numpy as np
import pytest
import torch
from ding.utils import MODEL_REGISTRY
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from ding_common import ConfigError
from tests.policies import CONTINUOUS, DISCRETE, HYBRID, step_policy


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
        (DISCRETE, (3, ), MultiBinary(4), r'create_config.env: the actions .* are .*, and grpo gives .*wrap'),
        (DISCRETE, (3, ), Dict(a=Discrete(4)), 'create_config.env: the actions'),
        (CONTINUOUS, (3, ), Box(-2, 2, (2, ), int), 'create_config.env: the actions'),
    ],
    ids=str
)
def test_a_model_that_does_not_fit_the_environment(model, observations, actions, message):
    policy = step_policy(model)
    with pytest.raises(ConfigError, match=message):
        policy.bind(None, (Box(-1, 1, observations), actions))


def test_one_that_does_is_left_as_it_is():
    policy = step_policy(dict(DISCRETE, norm_type='BN'))
    before = copy.deepcopy(policy.model.state_dict())
    policy.bind(None, (Box(-1, 1, (3, )), Discrete(4)))
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


class First(nn.Module):
    """Reads the first leaf of its observations."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 4)

    def forward(self, x):
        while not isinstance(x, torch.Tensor):
            x = [*getattr(x, 'values', lambda: x)()][0]
        return dict(logit=self.net(x.float()))


@pytest.mark.parametrize(
    'change, around',
    [
        # as DI-engine's wrapper does with spaces of float64
        (lambda box: setattr(box, 'dtype', np.float32), lambda box: box),
        # as gym-hybrid has them
        (lambda box: vars(box).update(low=box.high, high=box.low), lambda box: Dict(a=Dict(b=box))),
        (lambda box: vars(box).update(low=np.full(3, -1.7e308), high=np.full(3, 1.7e308)), lambda box: Tuple([box])),
    ]
)
def test_spaces_that_cannot_be_sampled(change, around):
    MODEL_REGISTRY.register('first', First, force_overwrite=True)
    box, policy = Box(-1, 1, (3, ), np.float64), step_policy(dict(type='first'))
    change(box)
    policy.bind(None, (around(box), Discrete(4)))
    assert policy.actor.exact  # no NaN
