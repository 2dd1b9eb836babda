import pytest

from ding_common import ConfigError
from tests.policies import PRESET, make_policy, token_policy
from tests.shipped import small


def test_single_choices_stand_on_top_of_the_preset():
    dapo = token_policy(**dict(PRESET, loss='dapo')).updater.loss_config
    assert (dapo.clip_ratio_high, dapo.reduction) == (0.28, 'token')
    policy = token_policy(loss='dapo', adv_method='rloo', clip=dict(ratio=None, ratio_high=0.5))
    assert policy.updater.loss_config.clip_ratio_high == 0.5 and policy.advantage.method == 'rloo'


def test_the_group_collector_is_needed():
    main, create = small('think_answer_grpo')
    create.collector.type = 'sample'
    with pytest.raises(ConfigError, match="collector=dict\\(type='group'\\)"):
        make_policy(main, create)


def test_own_hooks_are_allowed():
    assert token_policy(learner=dict(hook=dict(mine=dict(name='m', type='log_show', position='after_iter'))))
