from functools import partial

import pytest
from easydict import EasyDict

from ding_common import ConfigError, Rule
from ding_common.config.env_config import check_env_config, pop_number

check = partial(check_env_config, default=dict(length=1), rules=dict(length=Rule.integer(1)))


@pytest.mark.unittest
class TestSection:

    def test_keys_of_the_environment_the_pipelines_and_the_manager(self):
        check(EasyDict(length=3, collector_env_num=8, stop_value=1.5, manager=dict(type='subprocess', wait_num=2)))

    @pytest.mark.parametrize(
        'cfg, message', [
            (dict(length=0), 'env.length = 0: must be an integer'),
            (dict(lenght=1), "env.lenght = 1: unknown key; did you mean 'length'"),
            (dict(collector_env_num=0), 'env.collector_env_num = 0'),
            (dict(stop_value='x'), "env.stop_value = 'x'"),
            (dict(manager=dict(type='bas')), "env.manager.type = 'bas': unknown manager; did you mean 'base'"),
            (dict(manager=dict(type='base', auto_reset=False)), 'auto_reset = False: must be True'),
            (dict(manager=dict(type='base', wait_nums=1)), 'env.manager.wait_nums = 1: unknown key'),
        ],
        ids=str
    )
    def test_wrong_keys(self, cfg, message):
        with pytest.raises(ConfigError, match=message):
            check(EasyDict(cfg))


@pytest.mark.unittest
class TestNumbers:

    def test_are_taken_out(self):
        cfg = dict(collector_env_num=8, evaluator_env_num=3, n_evaluator_episode=3)
        assert [pop_number(cfg, f'{mode}_env_num') for mode in ('collector', 'evaluator')] == [8, 3]
        assert cfg == dict(n_evaluator_episode=3)

    def test_missing(self):
        with pytest.raises(ConfigError, match='env.collector_env_num: missing; must be an integer'):
            pop_number({}, 'collector_env_num')

    def test_an_environment_without_an_episode(self):
        with pytest.raises(ConfigError, match='n_evaluator_episode = 2: must be at least env.evaluator_env_num = 3'):
            pop_number(dict(evaluator_env_num=3, n_evaluator_episode=2), 'evaluator_env_num')
