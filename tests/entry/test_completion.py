"""Completion of ``ding-grpo`` in a shell."""
import os
import shutil
import subprocess
import sys

import pytest

from ding_grpo.__main__ import command
from ding_grpo.completion import VARIABLE, meanings, program
from ding_grpo.entry.describe import sections
from tests.processes import ROOT

pytestmark = pytest.mark.unittest
SCRIPT = 'from ding_grpo.__main__ import main; main()'  # as an installed ding-grpo


def completed(*words):
    """What ``ding-grpo`` answers a shell of which the last word is begun."""
    env = dict(os.environ, PYTHONPATH=ROOT, COMP_WORDS=' '.join(words), COMP_CWORD=str(len(words) - 1))
    line = [sys.executable, '-X', 'importtime', '-c', SCRIPT]
    found = subprocess.run(line, env={**env, VARIABLE: 'bash_complete'}, capture_output=True, text=True, check=True)
    assert ' torch\n' not in found.stderr and ' ding\n' not in found.stderr  # which take seconds
    return [each.partition(',')[2] for each in found.stdout.split()]


@pytest.mark.parametrize(
    'words, some', [
        (['policy.learn.clip.r'], ['policy.learn.clip.ratio=', 'policy.learn.clip.ratio_high=']),
        (['-c', 'cartpole_g'], ['cartpole_gae', 'cartpole_grpo']),
        (['-m', 's'], ['serial_onpolicy', 'serial']),
        (['tr'], ['train']),
        (['train', '--rew'], ['--reward']),
        (['train', '--updates', '3', 'env.max_new'], ['env.max_new_tokens=']),
    ]
)
def test_words(words, some):
    assert completed('ding-grpo', *words) == some


def test_in_bash(tmp_path):
    if shutil.which('bash') is None:
        pytest.skip('no bash')
    (tmp_path / 'ding-grpo').write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{SCRIPT}" "$@"\n')
    (tmp_path / 'ding-grpo').chmod(0o755)
    script = f'PATH={tmp_path}:$PATH; eval "$({VARIABLE}=bash_source ding-grpo)"; COMP_CWORD=1\n' \
             'COMP_WORDS=(ding-grpo policy.group_s); _ding_grpo_completion ding-grpo; echo "${COMPREPLY[@]}"\n' \
             'complete -p ding-grpo'
    found = subprocess.run(['bash', '-c', script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == 'policy.group_size=' and '-o nospace' in found[1]


def test_its_options_and_keys_exist():
    real = {name for option in command().params for name in option.opts}
    assert {name for option in program().params for name in option.opts} <= real
    keys = {f'{section.path}.{key.name}' for _, section in sections() for key in section.keys}
    assert set(meanings()) == keys and all(meanings().values())
