"""``python -m dizoo_llm.play``: a prompt is read as the run of its config reads it."""
import itertools
import threading

import pytest
from click.testing import CliRunner

from dizoo_llm.play import main
from dizoo_llm.text.tokenizer import load_tokenizer
from tests.conftest import TINY
from tests.dizoo_llm.helper import python_task
from tests.shipped import CHAT, write_model_and_data

TASK = """
weights, return_part = dict(right=1.0), 'right'

def problems():
    return [dict(prompt=str(n), answer=n) for n in range(3)]

def score(problem, completion):
    return {}
"""


@pytest.fixture
def play(own_folder, tmp_path, monkeypatch):
    """Prompts a model under a config's ``env``: (prompt, env) -> the text that the model reads and how much it may
    write, the result."""
    write_model_and_data(TINY)
    tokenizer = load_tokenizer('base')
    tokenizer.chat_template = CHAT + "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    tokenizer.save_pretrained('base')
    read = [None]

    def generate(model, prompts, longest, *args):
        read.append((tokenizer.decode(prompts[0]), longest))
        return [next(of.answers) for _ in prompts]

    monkeypatch.setattr('dizoo_llm.models.generation.plain_generate', generate)

    def of(prompt, **env):
        (tmp_path /
         'my_config.py').write_text(f"main_config = {dict(env=dict(dict(task=dict(type='arithmetic')), **env))!r}")
        result = CliRunner().invoke(main, ['base', *prompt, '--config', 'my_config.py', '--problems', '3'])
        return read[-1], result

    of.answers = itertools.repeat(tokenizer.encode('yes'))  # ids that the model samples
    return of


class TestPlay:

    @pytest.mark.parametrize(
        'env, read', [
            (dict(system_prompt='Be brief.', max_new_tokens=4), ('<system>Be brief.<user>hi<assistant>', 4)),
            (dict(chat_options=dict(enable_thinking=False), max_new_tokens=4), ('<user>hi<assistant>False', 4)),
            (dict(chat=False, max_new_tokens=8), ('hi', 8)),
        ]
    )
    def test_a_prompt_is_read_as_in_the_run_of_a_config(self, play, env, read):
        found, result = play(['hi'], **env)
        assert (found, result.stdout) == (read, 'yes\n')

    def test_a_variable_that_the_template_does_not_read(self, play):
        _, result = play(['hi'], chat_options=dict(enable_thinkin=False))
        assert result.exit_code == 1 and 'Error: env.chat_options.enable_thinkin = False' in result.output

    @pytest.mark.parametrize(
        'score, told', [
            ('dict(right={0: 1.0, 2: 0.5}[problem["answer"]])', '0.750 in 2 problems; 1 could not be scored'),
            ('dict()', 'none in 0 problems; 3 could not be scored'),
        ]
    )
    def test_completions_that_cannot_be_scored_are_no_zeros(self, play, tmp_path, score, told):
        python_task(tmp_path, TASK.format(score))
        assert f"mean of 'right': {told}\n" in play([], task=dict(type='file', path='t.py'))[1].output

    def test_the_conversation_of_an_agent(self, play):
        threads = set(threading.enumerate())
        tokenizer = load_tokenizer('base')
        texts = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', 'two'
        play.answers = itertools.cycle([tokenizer.encode(text) + [tokenizer.eos_token_id] for text in texts])
        problems = [dict(question='What is 2?'), dict(question='And 3?')]
        task = dict(type='agent', run='tests.dizoo_llm.agents.programs:with_tools', problems=problems)
        _, result = play([], task=task, max_prompt_length=500, max_new_tokens=90, max_turns=3)
        assert result.exit_code == 0, result.output
        shown = """problem 0: What is 2?
  request: user: What is 2?
  model: <tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>
  reply: tool: 2  (reward 0.00)
  model: two
  reply:   (reward 1.00)
  ended, return 1.00
problem 1: And 3?
"""
        assert result.output.startswith(shown) and "mean of the return: 1.000 in 2 problems\n" in result.output
        assert set(threading.enumerate()) <= threads
