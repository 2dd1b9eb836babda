"""Two processes make the run of one; one that dies ends the other."""
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from ding_common import read_json_lines
from ding_grpo.model import CausalLM
from ding_grpo.run.checkpoint import read_checkpoint
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.processes import ROOT, connected, run_ding
from tests.shipped import load, write

TOKENS = dict(
    env=dict(collector_env_num=24),
    policy=dict(
        group_size=4,
        model=dict(config=dict(hidden_size=32, intermediate_size=64)),
        learn=dict(batch_size=3, epoch_per_collect=2, beta=0.1, micro_batch_tokens=60),
        collect=dict(n_sample=6),
    ),
)
CRITIC = dict(
    TOKENS,
    policy=dict(
        TOKENS['policy'],
        learn=dict(TOKENS['policy']['learn'], advantage='gae', adv_method=None, loss='dapo', value_warmup=2)
    ),
)
STEPS = dict(
    env=dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2),
    policy=dict(group_size=4, learn=dict(learning_rate=1e-4, epoch_per_collect=1), collect=dict(n_sample=3)),
)
TURNS = dict(
    env=dict(collector_env_num=24),
    policy=dict(
        group_size=4,
        model=dict(config=dict(hidden_size=32, intermediate_size=64)),
        learn=dict(batch_size=3, epoch_per_collect=2, advantage='anchor', learning_rate=1e-3, micro_batch_tokens=60),
        collect=dict(n_sample=6),
    ),
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


def write_config(folder, name, config, changes, processes, code='', **learn):
    changes = dict(changes, exp_name=name)
    changes['env'] = dict(changes['env'], stop_value=1e9)
    learn = dict(changes['policy'].get('learn', {}), **learn)
    multi_gpu = processes > 1 or bool(changes['policy'].get('shard', False))
    changes['policy'] = dict(changes['policy'], learn=learn, multi_gpu=multi_gpu)
    changes['policy'].setdefault('eval', dict(evaluator=dict(eval_freq=4)))
    write(folder / f'{name}_config.py', load(config, **changes), code)


class Run:
    """A run of one process, or of two in one folder."""

    def __init__(self, folder, name, config, changes, mode, updates, processes, code='', **learn):
        write_config(folder, name, config, changes, processes, code, **learn)
        self.folder = folder / name
        self._start(folder, f'-m {mode} -c {name}_config.py -s 0 --train-iter {updates}', processes)

    def _start(self, folder, options, processes):
        self._processes = connected(run_ding, options, [folder] * processes)

    def end(self, seconds=120):
        ended = [process.end(seconds) for process in self._processes]
        return max(code for code, _ in ended), ''.join(out for _, out in ended)

    def updates(self):
        return len(read_json_lines(str(self.folder / 'log' / 'learner' / 'metrics.jsonl')))

    def weights(self, number):
        return torch.load(self.folder / 'ckpt' / f'iteration_{number}.pth.tar', weights_only=True)['model']


class Torchrun(Run):
    """The command of docs/guides/scaling.md."""

    def _start(self, folder, options, processes):
        self._log = open(folder / 'torchrun.txt', 'w+')
        command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', str(processes), '-m', 'ding_grpo']
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT)
        self.process = subprocess.Popen(
            command + options.split(), cwd=folder, stdout=self._log, stderr=subprocess.STDOUT, env=env
        )

    def end(self, seconds=120):
        code = self.process.wait(seconds)
        return code, self.out()

    def out(self):
        self._log.seek(0)
        return self._log.read()


def furthest(a, b):
    return max((a[name] - b[name]).abs().max().item() for name in a)


