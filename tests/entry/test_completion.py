"""Completion of ``ding-grpo`` in a shell."""
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from ding_grpo.__main__ import command
from ding_grpo.completion import VARIABLE, meanings, program
from ding_grpo.entry.describe import sections
from ding_grpo.train import train
from tests.processes import ROOT

SCRIPT = 'from ding_grpo.__main__ import main; main()'  # as an installed ding-grpo


def completed(*words):
    """What ``ding-grpo`` answers a shell of which the last word is begun."""
    shell = ShellComplete(program(train=train), {}, 'ding-grpo', VARIABLE)
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


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
    assert completed(*words) == some


def test_in_bash(tmp_path):
    if shutil.which('bash') is None:
        pytest.skip('no bash')
    line = f'PYTHONPATH={ROOT} exec {sys.executable} -X importtime -c "{SCRIPT}"'
    (tmp_path / 'ding-grpo').write_text(f'#!/bin/sh\n{line}\n')
    (tmp_path / 'ding-grpo').chmod(0o755)
    script = f'PATH={tmp_path}:$PATH; eval "$({VARIABLE}=bash_source ding-grpo)"; COMP_CWORD=1\n' \
             'COMP_WORDS=(ding-grpo policy.group_s); _ding_grpo_completion ding-grpo; echo "${COMPREPLY[@]}"\n' \
             'complete -p ding-grpo'
    ended = subprocess.run(['bash', '-c', script], capture_output=True, text=True, check=True)
    found = ended.stdout.splitlines()
    assert found[0] == 'policy.group_size=' and '-o nospace' in found[1]
    imported = ended.stderr.split()
    assert 'click' in imported and not {'torch', 'ding'} & set(imported)  # which take seconds


def test_its_options_and_keys_exist():
    real = {name for option in command().params for name in option.opts}
    assert {name for option in program().params for name in option.opts} <= real
    keys = {f'{section.path}.{key.name}' for _, section in sections() for key in section.keys}
    assert set(meanings()) == keys and all(meanings().values())
