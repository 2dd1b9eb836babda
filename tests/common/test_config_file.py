import os

import pytest
from click.testing import CliRunner

from ding_common import ConfigError, ConfigFile, find_config
from ding_grpo.__main__ import command
from ding_grpo.compare import main as compare
from dizoo_llm.play import main as play
from dizoo_llm.sft import main as sft

SHIPPED = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', 'config'))


@pytest.mark.unittest
class TestFindConfig:

    @pytest.mark.parametrize('ending', ['', '_config', '_config.py'])
    def test_a_shipped_config_by_its_name(self, tmp_path, monkeypatch, ending):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'think_answer_grpo').mkdir()  # a folder, as of a run, is not a config
        assert find_config(f'think_answer_grpo{ending}') == os.path.join(SHIPPED, 'think_answer_grpo_config.py')

    @pytest.mark.parametrize('file', ['think_answer_grpo', 'think_answer_grpo.py', 'think_answer_grpo_config.py'])
    def test_a_file_in_the_current_folder_wins(self, tmp_path, monkeypatch, file):
        monkeypatch.chdir(tmp_path)
        (tmp_path / file).write_text('')
        assert find_config('think_answer_grpo') == file

    def test_a_path_stays_as_it_is(self, tmp_path, monkeypatch):
        monkeypatch.setenv('HOME', str(tmp_path))
        (tmp_path / 'a.py').write_text('')
        for path in (str(tmp_path / 'a.py'), '~/a.py', str(tmp_path)):
            assert find_config(path) == path

    @pytest.mark.parametrize(
        'name', ['think_answr_grpo', 'think_answr_grpo_config.py', 'config/think_answer_grpo_config.py', 'cartpole']
    )
    def test_an_unknown_name_ends_in_one_line_with_the_nearest(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError) as error:
            find_config(name)
        nearest = 'cartpole_ppo' if name == 'cartpole' else 'think_answer_grpo'
        assert error.value.message.startswith(
            f"--config = '{name}': there is no such file, and no shipped config with this name; did you mean "
            f"'{nearest}'? Allowed: acrobot_grpo, "
        )

    def test_a_command_says_which_file_it_takes(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / 'mine.py').write_text('')
        path = ConfigFile().convert('think_answer_grpo', None, None)
        assert capsys.readouterr().err == f'config: {path}\n'
        assert ConfigFile().convert('mine.py', None, None) == 'mine.py' and capsys.readouterr().err == ''


@pytest.mark.unittest
@pytest.mark.parametrize(
    'command, arguments', [
        (command(), ['-m', 'serial_onpolicy', '-c', 'spell_backward_sf']),
        (compare, ['spell_backward_sf']),
        (sft, ['-c', 'spell_backward_sf']),
        (play, ['.', '--config', 'spell_backward_sf']),
    ],
    ids=['ding', 'compare', 'sft', 'play']
)
def test_every_command_looks_for_a_name(tmp_path, monkeypatch, command, arguments):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1 and result.output.splitlines()[-1].startswith("Error: --config = 'spell_backward_sf'")
    assert "did you mean 'spell_backward_sft'?" in result.output
