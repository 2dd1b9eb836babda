"""Two processes make the run of one; one that dies ends the other."""
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import ding.policy.base_policy
import pytest
import torch

from ding_common import ConfigError, parallel, read_json_lines
from ding_grpo.policy import GRPOCommandModePolicy, GRPOPolicy

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..'))
SMALL = '''
import runpy
from ding.utils import deep_merge_dicts
from easydict import EasyDict
loaded = runpy.run_path({path!r})
create_config = loaded['create_config']
main_config = EasyDict(deep_merge_dicts(loaded['main_config'], {changes!r}))
{code}
'''
TOKENS = dict(
    env=dict(collector_env_num=24),
    policy=dict(
        group_size=4,
        model=dict(config=dict(hidden_size=32, intermediate_size=64)),
        learn=dict(batch_size=3, epoch_per_collect=2, beta=0.1, micro_batch_tokens=60),
        collect=dict(n_sample=6),
    ),
)
STEPS = dict(
    env=dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2),
    policy=dict(group_size=4, learn=dict(learning_rate=1e-4, epoch_per_collect=1), collect=dict(n_sample=3)),
)
BUFFER = dict(
    env=dict(collector_env_num=8),
    policy=dict(
        group_size=4,
        model=dict(config=dict(hidden_size=32, intermediate_size=64)),
        learn=dict(batch_size=3, update_per_collect=2),
        collect=dict(n_sample=4),
        other=dict(replay_buffer=dict(replay_buffer_size=8, max_use=3)),
    ),
)

MEET = '''
import torch
from ding_common import parallel
parallel.start(False)
try:
'''


def write_config(folder, name, config, changes, processes, code='', **learn):
    changes = dict(changes, exp_name=name)
    changes['env'] = dict(changes['env'], stop_value=1e9)
    learn = dict(changes['policy'].get('learn', {}), **learn)
    changes['policy'] = dict(changes['policy'], learn=learn, multi_gpu=processes > 1)
    changes['policy']['eval'] = dict(evaluator=dict(eval_freq=8))
    path = os.path.join(ROOT, 'config', f'{config}_config.py')
    (folder / f'{name}_config.py').write_text(SMALL.format(path=path, changes=changes, code=code))


class Run:
    """A run on the command line: ``python -m ding_grpo``, by torchrun if there are several processes."""

    def __init__(self, folder, name, config, changes, mode, updates, processes, code='', **learn):
        write_config(folder, name, config, changes, processes, code, **learn)
        torchrun = ['-m', 'torch.distributed.run', '--nproc_per_node', str(processes)] if processes > 1 else []
        command = [sys.executable, *torchrun, '-m', 'ding_grpo', '-m', mode, '-c', f'{name}_config.py', '-s', '0']
        self._log = open(folder / f'{name}.txt', 'w+')
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT)
        self.process = subprocess.Popen(
            command + ['--train-iter', str(updates)], cwd=folder, stdout=self._log, stderr=subprocess.STDOUT, env=env
        )
        self.folder = folder / name

    def end(self, seconds=120):
        code = self.process.wait(seconds)
        return code, self.out()

    def out(self):
        self._log.seek(0)
        return self._log.read()

    def updates(self):
        return len(read_json_lines(str(self.folder / 'log' / 'learner' / 'metrics.jsonl')))

    def weights(self, number):
        return torch.load(self.folder / 'ckpt' / f'iteration_{number}.pth.tar', weights_only=True)['model']


def meet(tmp_path, code):
    """Two processes that run it, each in a folder of its own, without torchrun: their exit codes and outputs."""
    path = tmp_path / 'code.py'
    path.write_text(
        MEET + ''.join(f'    {line}\n' for line in code.strip().splitlines()) + 'finally:\n    parallel.end()'
    )
    return two_processes(tmp_path, [sys.executable, str(path)])


