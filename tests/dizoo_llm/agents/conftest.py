"""Environments of agents, with a tokenizer of single characters."""
import copy

import pytest

from dizoo_llm.agents import AgentEnv
from dizoo_llm.tasks import create_task

from tests.dizoo_llm.agents import programs


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    programs.write_tokenizer(str(folder))
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
