"""Smoke cases of the programs in benchmarks/, and of the command that runs them. None takes a measurement."""
import os

import pytest
from ding.utils import POLICY_REGISTRY

from benchmarks.__main__ import main
from benchmarks.comparison import loop
from benchmarks.comparison.tasks import EVERY
from benchmarks.programs import programs
from tests.processes import python
from tests.project.documents import ROOT, read
from tests.shipped import load


def test_the_command(capsys):
    assert main([]) == 0 and capsys.readouterr().out.startswith(next(iter(programs())))
    assert main(['--needs', 'speed']) == 0 and capsys.readouterr().out.split() == programs()['speed'].needs
    assert main(['kk']) == 2 and 'NAME = kk: must be one of speed, ' in capsys.readouterr().err


@pytest.mark.parametrize('program', programs().values(), ids=programs())
def test_each_row_has_a_program_a_page_and_what_it_needs(program):
    assert os.path.exists(os.path.join(ROOT, program.page))
    assert set(program.needs) <= {line[6:].split()[0] for line in read('Makefile').splitlines() if 'NEEDS_' == line[:6]}
    module = program.command.partition('python -m ')[2].split()[0]
    assert os.path.exists(os.path.join(ROOT, module.replace('.', os.sep) + '.py'))


def test_every_key_that_the_comparison_tries_exists():
    """DI-engine ignores a misspelt key, and a try would be the shipped setting."""
    for name, side, tries in ((task.config or name, *item) for name, task in EVERY.items()
                              for item in task.tries.items()):
        defaults = POLICY_REGISTRY.get('ppo' if side == 'ppo' else 'grpo').default_config()
        for keys in tries:
            config, _ = load(f'{name}_{side}')
            for path in keys:
                *sections, last = path.split('.')
                known = [config if sections[:1] == ['env'] else config.policy, defaults]
                for section in sections:
                    known = [found.get(section) or {} for found in known]
                assert any(last in found for found in known), f'{name} {side}: {path}'
            loop.set_keys(config, keys)


@pytest.mark.envtest
@pytest.mark.algotest
def test_an_update_is_measured():
    """The programs of whole updates, here and beside TRL, replace functions of this package by timed ones."""
    options = ('--threads', '1', '--only', 'L19_T16_G8', '--rounds', '1', '--no-write')
    done = python('-m', 'benchmarks.costs.limit', *options, folder=ROOT)
    assert done.returncode == 0 and '| L19_T16_G8 |' in done.stdout, done.stderr
