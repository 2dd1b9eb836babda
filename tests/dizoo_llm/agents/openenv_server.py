"""
OpenEnv servers of the tests: ``python openenv_server.py KIND PORT``. ``echo`` is the environment that ``openenv init``
writes; ``guess`` is one of our own.
"""
import itertools
import os
import re
import sys
import time
import types

import openenv
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

TEMPLATE = os.path.join(next(iter(openenv.__path__)), 'cli', 'templates', 'openenv_env')


class Guess(Action):
    number: int
    note: str = ''


class Told(Observation):
    hint: str = ''
    left: int = 0
    last: str = ''


class GuessEnvironment(Environment):
    """Guess a number from 1 to 9, which is the seed modulo 9, plus 1; five guesses."""
    SUPPORTS_CONCURRENT_SESSIONS = True
    numbers = itertools.count()

    def __init__(self):
        super().__init__()
        self._state, self._number = State(), next(self.numbers)

    def reset(self, seed=0, high=9, named=False, **kwargs):
        if kwargs:
            raise RuntimeError(f'no columns {sorted(kwargs)}')
        self._state = State(episode_id=f'seed {seed}', step_count=0)
        self._secret = seed % high + 1
        return Told(hint=f'server {self._number}' if named else f'1 to {high}', left=5, last='none')

    def step(self, action, **kwargs):
        if action.number == 13:
            raise RuntimeError(f'bad luck: {action.note}')
        if action.number == 14:
            time.sleep(3)
        self._state.step_count += 1
        right, left = action.number == self._secret, 5 - self._state.step_count
        hint = 'right' if right else 'higher' if action.number < self._secret else 'lower'
        reward = 1.0 if right else None if action.number == 12 else -0.1
        return Told(hint=hint, left=left, last=str(action.number), reward=reward, done=right or not left)

    @property
    def state(self):
        return self._state


def read(name):
    """A file of the template, with the names of an environment ``echo``."""
    with open(os.path.join(TEMPLATE, name), encoding='utf-8') as f:
        text = f.read()
    return re.sub('__ENV_CLASS_NAME__', 'Echo', re.sub('__ENV_(TITLE_)?NAME__', 'Echo', text))


def echo():
    models, server = types.ModuleType('models'), types.ModuleType('server')
    sys.modules.update(models=models, server=server)
    exec(read('models.py'), models.__dict__)
    exec(read(os.path.join('server', '__ENV_NAME___environment.py')).replace('from ..models', 'from models'),
         server.__dict__)  # yapf: disable
    return server.EchoEnvironment, models.EchoAction, models.EchoObservation


if __name__ == '__main__':
    kinds = dict(echo=echo, guess=lambda: (GuessEnvironment, Guess, Told))
    app = create_fastapi_app(*kinds[sys.argv[1]](), max_concurrent_envs=int(sys.argv[3]))
    uvicorn.run(app, host='127.0.0.1', port=int(sys.argv[2]), log_level='warning')
