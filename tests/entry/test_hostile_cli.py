"""From the command line: broken input ends in one line, and what was there stays as it was."""
import os

import pytest
from click.testing import CliRunner

from ding_grpo.__main__ import command
from dizoo_llm.play import main as play
from dizoo_llm.sft import main as sft
from dizoo_llm.tasks import ThinkAnswerTask
from dizoo_llm.text.tokenizer import build_word_tokenizer
from tests.shipped import small, write

cli = command()

SFT = '''
main_config = dict(
    exp_name='run',
    env=dict(max_new_tokens=3),
    model={model!r} or dict(config=dict(
        model_type='llama', hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)),
    train=dict(examples=2, batch_size=2, max_steps=2),
)
main_config['env'].update({env!r})
'''
GOOD = '{"question": "a", "answer": "b"}\n'
ENV = dict(task=dict(type='file', path='a.jsonl'), tokenizer=dict(chars='abcde'))


def write_grpo(env, model):
    main, create = small('think_answer_grpo', env=env)
    main.policy.model = model or main.policy.model
    write('c.py', (main, create))


def write_sft(env, model):
    with open('c.py', 'w') as f:
        f.write(SFT.format(env=env, model=model))


@pytest.fixture
def folder(tmp_path, own_folder):
    """The current folder, with an earlier run's."""
    for name in ('model/config.json', 'evaluations.jsonl', 'total_config.py', 'log/serial/events', 'ckpt/best'):
        path = tmp_path / 'run' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('earlier')
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def one_line(folder, command, config, *options):
    """The line that a command ends in, having left every file as it was."""
    before = contents(folder)
    mode = ['-m', 'serial_onpolicy', '--train-iter', '1'] if command is cli else []
    config = config if isinstance(config, list) else ['-c', config]
    result = CliRunner().invoke(command, [*mode, *config, '-s', '0', *options])
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    assert isinstance(result.exception, SystemExit) and result.exit_code != 0, result.exception
    assert 'Traceback' not in result.output
    last = result.output.splitlines()[-1]
    assert last.startswith('Error: ') and len(last) < 1200
    return last


FILES = [
    (cli, None, 'there is no such file'),
    (sft, '', 'must define'),
    (cli, 'main_config = (\n', 'SyntaxError'),
    (sft, '\n1 / 0\n', 'ZeroDivisionError: division by zero (c.py:2)'),
    (cli, 'raise SystemExit(0)', 'SystemExit: 0'),
    (cli, bytes(range(1, 256)), 'SyntaxError'),
    (cli, 'main_config = create_config = None', 'main_config'),
    (sft, 'main_config = create_config = "policy"', 'main_config'),
    (sft, 'main_config = create_config = dict(env=3)', 'main_config'),
]
BOTH = 'dict(env={}, policy={})'
EASY = 'from easydict import EasyDict\nmain_config, create_config = EasyDict({}), EasyDict({})'


@pytest.mark.envtest
class TestConfigFile:

    @pytest.mark.parametrize('command, content, message', FILES)
    def test_that_is_none(self, folder, command, content, message):
        if content is not None:
            (folder / 'c.py').write_bytes(content if isinstance(content, bytes) else content.encode())
        assert message in one_line(folder, command, 'c.py')
        assert not (folder / 'default_experiment').exists()

    def test_a_folder(self, folder):
        (folder / 'c.py').mkdir()
        assert one_line(folder, cli, 'c.py') == "Error: --config = 'c.py': is not a file."

    @pytest.mark.parametrize('command', [cli, sft], ids=['ding', 'sft'])
    @pytest.mark.parametrize(
        'content, env, model, message', [
            (GOOD + '{"question"', {}, None, "env.task.path = 'a.jsonl': line 2 is not valid JSON"),
            (GOOD, dict(tokenizer=dict(pretrained='.')), None, 'the folder contains no tokenizer'),
            (GOOD, {}, dict(pretrained='.'), 'model.pretrained = \'.\': the folder contains no config.json'),
        ],
        ids=lambda v: repr(v)[:24]
    )
    def test_of_broken_things(self, folder, command, content, env, model, message):
        (folder / 'a.jsonl').write_text(content)
        (write_grpo if command is cli else write_sft)({**ENV, **env}, model)
        assert message in one_line(folder, command, 'c.py')