@pytest.mark.envtest
class TestTwoProcesses:

    @pytest.mark.parametrize(
        'config, changes, mode, start', [
            pytest.param('think_answer_grpo', TOKENS, 'serial_onpolicy', Run, id='tokens'),
            long('think_answer_grpo', TOKENS, 'serial_onpolicy', Torchrun, id='torchrun'),
            long('think_answer_grpo', CRITIC, 'serial_onpolicy', Run, id='critic'),
            long('key_and_door_grpo', TURNS, 'serial_onpolicy', Run, id='turns'),
            long('cartpole_grpo', STEPS, 'serial_onpolicy', Run, id='steps'),
            pytest.param('think_answer_grpo_serial', BUFFER, 'serial', Run, id='replay_buffer'),
        ]
    )
    def test_the_weights_of_one(self, tmp_path, config, changes, mode, start):
        # all processes decide by the samples of the first
        policy = dict(changes['policy'], eval=dict(evaluator=dict(eval_freq=4, sample=True)))
        changes = dict(changes, policy=policy)
        runs = [cls(tmp_path, f'p{n}', config, changes, mode, 10, n) for n, cls in ((1, Run), (2, start))]
        for run in runs:
            code, out = run.end()
            assert code == 0, out
        one, two = (run.weights(10) for run in runs)
        assert furthest(one, two) < 1e-6
        lengths = {
            r.get('completion_length_min', r.get('episode_length_min'))
            for r in read_json_lines(str(runs[1].folder / 'log/learner/metrics.jsonl'))
        }
        assert len(lengths) > 1  # rows are of uneven lengths
        assert runs[1].updates() == 10  # written by one of them
        evaluations = read_json_lines(str(runs[1].folder / 'log/evaluator/evaluations.jsonl'))
        assert [e['train_iter'] for e in evaluations] == [0, 4, 8, 10]
        assert not list(tmp_path.glob('p2_[0-9]*'))  # in one folder

    @pytest.mark.algotest
    def test_measure_the_same_of_shadow_losses_and_noise(self, tmp_path):
        """Each process reads its own rows: without the sum over processes, norms would be those of a part."""
        learn = dict(shadow=['dapo', 'gspo'], shadow_every=1, noise_every=1)
        runs = [Run(tmp_path, f'p{n}', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 2, n, **learn) for n in (1, 2)]
        found = []
        for run in runs:
            code, out = run.end()
            assert code == 0, out
            first, *_ = read_json_lines(str(run.folder / 'log' / 'learner' / 'metrics.jsonl'))
            found.append({name: value for name, value in first.items() if name.startswith(('shadow/', 'noise/'))})
        assert {'shadow/gspo/weights_cosine', 'noise/weights/within'} <= set(found[0])
        assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-7)

    @pytest.mark.algotest
    def test_a_teacher_and_demonstrations(self, tmp_path):
        """Each process adds the divergence and the demonstrations of its own rows."""
        model = dict(load('think_answer_grpo')[0].policy.model.config, **TOKENS['policy']['model']['config'])
        torch.manual_seed(1)
        CausalLM(config=model).save_pretrained(str(tmp_path / 'teacher'), TokenEnv().tokenizer)
        changes = dict(TOKENS, policy=dict(TOKENS['policy'], teacher=dict(pretrained=str(tmp_path / 'teacher'))))
        learn = dict(demonstrations=dict(share=0.5))
        runs = [Run(tmp_path, f'p{n}', 'think_answer_grpo', changes, 'serial_onpolicy', 4, n, **learn) for n in (1, 2)]
        for run in runs:
            code, out = run.end()
            assert code == 0, out
        assert furthest(*(run.weights(4) for run in runs)) < 1e-6
        one, two = (read_json_lines(str(run.folder / 'log/learner/metrics.jsonl')) for run in runs)
        for name in ('teacher_kl', 'teacher_loss', 'demonstration_nll', 'total_loss'):
            assert [r[name] for r in two] == pytest.approx([r[name] for r in one], abs=1e-5)

    @pytest.mark.algotest
    def test_resumed_by_another_number(self, tmp_path):
        args = ('run', 'think_answer_grpo', TOKENS, 'serial_onpolicy')
        for updates, processes in ((4, 2), (7, 1), (10, 2)):
            code, out = Run(tmp_path, *args, updates, processes, resume_training=updates > 4).end()
            assert code == 0, out
        whole = Run(tmp_path, 'whole', *args[1:], 10, 1)
        whole.end()
        run = torch.load(tmp_path / 'run/ckpt/iteration_10.pth.tar', weights_only=True)
        assert furthest(run['model'], whole.weights(10)) < 1e-6
        assert len(read_json_lines(str(tmp_path / 'run/log/learner/metrics.jsonl'))) == 10
        for name in ('run', 'whole'):
            evaluations = read_json_lines(str(tmp_path / name / 'log/evaluator/evaluations.jsonl'))
            assert [e['train_iter'] for e in evaluations] == [0, 4, 8, 10]

    @pytest.mark.algotest
    def test_one_that_dies_ends_the_other(self, tmp_path):
        run = Torchrun(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 10 ** 6, 2)
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
        assert f'Error: process 0: process 1 (pid {workers[1]}) of this run has exited, so this one exits too' in out

    @pytest.mark.algotest
    def test_kills(self, tmp_path):
        """Each run goes on from what the killed one left, which is whole."""
        moment = random.Random(0)
        for kill in range(20):
            run = Run(
                tmp_path,
                'run',
                'think_answer_grpo',
                TOKENS,
                'serial_onpolicy',
                10 ** 6,
                2,
                resume_training=True,
                keep_ckpt=2,
                learner=dict(hook=dict(save_ckpt_after_iter=3))
            )
            before = run.updates()
            while run.updates() < before + 4:
                assert all(p.poll() is None for p in run._processes), run._processes[0].out()
                time.sleep(0.05)
            time.sleep(moment.uniform(0, 1))
            died, other = run._processes[kill % 2], run._processes[1 - kill % 2]
            os.kill(died.pid, signal.SIGKILL)
            since = time.monotonic()
            code, out = other.end(40)
            assert code == 1 and time.monotonic() - since < 30
            line = f'process {1 - kill % 2}: process {kill % 2} (pid {died.pid}) of this run has exited'
            assert out.count(line) == 1, out
            for path in (tmp_path / 'run/ckpt').glob('*.pth.tar'):
                read_checkpoint(str(path))
            died.end()

    @pytest.mark.algotest
    def test_a_signal_saves_and_ends_all(self, tmp_path):
        run = Torchrun(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 10 ** 6, 2)
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
    if os.environ['RANK'] == '{rank}' and self._learning.updates == 2:
        raise RuntimeError('injected')
    return method(self, *args, **kwargs)
