"""Ways of DI-engine that cannot train grpo."""
import os
import subprocess
import sys
from importlib.util import find_spec

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
