import errno
import os
import runpy
import signal
import subprocess
import sys
import time
from functools import partial

import ding.entry
import gymnasium
import numpy as np
import pytest
from ding.envs import BaseEnv, BaseEnvTimestep
from ding.utils import SERIAL_COLLECTOR_REGISTRY, build_logger
from easydict import EasyDict

from ding_common import ConfigError, PeerError
from ding_common.processes.env_manager import AsyncManager, SyncManager
from ding_grpo.entry.build import compiled
from ding_grpo.run.around import around_run, save_config
from tests.processes import ROOT


@pytest.mark.unittest
class TestCompat:

    def test_registry_hands_on_errors_without_a_page_of_hints(self, capsys):

        def refuse(cfg):
            raise ConfigError('no')

        SERIAL_COLLECTOR_REGISTRY.register('refusing', refuse, force_overwrite=True)
        with around_run(), pytest.raises(ConfigError):
            SERIAL_COLLECTOR_REGISTRY.build('refusing', cfg={})
        assert capsys.readouterr().out == ''

    def test_env_managers_keep_quiet_about_their_spaces(self, capfd):
        from ding.envs import BaseEnvManager

        from dizoo_llm.envs import DingTokenEnv
        cfg = EasyDict(task=dict(type='think_answer'))
        manager = BaseEnvManager([partial(DingTokenEnv, cfg)], EasyDict(BaseEnvManager.default_config()))
        with around_run():
            manager.launch()
        assert capfd.readouterr() == ('', '')


@pytest.mark.unittest
def test_the_whole_config_of_a_run_can_be_imported(think_answer):
    main, create = think_answer
    whole = compiled((main, create), 0, save_cfg=False)
    whole.policy.other = EasyDict(last=float('inf'))
    save_config(whole, 'whole.py')
    assert runpy.run_path('whole.py')['exp_config'] == whole


@pytest.mark.unittest
class TestNames:

    @pytest.mark.parametrize('pipeline', [ding.entry.serial_pipeline_onpolicy, ding.entry.serial_pipeline])
    @pytest.mark.parametrize(
        'section, value, message', [
            ('policy', dict(type='gpro'), "policy.type = 'gpro': must be a registered name; did you mean 'qgpo' or '"),
            ('env', dict(type='token_en'), "env.type = 'token_en': must be a registered name; did you mean 'token_"),
            (
                'env_manager', dict(type='x'
                                    ), "env_manager.type = 'x': must be a registered name; check that import_names"
            ),
            ('collector', dict(type='grup'), "collector.type = 'grup': must be a registered name; did you mean 'gro"),
            ('collector', dict(type=[]), r'collector.type = \[\]: must be a registered name'),
            ('evaluator', dict(type='grup'), "evaluator.type = 'grup': must be a registered name"),
            ('env', dict(import_names=['ding_gpro']), r"env.import_names = \['ding_gpro'\]: must be a list of modules"),
            ('env', 5, 'env = 5: must be a dict'),
            ('collector', 5, 'collector = 5: must be a dict'),
        ]
    )
    def test_that_are_not_there(self, think_answer, pipeline, section, value, message):
        main, create = think_answer
        create[section] = value
        with pytest.raises(ConfigError, match=f'create_config.{message}'):
            pipeline((main, create))
        assert not os.path.exists('run')


@pytest.mark.unittest
def test_without_a_name_of_the_run(think_answer):
    main, create = think_answer
    main.pop('exp_name')
    ding.entry.serial_pipeline_onpolicy((main, create), max_train_iter=1)
    assert os.path.exists('default_experiment/ckpt')


class HangingEnv(BaseEnv):
    """Tells its process, and never ends a step."""

    def __init__(self, cfg):
        self._folder = cfg.folder
        self.observation_space = self.action_space = self.reward_space = gymnasium.spaces.Box(-1, 1, (1, ), np.float32)

    def reset(self):
        return np.zeros(1, np.float32)

    def step(self, action):
        with open(os.path.join(self._folder, str(os.getpid())), 'w'):
            time.sleep(1000)

    def seed(self, seed, dynamic_seed=True):
        pass

    def close(self):
        pass

    def __repr__(self):
        return 'HangingEnv'


@pytest.mark.envtest
def test_environments_end_with_their_run(tmp_path):
    run = os.fork()
    if run == 0:
        try:
            fns = [partial(HangingEnv, EasyDict(folder=str(tmp_path)))] * 3
            manager = SyncManager(fns, EasyDict(SyncManager.default_config()))
            manager.launch()
            manager.step({i: np.zeros(1) for i in range(3)})
        finally:
            os._exit(1)
    assert comes_true(lambda: len(os.listdir(tmp_path)) == 3)
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    assert comes_true(lambda: not any(map(is_alive, os.listdir(tmp_path))))


class SteadyEnv(HangingEnv):

    def step(self, action):
        return BaseEnvTimestep(np.zeros(1, np.float32), np.zeros(1, np.float32), False, {})


@pytest.mark.envtest
@pytest.mark.parametrize('manager', [AsyncManager, SyncManager])
@pytest.mark.parametrize('at', ['step', 'reset'])
def test_an_environment_process_that_is_killed_ends_in_one_line(tmp_path, manager, at, caplog):
    fns = [partial(SteadyEnv, EasyDict(folder=str(tmp_path)))] * 3
    envs = manager(fns, EasyDict(manager.default_config()))
    envs.seed(0)
    envs.launch()
    killed = envs._subprocesses[1]
    os.kill(killed.pid, signal.SIGKILL)
    if at == 'step':  # while it is found out, or before
        killed.join()
    envs._env_seed = dict.fromkeys(range(3), 1)
    with around_run(), pytest.raises(PeerError,
                                     match=f'the process {killed.pid} of environment 1 has ended with exit code -9'):
        envs.step({i: np.zeros(1) for i in range(3)}) if at == 'step' else envs.reset()
    envs.close()
    assert not caplog.records and comes_true(lambda: not any(p.is_alive() for p in envs._subprocesses.values()))


