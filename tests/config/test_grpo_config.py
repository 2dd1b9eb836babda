import inspect
import re

import pytest

from ding_common import ConfigError
from ding_grpo.collect import GroupCollector
from ding_grpo.envs import GymnasiumEnv
from dizoo_llm.envs import options
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


@pytest.mark.parametrize(
    'place, start, end', [
        (GroupCollector, 'config = dict(', 'def __init__'),
        (options, 'ENV_OPTIONS = dict(', 'ENV_RULES = '),
        (GymnasiumEnv, 'config = dict(', 'rules = '),
    ]
)
def test_every_default_is_documented_where_it_lives(place, start, end):
    source = inspect.getsource(place)
    body = source[source.index(start):source.index(end)].splitlines()[1:]
    assert len(body) > 10
    for above, line in zip(body, body[1:]):
        key = line.strip()
        if re.match(r'\w+=', key) and not key.endswith('dict('):
            assert key.split('=')[0] in ('collector', 'other') or above.strip().startswith('#'), line
