"""Environments in processes of their own, and what ends a program."""
import multiprocessing
import os
import signal
import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from ding.envs import BaseEnvManager
from easydict import EasyDict

from ding_common import PeerError
from ding_common.processes.ding_private import disable_auto_reset
from ding_common.processes.env_manager import OF_PROCESSES, create_manager
from ding_grpo.run.around import around_run
from dizoo_llm.envs import DingTokenEnv
from tests.of_a_user import OfAUser
from tests.processes import python

pytestmark = pytest.mark.envtest


class Telling(OfAUser):
    """Its observation after a reset is the number of its process."""

    def reset(self):
        return super().reset() + os.getpid()


class Hanging(OfAUser):
    """Writes the number of its process as the name of a file, and never ends a step."""

    def step(self, action):
        with open(str(os.getpid()), 'w'):
            time.sleep(1000)


def launched(manager, kind=Telling, **changes):
    cfg = EasyDict(OF_PROCESSES[manager].default_config(), type=manager, **changes)
    envs = create_manager(cfg, [partial(kind, EasyDict())] * 3)
    envs.seed(0)
    envs.launch()
    return envs


def processes_of(envs):
    return {i: int(obs[0]) for i, obs in envs.ready_obs.items()}


def is_alive(pid):
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def all_end(pids, seconds=5):
    deadline = time.time() + seconds
    while any(map(is_alive, pids)) and time.time() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


def kill(pid, wait=True):
    os.kill(pid, signal.SIGKILL)
    for process in multiprocessing.active_children() if wait else ():
        if process.pid == pid:
            process.join()


def test_environments_end_with_their_run(own_folder):
    run = os.fork()
    if run == 0:
        try:
            launched('subprocess', Hanging).step({i: np.zeros(1) for i in range(3)})
        finally:
            os._exit(1)
    deadline = time.time() + 60
    while len(os.listdir()) < 3 and time.time() < deadline:
        time.sleep(0.05)
    assert len(os.listdir()) == 3
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    assert all_end(os.listdir())


@pytest.mark.parametrize(
    'manager, at', [
        ('async_subprocess', 'step'),
        ('subprocess', 'step'),
        ('subprocess', 'reset'),
    ]
)
def test_an_environment_process_that_is_killed_ends_in_one_line(manager, at, caplog):
    envs = launched(manager)
    pids = processes_of(envs)
    envs.seed(1)
    kill(pids[1], wait=at == 'step')  # before it is found out, or meanwhile
    with around_run(), pytest.raises(PeerError,
                                     match=f'the process {pids[1]} of environment 1 has ended with exit code -9'):
        envs.step({i: np.zeros(1) for i in range(3)}) if at == 'step' else envs.reset()
    envs.close()
    assert not caplog.records and all_end(pids.values())


def test_an_environment_process_that_was_killed_is_renewed():
    """As DI-engine's option says."""
    envs = launched('async_subprocess', retry_type='renew', max_retry=3, shared_memory=False)
    with closing(envs):
        kill(processes_of(envs)[0])
        envs.reset()
        end = time.monotonic() + 60
        while set(envs.ready_obs) != {0, 1, 2}:  # one may still be resetting
            assert time.monotonic() < end
            time.sleep(0.01)
        assert set(envs.step({i: np.array([0]) for i in range(3)})) == {0, 1, 2}


def test_environments_of_which_one_has_exited_are_closed():
    """Closing raised BrokenPipeError, in ``__del__`` of collector and evaluator, and left the others alive."""
    envs = launched('subprocess')
    pids = processes_of(envs)
    kill(pids[0])
    envs.close()
    assert envs.closed and all_end(pids.values())


def test_what_makes_an_environment_needs_no_name():

    class Factory:

        def __call__(self):
            return OfAUser(EasyDict())

    envs = create_manager(EasyDict(BaseEnvManager.default_config(), type='base'), [Factory()])
    envs.launch()
    assert envs.ready_obs[0].shape == (4, )


@pytest.mark.parametrize('disabled', [False, True])
def test_an_environment_is_reset_at_its_end_unless_that_is_disabled(disabled, capfd):
    """Nor does a manager write about the spaces of its environments."""
    cfg = EasyDict(task=dict(type='think_answer'), max_new_tokens=1)
    envs = BaseEnvManager([partial(DingTokenEnv, cfg)], EasyDict(BaseEnvManager.default_config()))
    if disabled:
        disable_auto_reset(envs)
    with around_run():
        envs.launch()
    assert capfd.readouterr() == ('', '')
    assert envs.step({0: np.array([0])})[0].done
    assert (0 in envs.ready_obs) == (not disabled)
    envs.close()


@pytest.mark.parametrize('code, told', [('import sys', 'Aborted!'), ('import sys; sys.argv[0] = "-c"', 'Traceback')])
def test_ctrl_c_while_the_program_is_imported_or_the_run_is_built(tmp_path, code, told):
    """In a program of its own only: a notebook goes on after it."""
    program = f"""{code}
import os, signal
from ding_common import ending_at_once, importing
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
with importing():
    pass
with ending_at_once():
    os.kill(os.getpid(), signal.SIGINT)
    signal.sigtimedwait([], 10)
"""
    (tmp_path / 'program').mkdir()
    (tmp_path / 'program' / '__init__.py').write_text(program)
    (tmp_path / 'program' / '__main__.py').write_text('')
    run = python('-m', 'program', folder=tmp_path)
    assert (told == 'Aborted!') == (run.stderr == '\nAborted!\n') and told in run.stderr
    assert run.returncode != 0 and run.stdout == ''
