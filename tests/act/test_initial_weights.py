"""Initial weights as those of DI-engine's PPO."""
import copy

import pytest
import torch
from ding.model import VAC
from ding.policy import PPOPolicy
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.act.initial_weights import init_as_ppo
from tests.policies import CONTINUOUS, DISCRETE, HYBRID, make_policy, step_policy
from tests.shipped import small


@pytest.mark.parametrize('share_encoder', [False, True])
@pytest.mark.parametrize('shape', [DISCRETE, CONTINUOUS, HYBRID], ids=['discrete', 'continuous', 'hybrid'])
def test_the_weights_are_those_of_ppo(shape, share_encoder):
    model = VAC(**EasyDict(shape, share_encoder=share_encoder))
    own = copy.deepcopy(model)
    cfg = PPOPolicy.default_config()
    cfg.action_space, cfg.learn.ppo_param_init, cfg.cuda = shape['action_space'], True, False
    torch.manual_seed(7)
    PPOPolicy(cfg, model=model, enable_field=['learn'])
    torch.manual_seed(7)
    init_as_ppo(own)
    for (name, weight), (_, expected) in zip(own.named_parameters(), model.named_parameters()):
        assert torch.equal(weight, expected), name


def test_the_key():
    plain, small_actor = (
        step_policy(CONTINUOUS, learn=dict(batch_groups=1, ppo_param_init=on)).whole_model for on in (False, True)
    )
    obs = torch.randn(5, CONTINUOUS['obs_shape'])
    means = [model(obs, mode='compute_actor')['logit']['mu'].abs().max() for model in (plain, small_actor)]
    assert means[1] < 1e-3 < means[0]


def test_language_models_keep_their_weights():
    main, create = small('think_answer_grpo')
    main.policy.learn.ppo_param_init = True
    with pytest.raises(ConfigError, match='policy.learn.ppo_param_init = True: only available with models of single'):
        make_policy(main, create)


def test_a_model_without_an_actor():
    model = torch.nn.Linear(2, 2)
    model.action_space = 'continuous'
    with pytest.raises(ConfigError, match='ppo_param_init = True: Linear has no actor, critic and actor_head'):
        init_as_ppo(model)
