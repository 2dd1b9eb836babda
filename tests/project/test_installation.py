"""What setup.py declares, and what a wheel holds."""
import os
import re
from importlib.metadata import requires

import pytest

from tests.processes import ROOT, python


@pytest.fixture(scope='module')
def requirements():
    """Of setup.py, extras included: bounds by name."""
    code = (
        'import setuptools; from distutils.core import run_setup; d = run_setup("setup.py", stop_after="init"); '
        'print(*d.install_requires, *sum(d.extras_require.values(), []), sep="\\n")'
    )
    run = python('-W', 'ignore', '-c', code, folder=ROOT)
    assert run.returncode == 0, run.stderr
    return dict(re.fullmatch(r'([\w-]+(?:\[\w+\])?)(.*)', line).groups() for line in run.stdout.splitlines())


def test_pip_goes_straight_to_the_releases_that_di_engine_allows(requirements):
    # without these bounds pip downloads torch 2.15, 2.14 and 2.13, numpy 2, ... before it meets DI-engine's pins
    assert requirements['torch'] == '<2.13,>=2.6'
    pins = [re.match(r'([\w-]+)[ (]*([<=>!.\d,]*)', line).groups() for line in requires('DI-engine') if ';' not in line]
    capped = {name: re.search('[<=]=?[.0-9]+', bound)[0] for name, bound in pins if re.search('(?<!>)[<=]', bound)}
    assert {'numpy': '<2', 'yapf': '==0.29.0'}.items() <= capped.items()
    assert {name: requirements[name] for name in capped if name in requirements} == \
        {name: capped[name] for name in capped if name in requirements}


def test_a_wheel_holds_the_configs(tmp_path):
    site = tmp_path / 'site'
    run = python('setup.py', '-q', 'build', '-b', tmp_path / 'base', '--build-lib', site, folder=ROOT)
    assert run.returncode == 0, run.stderr
    names = sorted(os.listdir(os.path.join(ROOT, 'config')))
    assert sorted(os.listdir(site / 'ding_common' / 'configs')) == [n for n in names if n.endswith('.py')]
    (tmp_path / 'empty').mkdir()
    command = '-m ding_grpo -m serial_onpolicy -c think_answer_grpo -s 0 --train-iter 1 '\
        'policy.group_size=4 policy.collect.groups=2 policy.learn.batch_groups=2 policy.model.config.hidden_size=32'
    run = python(*command.split(), folder=tmp_path / 'empty', PYTHONPATH=str(site))
    assert run.returncode == 0, run.stderr
    assert run.stderr == f"config: {site / 'ding_common' / 'configs' / 'think_answer_grpo_config.py'}\n"
    assert os.path.exists(tmp_path / 'empty' / 'runs' / 'think_answer_grpo' / 'model' / 'last' / 'config.json')
