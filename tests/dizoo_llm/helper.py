"""Tasks, data files and episodes that several tests share."""
import contextlib
import json
import os
import resource
import signal
from contextlib import contextmanager

import pytest
from easydict import EasyDict

from dizoo_llm.envs import DingTokenEnv
from dizoo_llm.tasks import Problem, Task, create_task

CHARS = ''.join(map(chr, range(32, 127))) + '\n'
PROBLEMS = "def problems():\n    return [dict(prompt=str(n), answer=n + 1) for n in range(9)]\n"


class Prompts(Task):
    """Given prompts, whose answers are '0', '1' and so on. ``scorer`` gets a problem and a completion."""
    weights = dict(right=1.0)

    def __init__(self, *prompts, scorer=lambda problem, completion: dict(right=1.0), **attributes):
        self.prompts, self.scorer, self.asked = prompts, scorer, 0
        vars(self).update(attributes)

    def __len__(self):
        return len(self.prompts)

    def problem(self, index):
        self.asked += 1
        return Problem(self.prompts[index], str(index))

    def score(self, problem, completion):
        return self.scorer(problem, completion)


def write(path, rows):
    path.write_text('\n'.join(json.dumps(row) for row in rows), encoding='utf-8')
    return str(path)


def file_task(path, content, **options):
    """The task of a data file, whose content is rows, text or bytes."""
    if isinstance(content, (str, bytes)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    else:
        write(path, content)
    return create_task(dict(type='file', path=str(path), **options))


def python_task(folder, content, **options):
    """The task of a Python file ``t.py``."""
    path = folder / 't.py'
    path.write_bytes(content if isinstance(content, bytes) else content.encode('utf-8'))
    return create_task(dict(type='file', path=str(path), **options))


@contextmanager
def few_files(more=0):
    """A context in which this process can open so many files more."""
    before, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(more):
            os.close(taken.pop())
        yield
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def problems(task):
    return [task.problem(i) for i in range(len(task))]


def sides(task, of):
    """What a function gives for the problems for training, and for the held-out ones."""
    return [[of(problem) for problem in problems(side)] for side in (task, task.evaluation())]


def pretrained(tokenizer, folder):
    """The key ``env.tokenizer`` that names a tokenizer, which is saved."""
    tokenizer.save_pretrained(str(folder))
    return dict(pretrained=str(folder))


def play(env, *turns, index=0):
    """The steps of an episode in which each turn is one action: token ids, or a text that the policy ends."""
    env.reset(options=dict(index=index))
    return [env.step(ids(env, turn) if isinstance(turn, str) else turn) for turn in turns]


def ids(env, text, end=True):
    return env.tokenizer.encode(text) + [env.tokenizer.eos_token_id] * end


def read(env, obs):
    """The text of an observation."""
    return env.tokenizer.decode(obs[obs >= 0].tolist())


def questions(number, long=()):
    return [dict(question=f'{n}?' + ' how' * 20 * (n in long), answer=str(n)) for n in range(number)]


def section(path, **changes):
    """The ``env`` section of a config."""
    return EasyDict(
        dict(
            task=dict(type='file', path=path, **changes.pop('task', {})),
            tokenizer=dict(chars=CHARS),
            collector_env_num=6,
            evaluator_env_num=3,
            n_evaluator_episode=3,
            **changes
        )
    )


def environments(cfg):
    """All environments of a run."""
    collects = [DingTokenEnv(c) for c in DingTokenEnv.create_collector_env_cfg(cfg)]
    return collects, [DingTokenEnv(c) for c in DingTokenEnv.create_evaluator_env_cfg(cfg)]


@contextmanager
def interrupted():
    """DI-engine ends a step that takes too long by a signal, whose handler raises: what is within is such a step."""

    def interrupt(*_):
        raise TimeoutError('of the step')

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(TimeoutError, match='of the step'):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
