import click
import pytest

from ding_common import ConfigError, Rule, check_config, nearest

DEFAULT = dict(learn=dict(learning_rate=1e-3, epochs=2, on=True, name='a', free={}, anything=None, items=[1]))
RULES = {'learn.epochs': Rule.integer(1), 'learn.learning_rate': Rule.number(0, open_low=True)}


def check(**learn):
    check_config(dict(learn=learn), DEFAULT, RULES, 'policy')


@pytest.mark.unittest
class TestCheckConfig:

    @pytest.mark.parametrize(
        'learn', [
            dict(learning_rate=1),
            dict(epochs=1),
            dict(on=False),
            dict(name='b'),
            dict(free=dict(any=1)),
            dict(anything='x'),
            dict(items=(1, 2)),
        ]
    )
    def test_good_values_pass(self, learn):
        assert check(**learn) is None

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
            (dict(learning_rate=float('nan')), 'number'),
            (dict(learning_rate='1e-3'), 'number'),
            (dict(on=1), 'bool'),
            (dict(name=3), 'str'),
            (dict(items=3), 'list'),
            (dict(free=3), 'dict'),
        ]
    )
    def test_wrong_values_name_what_is_allowed(self, learn, allowed):
        (key, value), = learn.items()
        with pytest.raises(ConfigError, match=allowed) as caught:
            check(**learn)
        assert f'policy.learn.{key} = {value!r}' in caught.value.message

    def test_config_error_is_what_click_and_python_expect(self):
        error = ConfigError('x')
        assert isinstance(error, click.ClickException) and isinstance(error, ValueError) and error.exit_code == 1

    def test_rules(self):
        assert Rule.one_of('a', 'b').holds('a') and not Rule.one_of('a').holds('c')
        assert Rule.integer(1).or_none().holds(None)
        assert Rule.number(0, 1).allowed == 'a number in [0, 1]'

    def test_nearest_without_a_near_one(self):
        assert nearest('zzz', ['abc']) == 'Allowed: abc.'
