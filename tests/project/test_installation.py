"""What setup.py declares, what a wheel holds, and the image of the Dockerfile, as far as Docker is not needed."""
import glob
import json
import os
import re
import shutil
from importlib.metadata import requires

import pytest

from tests.processes import ROOT, python
from tests.project.documents import read


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


def steps(instruction):
    """The arguments of an instruction of the Dockerfile."""
    return re.findall(f'^{instruction} (.*)$', read('Dockerfile'), re.MULTILINE)


def test_packages_of_the_image_are_those_of_setup_py():
    (source, target), = (text.split() for text in steps('COPY'))
    torch, project = (
        re.fullmatch(r"pip install '?([^' ]+)'?( --index-url \S+)?", text)[1] for text in steps('RUN')[:2]
    )
    setup, (user, ) = read('setup.py'), steps('USER')
    assert source == '.' and project == target and f"'{torch}'," in setup
    version, = re.fullmatch(r'python:3\.(\d+)-slim', *steps('FROM')).groups()
    lowest, end = re.search(r">=3\.(\d+),<3\.(\d+)", setup).groups()
    assert int(lowest) <= int(version) < int(end)
    assert any(text.startswith('useradd ') and text.endswith(f' {user}') for text in steps('RUN'))


def test_a_wheel_from_the_context_of_the_image_holds_all_and_trains(tmp_path):
    """.dockerignore excludes everything but what it names. The command is that of the image, with small sizes."""
    context, site = tmp_path / 'context', tmp_path / 'site'
    excluded, *allowed, caches = [line for line in read('.dockerignore').splitlines() if not line.startswith('#')]
    assert (excluded, caches) == ('*', '**/__pycache__')
    context.mkdir()
    for name in (line.removeprefix('!') for line in allowed):
        path = os.path.join(ROOT, name)
        if os.path.isdir(path):
            shutil.copytree(path, context / name, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            shutil.copy(path, context)
    run = python('setup.py', '-q', 'build', '--build-lib', site, folder=context)
    assert run.returncode == 0, run.stderr
    names = sorted(os.listdir(os.path.join(ROOT, 'config')))
    assert sorted(os.listdir(site / 'ding_common' / 'configs')) == [n for n in names if n.endswith('.py')]
    for package in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        for path in glob.glob(os.path.join(ROOT, package, '**', '*.*'), recursive=True):
            assert not path.endswith(('.py', '.html', '.css', '.js')) or (site /
                                                                          os.path.relpath(path, ROOT)).exists(), path
    (tmp_path / 'empty').mkdir()
    program, *words = json.loads(*steps('ENTRYPOINT')) + json.loads(*steps('CMD'))
    words += '--train-iter 1 policy.group_size=4 policy.collect.groups=2 policy.learn.batch_groups=2'.split()
    run = python(*words, 'policy.model.config.hidden_size=32', folder=tmp_path / 'empty', PYTHONPATH=str(site))
    assert program == 'python' and run.returncode == 0, run.stderr
    assert run.stderr == f"config: {site / 'ding_common' / 'configs' / 'think_answer_grpo_config.py'}\n"
    assert os.path.exists(tmp_path / 'empty' / 'runs' / 'think_answer_grpo' / 'model' / 'last' / 'config.json')