@pytest.mark.envtest
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
    run = subprocess.run(
        [sys.executable, '-m', 'program'],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=ROOT),
        capture_output=True,
        text=True
    )
    assert (told == 'Aborted!') == (run.stderr == '\nAborted!\n') and told in run.stderr
    assert run.returncode != 0 and run.stdout == ''


def is_alive(pid):
    try:
        with open(f'/proc/{pid}/stat') as f:
            return f.read().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def comes_true(holds, seconds=5):
    deadline = time.time() + seconds
    while not holds() and time.time() < deadline:
        time.sleep(0.05)
    return holds()


def evaluate(configs):
    ding.entry.eval(configs, state_dict={})


@pytest.mark.unittest
@pytest.mark.parametrize('pipeline', [ding.entry.serial_pipeline_onpolicy, ding.entry.serial_pipeline, evaluate])
class TestCheckedBeforeItIsMerged:
    """Each of these ended in a traceback of DI-engine's."""

    @pytest.mark.parametrize(
        'section, value, message', [
            ('policy.learn', None, 'policy.learn = None: must be a dict'),
            ('policy.learn.learner', 3, 'policy.learn.learner = 3: must be a dict'),
            ('policy.collect', [], r'policy.collect = \[\]: must be a dict'),
            ('policy.collect.collector', 'x', "policy.collect.collector = 'x': must be a dict"),
            ('policy.eval.evaluator', True, 'policy.eval.evaluator = True: must be a dict'),
            ('policy.other', 'x', "policy.other = 'x': must be a dict"),
            ('policy.import_names', ['none'], r"policy.import_names = \['none'\]: must be a list of modules"),
            ('exp_name', '/run', "exp_name = '/run': must be text, a path relative to the current folder"),
            ('exp_name', 5, 'exp_name = 5: must be text'),
            ('exp_name', '', "exp_name = '': must be text, a path relative to the current folder, and not that folder"),
            ('exp_name', './', "exp_name = './': must be text"),
            ('policy.type', 'grpo', "policy.type = 'grpo': belongs in create_config.policy"),
            ('policy', 0, 'policy = 0: must be a dict'),
            ('env', 0, 'env = 0: must be a dict'),
            ('env.type', 'token_en', "env.type = 'token_en': unknown environment; did you mean 'token_env'"),
            ('env.manager', 0, 'env.manager = 0: must be a dict'),
        ]
    )
    def test_what_is_no_section(self, think_answer, pipeline, section, value, message):
        main, create = think_answer
        *path, key = section.split('.')
        cfg = main
        for name in path:
            cfg = cfg.setdefault(name, {})
        cfg[key] = value
        with pytest.raises(ConfigError, match=message):
            pipeline((main, create))
        assert not os.path.exists('run')

    def test_no_policy_at_all(self, think_answer, pipeline):
        main, create = think_answer
        main.pop('policy')  # of an EasyDict `del` would leave the attribute
        with pytest.raises(ConfigError, match='main_config.policy: missing; must be a dict. Present: exp_name, env.'):
            pipeline((main, create))


@pytest.mark.unittest
class TestFolder:

    @pytest.mark.parametrize('name', ['file/run', 'file/below/run'])
    def test_below_a_file(self, think_answer, name):
        main, create = think_answer
        open('file', 'w').close()
        main.exp_name = name
        with pytest.raises(ConfigError, match=f"^exp_name = '{name}': .* could not be written .Not a directory"):
            ding.entry.serial_pipeline_onpolicy((main, create), max_train_iter=1)

    @pytest.mark.parametrize('where', ['run', 'run/log/serial'])
    def test_that_may_not_be_written(self, think_answer, monkeypatch, where):
        makedirs = os.makedirs

        def refuse(path, *args, **kwargs):
            if os.path.normpath(path) == where:  # root may write everywhere
                raise PermissionError(errno.EACCES, 'Permission denied', path)
            makedirs(path, *args, **kwargs)

        monkeypatch.setattr(os, 'makedirs', refuse)
        with pytest.raises(ConfigError, match=f"^exp_name = 'run': .*{where} could not be written .Permission denied"):
            ding.entry.serial_pipeline_onpolicy(think_answer, max_train_iter=1)

    def test_other_files_are_not_blamed_on_it(self, think_answer, monkeypatch):

        def refuse(self, **options):
            raise PermissionError(errno.EACCES, 'Permission denied', '/data/problems.txt')

        monkeypatch.setattr('dizoo_llm.envs.ding_token_env.TokenEnv.__init__', refuse)
        with pytest.raises(PermissionError, match='/data/problems.txt'):
            ding.entry.serial_pipeline_onpolicy(think_answer, max_train_iter=1)


@pytest.mark.unittest
def test_text_logs_are_in_utf_8_whatever_the_locale(tmp_path):
    with around_run():
        logger, _ = build_logger(str(tmp_path), 'of_a_test', need_tb=False)
    assert [handler.encoding for handler in logger.handlers] == ['utf-8']


@pytest.mark.envtest
def test_environments_of_which_one_has_exited_are_closed(tmp_path):
    """Closing raised BrokenPipeError, in ``__del__`` of collector and evaluator, and left the others alive."""
    fns = [partial(HangingEnv, EasyDict(folder=str(tmp_path)))] * 3
    manager = SyncManager(fns, EasyDict(SyncManager.default_config()))
    manager.launch()
    processes = list(manager._subprocesses.values())
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].join()
    manager.close()
    assert manager.closed and comes_true(lambda: not any(process.is_alive() for process in processes))
