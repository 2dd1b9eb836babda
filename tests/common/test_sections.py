"""Sections of a config: ``env``, those of ``create_config``, and what of a run's config is code."""
from functools import partial

import pytest
from easydict import EasyDict

from ding_common import ConfigError, Rule, code_of
from ding_common.config.create_config import check_names
from ding_common.config.env_config import check_env_config, pop_number

check = partial(check_env_config, default=dict(length=1), rules=dict(length=Rule.integer(1)))


def test_keys_of_the_environment_the_pipelines_and_the_manager():
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
def test_wrong_keys_of_the_environment(cfg, message):
    with pytest.raises(ConfigError, match=message):
        check(EasyDict(cfg))


def test_numbers_are_taken_out():
    cfg = dict(collector_env_num=8, evaluator_env_num=3, n_evaluator_episode=3)
    assert [pop_number(cfg, f'{mode}_env_num') for mode in ('collector', 'evaluator')] == [8, 3]
    assert cfg == dict(n_evaluator_episode=3)
    with pytest.raises(ConfigError, match='env.collector_env_num: missing; must be an integer'):
        pop_number({}, 'collector_env_num')
    with pytest.raises(ConfigError, match='n_evaluator_episode = 2: must be at least env.evaluator_env_num = 3'):
        pop_number(dict(evaluator_env_num=3, n_evaluator_episode=2), 'evaluator_env_num')


def test_registered_names():
    check_names(EasyDict(env=dict(type='token_env', import_names=['ding_grpo']), policy=dict(type='grpo')))


@pytest.mark.parametrize(
    'create, message', [
        (dict(policy=dict(type='gpro')), "create_config.policy.type = 'gpro': .*did you mean .*'grpo'"),
        (dict(env=dict(type='mine')), "env.type = 'mine': .*check that import_names lists its module"),
        (dict(collector=dict(type='grup')), "collector.type = 'grup': must be a registered name; did you mean 'gro"),
        (dict(collector=dict(type=[])), r'collector.type = \[\]: must be a registered name'),
        (dict(evaluator=dict(type='grup')), "evaluator.type = 'grup': must be a registered name"),
        (dict(env_manager=dict(type='x')), "env_manager.type = 'x': must be a registered name; check that import_n"),
        (dict(env=dict(type='x', import_names=['no_such_module'])), r'env.import_names = .*no_such_module'),
        (dict(env='token_env'), "create_config.env = 'token_env': must be a dict"),
        (dict(policy=dict(type=3)), 'create_config.policy.type = 3'),
        *(
            (dict(env=dict(import_names=modules)), 'env.import_names = .*: must be a list of modules that can')
            for modules in ('ding_grpo', 3, [3], [''], ['.x'], None)
        ),
    ],
    ids=str
)
def test_other_names(create, message):
    with pytest.raises(ConfigError, match=message):
        check_names(EasyDict(create))


@pytest.mark.parametrize('module', ['needy', 'needy.env'])
def test_a_module_that_needs_a_package_which_is_not_installed(tmp_path, monkeypatch, module):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'needy').mkdir()
    (tmp_path / 'needy' / '__init__.py').write_text('import not_installed_here')
    (tmp_path / 'needy' / 'env.py').write_text('')
    with pytest.raises(ConfigError, match="create_config.env.import_names = .*No module named 'not_installed_h"):
        check_names(EasyDict(env=dict(type='x', import_names=[module])))


@pytest.mark.parametrize(
    'task, code', [
        (dict(type='file', path='a.jsonl', template='Question:answer', prompt='a:b', at='12:30'), []),
        (dict(type='file', path='C:/data/a.jsonl'), []),
        (dict(type='file', score='my.module:score'), ["env.task.score = 'my.module:score'"]),
        (dict(type='mine', reward=['number', '/x/a.py:f']), ["env.task.reward = '/x/a.py:f'"]),
        (dict(type='mine', file='rewards'), ["env.task.file = 'rewards'"]),
        (dict(type='mine', parts=[dict(source='a/b.py')]), ["env.task.parts.source = 'a/b.py'"]),
        (dict(type='mine', import_names=['ding_grpo.envs', 'mine']), ["env.task.import_names = 'mine'"]),
    ]
)
def test_what_a_run_imports_or_executes(task, code):
    assert code_of(dict(env=dict(task=task))) == code
