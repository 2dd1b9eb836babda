"""Ways of DI-engine that cannot train grpo."""
import ding.entry
import pytest

from ding_common import ConfigError
from ding_grpo.__main__ import main
from ding_grpo.compat.after_import import watch
from tests.shipped import path_of, small

pytestmark = pytest.mark.unittest
WAY_OUT = 'grpo learns from whole groups that its own weights have just sampled. Use ding -m serial_onpolicy'


@pytest.mark.parametrize(
    'mode',
    ['parallel', 'dist', 'serial_offline', 'serial_reward_model', 'serial_ngu', 'serial_sqil', 'serial_gail', 'serial_trex']
)
def test_other_modes_of_the_command(mode, capsys):
    with pytest.raises(SystemExit):
        main(['-m', mode, '-c', path_of('cartpole_grpo'), '-s', '0'])
    assert f'-m {mode}: {WAY_OUT}' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['serial_pipeline_offline', 'serial_pipeline_reward_model_onpolicy', 'parallel_pipeline'])
@pytest.mark.parametrize('given', ['configs', 'path'])
def test_other_pipelines(name, given):
    config = small('cartpole_grpo') if given == 'configs' else path_of('cartpole_grpo')
    with pytest.raises(ConfigError, match=f'{name}: {WAY_OUT}'):
        getattr(ding.entry, name)(config)


def test_other_policies_are_not_held_up():
    main_config, create_config = small('cartpole_ppo')
    with pytest.raises(AttributeError, match='data_type|collector|offline'):  # DI-engine's own
        ding.entry.serial_pipeline_offline((main_config, create_config), seed=0)


def test_a_module_is_changed_once_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / 'imported_late.py').write_text('value = 1')
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    watch('imported_late', lambda module: found.append(module.value))
    assert found == []
    import imported_late  # noqa: F401
    watch('imported_late', lambda module: found.append(module.__name__))  # at once
    assert found == [1, 'imported_late']
