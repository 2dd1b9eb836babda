"""The image of the Dockerfile, as far as it can be checked without Docker: its context, packages and command."""
import glob
import json
import os
import re
import shutil

import pytest

from tests.processes import ROOT, python
from tests.project.documents import read

STEPS = re.findall(r'^([A-Z]+) (.*)$', read('Dockerfile'), re.MULTILINE)


def arguments(instruction):
    return [text for name, text in STEPS if name == instruction]


@pytest.fixture
def context(tmp_path):
    """A folder with what .dockerignore, which excludes everything, lets through."""
    excluded, *allowed, caches = [line for line in read('.dockerignore').splitlines() if not line.startswith('#')]
    assert (excluded, caches) == ('*', '**/__pycache__')
    for name in (line.removeprefix('!') for line in allowed):
        path, copy = os.path.join(ROOT, name), tmp_path / 'context' / name
        if os.path.isdir(path):
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(path, copy)
    return tmp_path / 'context'


def test_its_packages_are_those_of_setup_py():
    (source, target), = (text.split() for text in arguments('COPY'))
    torch, project = (
        re.fullmatch(r"pip install '?([^' ]+)'?( --index-url \S+)?", text)[1] for text in arguments('RUN')[:2]
    )
    assert source == '.' and project == target
    setup = read('setup.py')
    assert f"'{torch}'," in setup
    version, = re.fullmatch(r'python:3\.(\d+)-slim', *arguments('FROM')).groups()
    lowest, end = re.search(r">=3\.(\d+),<3\.(\d+)", setup).groups()
    assert int(lowest) <= int(version) < int(end)


@pytest.mark.algotest
def test_its_command_trains_from_what_its_context_installs(context, tmp_path):
    user, = arguments('USER')
    assert any(text.startswith('useradd ') and text.endswith(f' {user}') for text in arguments('RUN'))
    site, home = tmp_path / 'site', tmp_path / 'home'
    run = python('setup.py', '-q', 'build', '--build-lib', site, folder=context)
    assert run.returncode == 0, run.stderr
    for package in ('ding_common', 'ding_grpo', 'dizoo_llm'):
        for pattern in ('*.py', '*.html', '*.css', '*.js'):
            for path in glob.glob(os.path.join(ROOT, package, '**', pattern), recursive=True):
                assert (site / os.path.relpath(path, ROOT)).exists(), path
    home.mkdir()
    program, *words = json.loads(*arguments('ENTRYPOINT')) + json.loads(*arguments('CMD'))
    run = python(*words, '--train-iter', '1', folder=home, PYTHONPATH=str(site))
    assert program == 'python' and run.returncode == 0, run.stderr
    assert (home / 'runs' / 'think_answer_grpo' / 'model' / 'last' / 'config.json').exists()
