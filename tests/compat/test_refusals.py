"""Ways of DI-engine that cannot train grpo."""
import os
import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, spec_from_loader
from types import SimpleNamespace

import ding.entry
import pytest

from ding_common import ConfigError
from ding_grpo.__main__ import main
from ding_grpo.compat.after_import import watch
from tests.cases import long
from tests.shipped import path_of, small

WAY_OUT = 'grpo learns from whole groups that its own weights have just sampled. Use ding -m serial_onpolicy'


@pytest.mark.parametrize('mode', ['parallel', 'dist', 'serial_offline'])
def test_other_modes_of_the_command(mode, capsys):
    with pytest.raises(SystemExit):
        main(['-m', mode, '-c', path_of('cartpole_grpo'), '-s', '0'])
    assert f'-m {mode}: {WAY_OUT}' in capsys.readouterr().err


@pytest.mark.envtest
@pytest.mark.parametrize(
    'mode, pipeline', [
        ('serial_offline', 'serial_pipeline_offline'),
        long('parallel', 'parallel_pipeline'),
    ]
)
def test_other_modes_of_the_bare_command(mode, pipeline, tmp_path):
    command = [os.path.join(os.path.dirname(sys.executable), 'ding'), '-m', mode, '-c', path_of('cartpole_grpo')]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1 and f'Error: {pipeline}: {WAY_OUT}' in run.stderr


OTHERS = ('reward_model_onpolicy', 'reward_model_offpolicy', 'ngu', 'offline', 'onpolicy_ppg', 'td3_vae')


@pytest.mark.parametrize('name', OTHERS)
def test_other_pipelines_of_a_program_end_before_there_is_a_folder(name, own_folder):
    main, create = small('cartpole_grpo', exp_name='run')
    main.reward_model, create.reward_model = dict(intrinsic_reward_type='add'), dict(type='rnd')
    with pytest.raises(ConfigError, match=f'^serial_pipeline_{name}: {WAY_OUT}'):
        getattr(ding.entry, f'serial_pipeline_{name}')((main, create), seed=0)
    assert os.listdir() == []


def test_the_defaults_of_a_script():
    script = 'import ding_grpo; from ding_grpo.compat.late import GRPOCommandModePolicy as policy; '
    script += 'print(policy.default_config().type)'
    assert subprocess.run([sys.executable, '-c', script], capture_output=True, text=True).stdout.endswith('grpo\n')


def test_a_module_is_changed_once_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / 'imported_late.py').write_text('value = 1')
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    watch('imported_late', lambda module: found.append(module.value))
    assert find_spec('imported_late') is not None and found == []  # it is not imported yet
    import imported_late  # noqa: F401
    watch('imported_late', lambda module: found.append(module.__name__))  # at once
    assert found == [1, 'imported_late']


def test_a_module_whose_first_import_fails_is_changed_by_the_next(tmp_path, monkeypatch):
    (tmp_path / 'imported_twice.py').write_text('import os\nif "FAILS" in os.environ: raise OSError\nvalue = 1')
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    watch('imported_twice', lambda module: found.append(module.value))
    monkeypatch.setenv('FAILS', '1')
    with pytest.raises(OSError):
        import_module('imported_twice')
    monkeypatch.delenv('FAILS')
    import_module('imported_twice')
    assert found == [1]


def test_a_folder_without_a_loader_is_no_module(tmp_path, monkeypatch):
    """A folder of the name of a package that is not installed, which Python takes for a part of one."""
    (tmp_path / 'only_a_folder').mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, 'meta_path', [*sys.meta_path])
    watch('only_a_folder', lambda module: None)
    assert import_module('only_a_folder').__file__ is None


def test_a_loader_of_several_modules_stays_as_it_is(tmp_path, monkeypatch):
    """pytest has one for all that it rewrites: each module would have made the imports of all others deeper."""
    (tmp_path / 'imported_later.py').write_text('value = 1')
    loader = SourceFileLoader('imported_later', str(tmp_path / 'imported_later.py'))
    finder = SimpleNamespace(
        find_spec=lambda name, *args: spec_from_loader(name, loader) if name == 'imported_later' else None
    )
    monkeypatch.setattr(sys, 'meta_path', [finder, *sys.meta_path])
    found = []
    watch('imported_later', found.append)
    assert find_spec('imported_later') is not None and find_spec('imported_later') is not None
    assert 'exec_module' not in vars(loader)
    import imported_later
    assert found == [imported_later] and imported_later.__loader__.get_source('imported_later') == 'value = 1'
