"""``python -m dizoo_llm.play``: a prompt is read as the run of its config reads it."""
import pytest
from click.testing import CliRunner

from dizoo_llm.play import main
from dizoo_llm.tasks.arithmetic import ArithmeticTask
from dizoo_llm.tokenizer import load_tokenizer

from tests.conftest import TINY
from tests.shipped import CHAT, write_model_and_data

CONFIG = "main_config = dict(env=dict(task=dict(type='arithmetic'), {}))\n"
TEMPLATE = CHAT + "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Prompts a model under a config's ``env``: (prompt, env) -> the text that the model reads and how much it may
    write, the result."""
    monkeypatch.chdir(tmp_path)
    write_model_and_data(TINY)
    tokenizer = load_tokenizer('base')
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained('base')
    read = []

    def generate(model, prompts, longest, *args):
        read.append((tokenizer.decode(prompts[0]), longest))
        return [tokenizer.encode('yes')]

    monkeypatch.setattr('dizoo_llm.play.plain_generate', generate)

    def of(prompt, env):
        (tmp_path / 'my_config.py').write_text(CONFIG.format(env))
        result = CliRunner().invoke(main, ['base', *prompt, '--config', 'my_config.py', '--problems', '3'])
        return (read or [None])[-1], result

    return of


@pytest.mark.unittest
@pytest.mark.parametrize(
    'env, read', [
        ("system_prompt='Be brief.', max_new_tokens=4", ('<system>Be brief.<user>hi<assistant>', 4)),
        ("chat_options=dict(enable_thinking=False), max_new_tokens=4", ('<user>hi<assistant>False', 4)),
        ('chat=False, max_new_tokens=8', ('hi', 8)),
    ]
)
def test_a_prompt_is_read_as_in_the_run_of_a_config(play, env, read):
    found, result = play(['hi'], env)
    assert (found, result.stdout) == (read, 'yes\n')


@pytest.mark.unittest
def test_a_variable_that_the_template_does_not_read(play):
    _, result = play(['hi'], 'chat_options=dict(enable_thinkin=False)')
    assert result.exit_code == 1 and 'Error: env.chat_options.enable_thinkin = False' in result.output


@pytest.mark.unittest
def test_completions_that_cannot_be_scored_are_no_zeros(play, monkeypatch):
    right = iter([1.0, ValueError('no'), 0.5])

    def score(task, problem, completion):
        value = next(right)
        if isinstance(value, Exception):
            raise value
        return dict(right=value)

    monkeypatch.setattr(ArithmeticTask, 'score', score)
    assert "mean of 'right': 0.750 in 2 problems; 1 could not be scored\n" in play([], '')[1].output
    monkeypatch.setattr(ArithmeticTask, 'score', lambda *args: {})
    assert "mean of 'right': none in 0 problems; 3 could not be scored\n" in play([], '')[1].output
