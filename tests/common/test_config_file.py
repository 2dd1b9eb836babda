import os

import pytest
from click.testing import CliRunner

from ding_common import ConfigError, ConfigFile, find_config
from ding_grpo.__main__ import command
from ding_grpo.compare import main as compare
from dizoo_llm.play import main as play
from dizoo_llm.sft import main as sft
from tests.shipped import path_of

pytestmark = pytest.mark.usefixtures('own_folder')


@pytest.mark.parametrize('ending', ['', '_config', '_config.py'])
def test_a_shipped_config_by_its_name(own_folder, ending):
    (own_folder / 'think_answer_grpo').mkdir()  # a folder, as of a run, is not a config
    assert find_config(f'think_answer_grpo{ending}') == path_of('think_answer_grpo')


@pytest.mark.parametrize('file', ['think_answer_grpo', 'think_answer_grpo.py', 'think_answer_grpo_config.py'])
def test_a_file_in_the_current_folder_wins(own_folder, file):
    (own_folder / file).write_text('')
    assert find_config('think_answer_grpo') == file


def test_a_path_stays_as_it_is(own_folder, monkeypatch):
    monkeypatch.setenv('HOME', str(own_folder))
    (own_folder / 'a.py').write_text('')
    for path in (str(own_folder / 'a.py'), '~/a.py', str(own_folder)):
        assert find_config(path) == path


@pytest.mark.parametrize(
    'name', ['think_answr_grpo', 'think_answr_grpo_config.py', 'config/think_answer_grpo_config.py', 'cartpole']
)
def test_an_unknown_name_ends_in_one_line_with_the_nearest(name):
    nearest = 'cartpole_ppo' if name == 'cartpole' else 'think_answer_grpo'
    with pytest.raises(ConfigError) as error:
        find_config(name)
    assert error.value.message.startswith(
        f"--config = '{name}': there is no such file, and no shipped config with this name; did you mean '{nearest}'? "
        'The nearest of '
    )


def test_a_command_says_which_file_it_takes(own_folder, capsys):
    (own_folder / 'mine.py').write_text('')
    path = ConfigFile().convert('think_answer_grpo', None, None)
    assert capsys.readouterr().err == f'config: {path}\n' and os.path.isfile(path)
    assert ConfigFile().convert('mine.py', None, None) == 'mine.py' and capsys.readouterr().err == ''


@pytest.mark.parametrize(
    'command, arguments', [
        (command(), ['-m', 'serial_onpolicy', '-c', 'spell_backward_sf']),
        (compare, ['spell_backward_sf']),
        (sft, ['-c', 'spell_backward_sf']),
        (play, ['.', '--config', 'spell_backward_sf']),
    ],
    ids=['ding', 'compare', 'sft', 'play']
)
def test_every_command_looks_for_a_name(command, arguments):
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1 and result.output.splitlines()[-1].startswith("Error: --config = 'spell_backward_sf'")
    assert "did you mean 'spell_backward_sft'?" in result.output
