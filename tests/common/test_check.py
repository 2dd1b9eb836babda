from collections import namedtuple
from typing import Dict, List, Optional, Tuple, TypeVar, Union

import pytest
from easydict import EasyDict

from ding_common import ConfigError, Rule, check_arguments, check_config, nearest, require_dict

DEFAULT = dict(
    learn=dict(learning_rate=1e-3, epochs=2, on=True, name='a', free={}, anything=None, items=[1], share=0.5)
)
INF, NAN = float('inf'), float('nan')
NO_MODULES = ['json', ['no_such_module'], ['json.none.deeper'], [''], [1], [[]], None, dict(json=1)]
RULES = {'learn.epochs': Rule.integer(1), 'learn.learning_rate': Rule.number(0, open_low=True)}


def check(**learn):
    check_config(dict(learn=learn), DEFAULT, RULES, 'policy')


class TestCheckConfig:

    def test_good_values_pass(self):
        check(learning_rate=1, epochs=1, on=False, name='b', free=dict(any=1), anything='x', items=(1, 2))

    def test_typo_names_key_value_and_nearest(self):
        with pytest.raises(ConfigError,
                           match=r"policy\.learn\.lerning_rate = 0\.1: .*'learning_rate'.*Allowed: .*epochs"):
            check(lerning_rate=0.1)

    @pytest.mark.parametrize(
        'learn, allowed', [
            (dict(epochs=0), 'integer of at least 1'),
            (dict(epochs=True), 'integer of at least 1'),
            (dict(epochs=1.5), 'integer of at least 1'),
            (dict(learning_rate=0), r'number in \(0, inf\)'),
            (dict(learning_rate=NAN), 'number'),
            (dict(learning_rate='1e-3'), 'number'),
            (dict(learning_rate=10 ** 400), 'number'),
            (dict(share=-10 ** 400), 'float'),
            (dict(share=NAN), 'float'),
            (dict(on=1), 'True or False'),
            (dict(name=3), 'str'),
            (dict(items=3), 'list'),
            (dict(free=3), 'dict'),
        ]
    )
    def test_wrong_values_name_what_is_allowed(self, learn, allowed):
        (key, value), = learn.items()
        with pytest.raises(ConfigError, match=allowed) as caught:
            check(**learn)
        assert f'policy.learn.{key} = {value!r:.200}' in caught.value.message

    def test_a_misspelt_key_is_told_before_a_value_that_it_should_have_replaced(self):
        with pytest.raises(ConfigError, match=r"policy\.learn\.epoch = 3: unknown key; did you mean 'epochs'"):
            check(epochs=0, epoch=3)

    @pytest.mark.parametrize(
        'rule, good, bad', [
            (Rule.integer(1, 3), [1, 3], [0, 4, 10 ** 12, 2.0, True, None, '2', NAN]),
            (Rule.integer(1).or_inf(), [1, 10 ** 12, INF], [0, -INF, NAN, 1.5]),
            (Rule.integer(1).or_none(), [1, None], [0, '']),
            (Rule.one_of('a', 'b'), ['a', 'b'], ['c', None]),
            (Rule.registered(dict(a=1)), ['a'], ['b', None, 1, [], ['a'], {}]),
            (Rule.modules(), [[], ['ding_common'], ('json.decoder', )], NO_MODULES),
        ],
        ids=lambda v: getattr(v, 'allowed', '')
    )
    def test_rules_of_numbers_and_names(self, rule, good, bad):
        assert all(map(rule.holds, good)) and not any(map(rule.holds, bad))

    def test_names_registered_later_count(self):
        registry = {}
        rule = Rule.registered(registry)
        registry['late'] = 1
        assert rule.holds('late')

    @pytest.mark.parametrize('value', [None, 3, 'x', [], [dict()]])
    def test_what_is_no_section(self, value):
        with pytest.raises(ConfigError, match=r'^policy\.learn = .*: must be a dict\.$'):
            require_dict(value, 'policy.learn')

    def test_nearest_without_a_near_one(self):
        assert nearest('zzz', ['abc']) == 'Allowed: abc.'

    def test_nearest_of_many(self):
        found = nearest('rate', [*(f'key_{n}' for n in range(60)), 'rates', 'ratio'])
        assert found.startswith("did you mean 'rates'? The nearest of 62 allowed words: rates, ratio, ")
        assert found.count('key_') == 6


SHAPE = TypeVar('SHAPE', List, Tuple, namedtuple)  # as DI-engine writes it


def takes(
    shape: Union[int, SHAPE],
    name: str = 'a',
    rate: float = 0.5,
    on: bool = False,
    size: Optional[int] = 0.3,  # a wrong annotation
    options: Dict[str, int] = {},
    weights: Optional[List[Dict]] = None,
    kind: 'int | None' = None,
    own: Optional[EasyDict] = None,
    free=None,
):
    """Its arguments are what is checked."""


class TestCheckArguments:

    @pytest.mark.parametrize(
        'args', [
            dict(shape=3, size=3, weights=None, own=EasyDict(), free=object),
            dict(shape=[3, 4], name='b', rate=1, on=True, size=0.5),
            dict(shape=(3, ), size=None, options=dict(a=1), weights=[dict()]),
        ],
        ids=str
    )
    def test_good_ones_pass(self, args):
        assert check_arguments(args, takes, 'env.task') is None

    @pytest.mark.parametrize(
        'name, value, allowed', [
            ('shape', '3', 'an integer or a list'),
            ('shape', 3.5, 'an integer or a list'),
            ('shape', True, 'an integer or a list'),
            ('shape', dict(a=1), 'an integer or a list'),
            ('name', 3, 'text'),
            ('name', None, 'text'),
            ('rate', '0.5', 'a number'),
            ('rate', NAN, 'a number'),
            ('on', 1, 'True or False'),
            ('size', 'x', 'an integer or None'),
            ('options', [], 'a dict'),
            ('weights', dict(a=1), 'a list or None'),
            ('own', 3, 'of type EasyDict or None'),
        ]
    )
    def test_of_another_type(self, name, value, allowed):
        with pytest.raises(ConfigError, match=rf'^env\.task\.{name} = .*: must be {allowed}\.$'):
            check_arguments({name: value}, takes, 'env.task')

    def test_unknown_ones(self):
        with pytest.raises(ConfigError, match="env.task.nam = 'a': unknown key; did you mean 'name'"):
            check_arguments(dict(nam='a'), takes, 'env.task')
        assert check_arguments(dict(nam='a'), lambda **kwargs: None, 'env.task') is None
