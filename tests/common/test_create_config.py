import pytest
from easydict import EasyDict

from ding_common import ConfigError
from ding_common.config.create_config import check_names


@pytest.mark.unittest
class TestNames:

    def test_registered_ones(self):
        check_names(EasyDict(env=dict(type='token_env', import_names=['ding_grpo']), policy=dict(type='grpo')))

    @pytest.mark.parametrize(
        'create, message', [
            (dict(policy=dict(type='gpro')), "create_config.policy.type = 'gpro': .*did you mean .*'grpo'"),
            (dict(env=dict(type='mine')), "env.type = 'mine': .*check that import_names lists its module"),
            (dict(env=dict(type='x', import_names=['no_such_module'])), r'env.import_names = .*no_such_module'),
            (dict(env='token_env'), "create_config.env = 'token_env': must be a dict"),
            (dict(policy=dict(type=3)), 'create_config.policy.type = 3'),
        ],
        ids=str
    )
    def test_others(self, create, message):
        with pytest.raises(ConfigError, match=message):
            check_names(EasyDict(create))

    def test_a_module_that_needs_a_package_which_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / 'needy').mkdir()
        (tmp_path / 'needy' / '__init__.py').write_text('import not_installed_here')
        (tmp_path / 'needy' / 'env.py').write_text('')
        for module in ('needy', 'needy.env'):
            with pytest.raises(ConfigError,
                               match="create_config.env.import_names = .*No module named 'not_installed_h"):
                check_names(EasyDict(env=dict(type='x', import_names=[module])))

    @pytest.mark.parametrize('modules', ['ding_grpo', 3, [3], [''], ['.x'], None])
    def test_no_list_of_modules(self, modules):
        with pytest.raises(ConfigError,
                           match='create_config.env.import_names = .*: must be a list of modules that can'):
            check_names(EasyDict(env=dict(type='x', import_names=modules)))