@pytest.mark.envtest
class TestCommands:

    @pytest.mark.parametrize(
        'options, code, message', [
            ('-m serial_onpolicy -s 0 -s 1', 1, 'Error: --config: missing; name a config file, a shipped'),
            ('-c think_answer_grpo', 2, "Missing option '-m'"),
        ]
    )
    def test_without_an_option(self, options, code, message):
        result = CliRunner().invoke(cli, options.split())
        assert result.exit_code == code and message in result.output and 'Traceback' not in result.output

    @pytest.mark.parametrize(
        'config, setting, message', [
            ('-c cartpole_grpo', 'policy.learn.losss=dapo', "policy.learn.losss = 'dapo': unknown key; did you"),
            ('-e cartpole -p grpo', 'policy.group_size=4.5', 'policy.group_size = 4.5: must be an integer'),
            ('-c cartpole_grpo', 'policy.group_size', 'policy.group_size: must be KEY=VALUE, such as '),
            ('-e cartpole -p grpo', 'create_config.policy.type=grppo', "create_config.policy.type = 'grppo': "),
        ]
    )
    def test_with_a_wrong_key(self, folder, config, setting, message):
        assert message in one_line(folder, cli, config.split(), setting)

    @pytest.mark.parametrize(
        'name, text, message', [
            ('c.yaml', 'main_config: {}', "--config = 'c.yaml': must be a Python file, named NAME.py."),
            ('c.py', EASY.format('{}', '{}'), 'main_config.env: missing; must be a dict.'),
            ('c.py', EASY.format(BOTH, '{}'), 'create_config.policy: missing; must be a dict.'),
            ('c.py', EASY.format(BOTH, 'dict(policy={})'), 'create_config.policy.type = None: must'),
            ('c.py', f'main_config = create_config = {BOTH}', 'must be an EasyDict: main_config = EasyDict(dict(...))'),
        ]
    )
    def test_a_config_of_another_name_or_without_its_sections(self, folder, name, text, message):
        (folder / name).write_text(text)
        assert message in one_line(folder, cli, name)

    def test_sft_that_fails_on_its_way_leaves_the_earlier_evaluations(self, folder):
        pytest.importorskip('accelerate')
        (folder / 'a.jsonl').write_text(GOOD + '{"question": "c", "answer": "bbbbbbb"}')
        write_sft(ENV, None)
        assert "env.max_new_tokens = 3: the answer 'bbbbbbb' has 8 tokens" in one_line(folder, sft, 'c.py')

    def test_sft_does_not_write_over_the_model_that_it_begins_with(self, folder):
        pytest.importorskip('accelerate')
        (folder / 'a.jsonl').write_text(GOOD)
        write_sft(ENV, None)
        assert CliRunner().invoke(sft, ['-c', 'c.py', '--exp-name', 'first']).exit_code == 0
        write_sft(ENV, dict(pretrained='first/model'))
        last = one_line(folder, sft, 'c.py', '--exp-name', 'first/../first')
        assert 'would overwrite main_config.model.pretrained' in last

    @pytest.mark.parametrize(
        'spoil', [
            lambda weights, config: os.truncate(weights, 1000),
            lambda weights, config: config.write_text(config.read_text().replace('_size": 64', '_size": 72')),
        ],
        ids=['cut weights', 'other shapes']
    )
    def test_play(self, folder, tiny_model, spoil):
        tiny_model.save_pretrained('played', build_word_tokenizer(ThinkAnswerTask.words))
        spoil(folder / 'played' / 'model.safetensors', folder / 'played' / 'config.json')
        result = CliRunner().invoke(play, ['played', '<think>'])
        last = result.output.splitlines()[-1]
        assert result.exit_code == 1 and last.startswith('Error: ') and 'played' in last, result.output
