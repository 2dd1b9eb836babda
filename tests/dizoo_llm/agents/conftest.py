"""Environments of agents, with a tokenizer of single characters."""
import copy
from contextlib import ExitStack, closing

import pytest

from dizoo_llm.agents import AgentEnv, endpoint, episode
from dizoo_llm.tasks import create_task

from tests.dizoo_llm.agents import programs


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    programs.write_tokenizer(str(folder))
    return str(folder)


@pytest.fixture
def opened(tokenizer):
    """Opens environments of a task, which are closed at the end."""
    with ExitStack() as stack:
        own = dict(tokenizer=dict(pretrained=tokenizer))
        yield lambda task, **options: stack.enter_context(closing(AgentEnv(task, **{**own, **options})))


@pytest.fixture
def little_grace(monkeypatch):
    """What does not end or answer is waited for 0.3 seconds."""
    for module in (endpoint, episode):
        monkeypatch.setattr(module, 'GRACE', 0.3)


@pytest.fixture
def env_of(opened):

    def make(run, problems=None, options={}, **task):
        run = getattr(programs, run) if isinstance(run, str) else run
        task = create_task(dict(type='agent', run=run, problems=problems or copy.deepcopy(programs.PROBLEMS), **task))
        limits = dict(max_prompt_length=80, max_new_tokens=12, max_turns=6, max_tokens=300)
        return opened(task, **{**limits, **options})

    return make
