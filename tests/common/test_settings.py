"""Keys that a command line sets."""
import pytest
from easydict import EasyDict

from ding_common import ConfigError, read_config_file
from ding_common.config.settings import change, parsed, sweep
from tests.shipped import path_of


@pytest.mark.parametrize(
    'text, value',
    [
        ('1e-3', 1e-3), ('8', 8), ('True', True), ('None', None), ('dapo', 'dapo'), ("'8'", '8'), ('inf', float('inf')),
        ('[1, 2]', [1, 2]), ("{'type': 'k2'}", dict(type='k2')), ('', ''), ('a=b', 'a=b'), ('__import__("os")',
                                                                                            '__import__("os")')
    ]
)  # yapf: disable
def test_values_are_python_literals_or_texts(text, value):
    key, found = parsed(f'policy.x={text}')
    assert key == 'policy.x' and found == value and type(found) is type(value)


def test_keys_of_both_configs():
    main, create = EasyDict(policy=dict(learn=dict(clip=1)), env=dict()), EasyDict(policy=dict(type='grpo'))
    settings = [
        'policy.learn.clip=2', 'policy.collect.pools.newest=0.5', 'exp_name=a b', 'create_config.policy.type=ppo'
    ]
    change(main, create, settings)
    assert main == dict(
        policy=dict(learn=dict(clip=2), collect=dict(pools=dict(newest=0.5))), env=dict(), exp_name='a b'
    )
    assert create.policy.type == 'ppo' and main.policy.collect.pools.newest == 0.5


@pytest.mark.parametrize(
    'setting, message', [
        ('policy.learn', 'policy.learn: must be KEY=VALUE, such as policy.learn.learning_rate=1e-3.'),
        ('learn.clip=1', 'learn.clip=1: must begin with policy, env, exp_name or create_config. Did you mean '
         'policy.learn.clip=1?'),
        ('seed=1', 'seed=1: must begin with policy, env, exp_name or create_config.'),
        ('policy..clip=1', 'policy..clip=1: a part of the key is missing.'),
        ('create_config=1', 'create_config=1: a part of the key is missing.'),
        ('policy.learn.clip.low=1', 'policy.learn.clip.low=1: clip = 1: must be a dict.'),
    ]
)  # yapf: disable
def test_one_line_for_a_wrong_setting(setting, message):
    with pytest.raises(ConfigError) as error:
        change(EasyDict(policy=dict(learn=dict(clip=1)), env=dict()), EasyDict(policy=dict(type='grpo')), [setting])
    assert error.value.message == message


def test_what_follows_from_a_changed_key_is_derived_after_the_change():
    path = path_of('think_answer_grpo')
    assert 'collector_env_num' not in read_config_file(path, ['policy.group_size=4'])[0].env
    assert 'collector_env_num' in read_config_file(path)[0].env


def test_a_sweep_has_all_combinations_with_short_names():
    found = list(sweep(['policy.learn.loss=grpo,dapo', 'policy.learn.clip=0.2', "env.x=[1,2],'a,b'"]))
    assert [label
            for _, label in found] == [f'loss={loss} x={x}' for loss in ('grpo', 'dapo') for x in ('[1,2]', "'a,b'")]
    assert found[1][0] == ['policy.learn.loss=grpo', 'policy.learn.clip=0.2', "env.x='a,b'"]
    assert list(sweep([])) == [([], '')]


def test_keys_of_one_name_are_told_apart():
    (_, label), *_ = sweep(['policy.learn.beta=1,2', 'policy.kl.beta=3,4'])
    assert label == 'policy.learn.beta=1 policy.kl.beta=3'