def two_processes(tmp_path, command):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in '01':
        (tmp_path / rank).mkdir(exist_ok=True)
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE='2')
        env.update(MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
        processes.append(
            subprocess.Popen(
                command, cwd=tmp_path / rank, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    try:
        outs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, out) for process, out in zip(processes, outs)]


def furthest(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


@pytest.mark.unittest
class TestTwoProcesses:

    @pytest.mark.parametrize(
        'config, changes, mode', [
            pytest.param('think_answer_grpo', TOKENS, 'serial_onpolicy', id='tokens'),
            pytest.param('cartpole_grpo', STEPS, 'serial_onpolicy', id='steps', marks=pytest.mark.algotest),
            pytest.param('think_answer_grpo_serial', BUFFER, 'serial', id='replay_buffer', marks=pytest.mark.algotest),
        ]
    )
    def test_the_weights_of_one(self, tmp_path, config, changes, mode):
        runs = [Run(tmp_path, f'p{n}', config, changes, mode, 20, n) for n in (1, 2)]
        for run in runs:
            code, out = run.end()
            assert code == 0, out
        one, two = (run.weights(20) for run in runs)
        assert furthest(one, two) < 1e-6
        lengths = {
            r.get('completion_length_min', r.get('episode_length_min'))
            for r in read_json_lines(str(runs[1].folder / 'log/learner/metrics.jsonl'))
        }
        assert len(lengths) > 1  # rows are of uneven lengths
        assert runs[1].updates() == 20  # written by one of them
        assert not list(tmp_path.glob('p2_[0-9]*'))  # in one folder

    @pytest.mark.algotest
    def test_resumed_by_another_number(self, tmp_path):
        args = ('run', 'think_answer_grpo', TOKENS, 'serial_onpolicy')
        for updates, processes in ((8, 2), (14, 1), (20, 2)):
            code, out = Run(tmp_path, *args, updates, processes, resume_training=updates > 8).end()
            assert code == 0, out
        whole = Run(tmp_path, 'whole', *args[1:], 20, 1)
        whole.end()
        run = torch.load(tmp_path / 'run/ckpt/iteration_20.pth.tar', weights_only=True)
        assert furthest(run['model'], whole.weights(20)) < 1e-6
        assert len(read_json_lines(str(tmp_path / 'run/log/learner/metrics.jsonl'))) == 20

    def test_one_that_dies_ends_the_other(self, tmp_path):
        run = Run(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 10 ** 6, 2)
        while run.updates() < 3:
            assert run.process.poll() is None, run.out()
            time.sleep(0.2)
        workers = subprocess.run(['pgrep', '-P', str(run.process.pid)], capture_output=True, text=True).stdout.split()
        assert len(workers) == 2
        os.kill(int(workers[1]), signal.SIGKILL)
        since = time.monotonic()
        code, out = run.end(40)
        assert time.monotonic() - since < 20
        assert code == 1 and 'Signal 9 (SIGKILL)' in out
        assert 'Error: process 0: another process of this run has exited, so this one exits too' in out

    def test_a_signal_saves_and_ends_all(self, tmp_path):
        run = Run(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 10 ** 6, 2)
        while run.updates() < 3:
            assert run.process.poll() is None, run.out()
            time.sleep(0.2)
        run.process.terminate()
        code, out = run.end(60)
        assert code != 0 and 'SIGTERM: saving after update' in out
        saved = max(int(p.name.split('_')[1].split('.')[0]) for p in (run.folder / 'ckpt').glob('iteration_*'))
        assert saved == run.updates() >= 3

    def test_processes_that_do_not_share_are_refused(self, tmp_path, monkeypatch):
        monkeypatch.setenv('WORLD_SIZE', '2')
        code, out = Run(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 1, 1).end()
        assert code == 1
        assert out.strip() == 'Error: policy.multi_gpu = False: torchrun started 2 processes; must be True for ' \
            'them to share one run.'


FAILS = '''
import os
from ding_grpo.policy import GRPOPolicy
method = GRPOPolicy.{method}
def fail(self, *args, **kwargs):
    if os.environ['RANK'] == '{rank}' and self._updates == 2:  # the other waits in a call of torch's or DI-engine's
        raise RuntimeError('injected')
    return method(self, *args, **kwargs)
GRPOPolicy.{method} = fail
main_config.policy.eval.evaluator.eval_freq = 2
'''


@pytest.mark.unittest
class TestWhoFailed:

    @pytest.mark.parametrize('method, rank', [('_to_learn', 1), ('_forward_eval', 0)])
    def test_an_error_of_one_process_in_a_run(self, tmp_path, method, rank):
        code = FAILS.format(method=method, rank=rank)
        status, out = Run(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 4, 2, code).end()
        assert status == 1
        assert out.count('RuntimeError: injected') == 1 and 'in fail\n' in out
        assert out.count('another process of this run') == 1
        assert f'Error: process {1 - rank}: another process of this run has exited, so this one exits too' in out

    def test_an_error_within_a_call_of_torch_is_its_own(self, tmp_path):
        (_, first), (_, second) = meet(
            tmp_path, """
x = torch.ones(3)
parallel.broadcast([x.to_sparse() if parallel.rank() == 1 else x])
parallel.all_gather(1)
"""
        )
        last = [out.strip().splitlines() for out in (first, second)]
        assert 'PeerError' in last[0][-1] and 'process 0: another process of this run has exited' in last[0][-1]
        assert 'PeerError' not in second and "NotImplementedError: Could not run 'c10d::broadcast_'" in second

    def test_one_that_does_not_answer(self, tmp_path):
        (_, first), (_, second) = meet(
            tmp_path, """
import os, time
from datetime import timedelta
parallel.end()
parallel.TIMEOUT = timedelta(seconds=2)
os.environ['MASTER_PORT'] = str(int(os.environ['MASTER_PORT']) + 1)
parallel.start(False)
time.sleep(5 * parallel.rank())
parallel.all_gather(1)
"""
        )
        assert 'process 0: another process of this run has not responded for 0.0333333 minutes' in first
        assert 'process 1: another process of this run has exited' in second

    def test_other_tensors_than_the_others(self, tmp_path):
        # gloo adds up what is there, hangs, or aborts
        outs = meet(
            tmp_path, """
me, one = parallel.rank(), torch.ones(1)
for call in (parallel.broadcast, parallel.all_reduce):
    for tensors in ([one, torch.ones(3 + me)], [one, one.double() if me else one], [one] * (1 + me), [one]):
        try:
            call(tensors)
            print('done')
        except parallel.PeerError as error:
            print(error.message)
"""
        )
        different = [
            'torch.float32 (3,) and torch.float32 (4,)', 'torch.float32 (1,) and torch.float64 (1,)', '1 and 2 tensors'
        ]
        told = [
            f'processes 0 and 1 of this run differ: they have {kinds}. All processes need the same config, code and '
            'models.' for kinds in different
        ] + ['done']
        assert [(code, out.splitlines()) for code, out in outs] == [(0, told * 2)] * 2

    def test_no_address_to_meet_at(self, monkeypatch):
        monkeypatch.setenv('WORLD_SIZE', '2')
        for name in ('RANK', 'MASTER_ADDR', 'MASTER_PORT'):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ConfigError, match='policy.multi_gpu = True: .*RANK expected.*start them with torchrun'):
            parallel.start(False)


@pytest.mark.unittest
def test_tensors_of_the_first_process(tmp_path):
    outs = meet(
        tmp_path, """
from tests.same import same
torch.manual_seed(3)
found = dict(a=[torch.arange(5), 'text'], b=(torch.tensor(2.5), torch.zeros(0, 3), None))
found.update(c=torch.ones(2, dtype=bool), d=torch.randn(4, 6).T.bfloat16(), e={1: torch.full((2, 2), 1j)})
same(parallel.broadcast_object(found if parallel.rank() == 0 else 'nothing'), found)
"""
    )
    assert [code for code, _ in outs] == [0, 0], outs


@pytest.mark.unittest
def test_resumed_where_one_process_alone_sees_the_checkpoints(tmp_path):
    write_config(tmp_path, 'run', 'think_answer_grpo', TOKENS, 2, resume_training=True)
    command = [sys.executable, '-m', 'ding_grpo', '-m', 'serial_onpolicy', '-c', '../run_config.py', '-s', '0']
    for updates in (3, 5):
        (code, out), (other_code, other_out) = two_processes(tmp_path, [*command, '--train-iter', str(updates)])
        assert code == other_code == 0, out + other_out  # at the end the weights of all are compared
    assert 'resuming from run/ckpt/iteration_3.pth.tar, after update 3' in out
    assert (tmp_path / '0/run/ckpt/iteration_5.pth.tar').exists() and not list(tmp_path.glob('1/**/*.pth.tar'))


@pytest.mark.unittest
class TestGPUs:

    @pytest.fixture
    def machine(self, monkeypatch):
        """Says how many GPUs a process sees, and which process it is."""

        def make(gpus, rank, local_rank, processes):
            monkeypatch.setattr(torch.cuda, 'is_available', lambda: gpus > 0)
            monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
            for name, value in dict(RANK=rank, LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE=processes, WORLD_SIZE=8).items():
                monkeypatch.setenv(name, str(value))

        return make

    @pytest.mark.parametrize(
        'gpus, rank, local_rank, processes, found',
        [
            (4, 5, 1, 4, 1),
            (4, 3, 3, 4, 3),
            (8, 6, 2, 4, 2),
            (1, 5, 1, 4, 0),  # a launcher has given each process one
        ]
    )
    def test_of_a_process(self, machine, gpus, rank, local_rank, processes, found):
        machine(gpus, rank, local_rank, processes)
        assert parallel.gpu() == found

    @pytest.mark.parametrize('local_rank', [0, 3])
    def test_fewer_than_processes(self, machine, local_rank):
        machine(2, local_rank, local_rank, 4)
        with pytest.raises(ConfigError, match='policy.cuda = True: 4 processes run on this machine, which has 2 GPUs;'):
            parallel.start(True)

    def test_two_processes_that_see_the_same_one(self, machine, monkeypatch):
        machine(1, 1, 1, 2)
        chosen = []
        monkeypatch.setattr(torch.cuda, 'set_device', chosen.append)
        monkeypatch.setattr(torch.cuda, 'current_device', lambda: 0)
        monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: SimpleNamespace(uuid='b'))
        monkeypatch.setattr(torch.distributed, 'init_process_group', lambda *args, **kwargs: None)
        monkeypatch.setattr(parallel, 'all_gather', lambda mine: ['a', 'c', mine])
        parallel.start(True)
        assert chosen == [0]
        monkeypatch.setattr(parallel, 'all_gather', lambda mine: ['a', mine, mine])
        with pytest.raises(ConfigError, match=r'processes 1 and 2 of this run would use the same GPU \(b\)'):
            parallel.start(True)

    def test_none(self, tmp_path):
        changes = dict(TOKENS, policy=dict(TOKENS['policy'], cuda=True))
        code, out = Run(tmp_path, 'run', 'think_answer_grpo', changes, 'serial_onpolicy', 1, 2).end()
        assert code == 1 and 'ZeroDivisionError' not in out and not os.path.exists(tmp_path / 'run')
        assert out.count('Error: policy.cuda = True: torch finds no GPU on this machine; set it to False.\n') == 2

    def test_batches_go_where_the_model_is(self, machine, monkeypatch):
        # DI-engine's device is of RANK, the model's of LOCAL_RANK: on a second machine they were two
        machine(4, 5, 3, 4)
        monkeypatch.setattr(ding.policy.base_policy, 'get_rank', lambda: 5)
        monkeypatch.setattr(torch.nn.Module, 'cuda', lambda self: self.to('meta'))
        monkeypatch.setattr(GRPOPolicy, '_init_multi_gpu_setting', lambda *args: None)
        cfg = GRPOPolicy.default_config()
        cfg.cuda = cfg.multi_gpu = True
        cfg.model = dict(type='vac', obs_shape=4, action_shape=2)
        assert GRPOCommandModePolicy(cfg)._device == 'meta'