GRPOPolicy.{method} = fail
main_config.policy.eval.evaluator.eval_freq = 2
'''


@pytest.mark.envtest
class TestWhoFailed:

    @pytest.mark.parametrize('method, rank', [('_forward_learn', 1), ('_forward_eval', 0)])
    def test_an_error_of_one_process_in_a_run(self, tmp_path, method, rank):
        """The other one waits in a call of torch's or DI-engine's."""
        code = FAILS.format(method=method, rank=rank)
        status, out = Run(tmp_path, 'run', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 4, 2, code).end()
        assert status == 1
        assert out.count('RuntimeError: injected') == 1 and 'in fail\n' in out
        who = rf'(another process|process {rank} \(pid \d+\))'
        assert len(re.findall(f'{who} of this run', out)) == 1
        assert re.search(f'Error: process {1 - rank}: {who} of this run has exited, so this one exits too', out)


@pytest.mark.envtest
def test_resumed_where_one_process_alone_sees_the_checkpoints(tmp_path):
    write_config(tmp_path, 'run', 'think_answer_grpo', TOKENS, 2, resume_training=True)
    for updates in (3, 5):
        processes = connected(
            run_ding, f'-m serial_onpolicy -c ../run_config.py -s 0 --train-iter {updates}',
            [tmp_path / '0', tmp_path / '1']
        )
        (code, out), (other_code, other_out) = [process.end() for process in processes]
        assert code == other_code == 0, out + other_out  # at the end the weights of all are compared
    assert 'resuming from run/ckpt/iteration_3.pth.tar, after update 3' in out
    assert (tmp_path / '0/run/ckpt/iteration_5.pth.tar').exists() and not list(tmp_path.glob('1/**/*.pth.tar'))


@pytest.mark.envtest
def test_without_a_gpu(tmp_path):
    changes = dict(TOKENS, policy=dict(TOKENS['policy'], cuda=True))
    code, out = Run(tmp_path, 'run', 'think_answer_grpo', changes, 'serial_onpolicy', 1, 2).end()
    assert code == 1 and 'ZeroDivisionError' not in out and not os.path.exists(tmp_path / 'run')
    assert out.count('Error: policy.cuda = True: torch finds no GPU on this machine; set it to False.\n') == 2
