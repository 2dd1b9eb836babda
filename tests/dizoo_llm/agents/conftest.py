"""Environments of agents, with a tokenizer of single characters."""
import copy

import pytest

from dizoo_llm.agents import AgentEnv
from dizoo_llm.tasks import create_task
from dizoo_llm.text.tokenizer import build_char_tokenizer

from tests.dizoo_llm.agents import programs

CHAT = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>"
    "{{ c.function.name }}</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    made = build_char_tokenizer(''.join(map(chr, range(32, 127))) + '\n')
    made.add_special_tokens(dict(additional_special_tokens=['<|im_start|>', '<|im_end|>']))
    made.eos_token = '<|im_end|>'
    made.chat_template = CHAT
    folder = tmp_path_factory.mktemp('tokenizer')
    made.save_pretrained(str(folder))
    return str(folder)


@pytest.fixture
def env_of(tokenizer):
    made = []

    def make(run, problems=None, options={}, **task):
        run = getattr(programs, run) if isinstance(run, str) else run
        task = create_task(dict(type='agent', run=run, problems=problems or copy.deepcopy(programs.PROBLEMS), **task))
        env = AgentEnv(
            task, **{
                'tokenizer': dict(pretrained=tokenizer),
                'max_prompt_length': 80,
                'max_new_tokens': 12,
                'max_turns': 6,
                'max_tokens': 300,
                **options
            }
        )
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()
