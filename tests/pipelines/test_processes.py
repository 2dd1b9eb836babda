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
from ding.utils import deep_merge_dicts

from ding_grpo.model import CausalLM
from ding_grpo.run.checkpoint import read_checkpoint
from dizoo_llm.envs import TokenEnv
from tests.cases import long
from tests.processes import ROOT, connected, run_ding
from tests.run.configs import GUESSES
from tests.runs import distance, evaluated, metrics, state
from tests.shipped import load, write

pytestmark = pytest.mark.envtest
SHAPE = dict(model=dict(config=dict(hidden_size=32, intermediate_size=64)))
TOKENS = dict(
    env=dict(collector_env_num=24),
    policy=dict(
        SHAPE,
        group_size=4,
        learn=dict(batch_groups=3, epoch_per_collect=2, micro_batch_tokens=60, kl=dict(beta=0.1)),
        collect=dict(groups=6),
    ),
)
THINK = 'think_answer_grpo', TOKENS, 'serial_onpolicy'
CREDIT = dict(advantage='gae', adv_method=None, loss='dapo', critic=dict(value_warmup=2))
CRITIC = deep_merge_dicts(TOKENS, dict(policy=dict(learn=CREDIT)))
STEPS = dict(
    env=dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2),
    policy=dict(group_size=4, learn=dict(learning_rate=1e-4, epoch_per_collect=1), collect=dict(groups=3)),
)
VALUES = dict(learn=dict(advantage='gae', extend_truncated=False), model=dict(type='recurrent_vac'))
MEMORY = deep_merge_dicts(STEPS, dict(policy=VALUES))
ANCHOR = dict(batch_groups=3, epoch_per_collect=2, advantage='anchor', learning_rate=1e-3, micro_batch_tokens=60)
TURNS = dict(TOKENS, policy=dict(TOKENS['policy'], learn=ANCHOR))
AGENTS = deep_merge_dicts(TOKENS, dict(env=GUESSES))  # episodes of several texts
READS = dict(self='ema', context=('sibling', 'reference'), place='before', solution='{solution} ', closing='')
SELF = deep_merge_dicts(TOKENS, dict(policy=dict(teacher=READS)))
BUFFER = dict(
    env=dict(collector_env_num=8),
    policy=dict(
        SHAPE,
        group_size=4,
        learn=dict(batch_groups=3, update_per_collect=2),
        collect=dict(groups=4),
        other=dict(replay_buffer=dict(replay_buffer_size=8, max_use=3)),
    ),
)


def write_config(folder, name, config, changes, processes, code='', **learn):
    policy = dict(
        eval=dict(evaluator=dict(eval_freq=4)), multi_gpu=processes > 1 or bool(changes['policy'].get('shard', False))
    )
    policy = deep_merge_dicts(policy, deep_merge_dicts(changes['policy'], dict(learn=learn)))
    env = dict(changes['env'], stop_value=1e9)
    write(folder / f'{name}_config.py', load(config, exp_name=name, env=env, policy=policy), code)


class Run:
    """A run of one process, or of two in one folder."""

    def __init__(self, folder, name, config, changes, mode, updates, processes, code='', **learn):
        write_config(folder, name, config, changes, processes, code, **learn)
        self.folder = folder / name
        self.start(folder, f'-m {mode} -c {name}_config.py -s 0 --train-iter {updates}', processes)

    def start(self, folder, options, processes):
        self.processes = connected(run_ding, options, [folder] * processes)

    def end(self, seconds=120):
        """The largest exit code, and what all have printed."""
        ended = [process.end(seconds) for process in self.processes]
        return max(code for code, _ in ended), ''.join(out for _, out in ended)

    def finish(self):
        """What all have printed, which must end well."""
        code, out = self.end()
        assert code == 0, out
        return out

    def wait(self, updates):
        """Until there are so many updates."""
        while len(metrics(self.folder)) < updates:
            assert all(p.poll() is None for p in self.processes), self.processes[0].out()
            time.sleep(0.05)

    def weights(self, number):
        return state(number, self.folder)['model']


class Torchrun(Run):
    """The command of docs/guides/scaling.md."""

    def start(self, folder, options, processes):
        self._log = open(folder / 'torchrun.txt', 'w+')
        command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node', str(processes), '-m', 'ding_grpo']
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=ROOT)
        self.process = subprocess.Popen(
            command + options.split(), cwd=folder, stdout=self._log, stderr=subprocess.STDOUT, env=env
        )
        self.process.out = self.out
        self.processes = [self.process]

    def end(self, seconds=120):
        return self.process.wait(seconds), self.out()

    def out(self):
        self._log.seek(0)
        return self._log.read()


def one_and_two(folder, config, changes, mode, updates, start=Run, **learn):
    """The finished runs of one process and of two."""
    runs = [kind(folder, f'p{n}', config, changes, mode, updates, n, **learn) for n, kind in ((1, Run), (2, start))]
    for run in runs:
        run.finish()
    return runs


class TestTwoProcesses:

    @pytest.mark.parametrize(
        'config, changes, mode, start', [
            pytest.param('think_answer_grpo', TOKENS, 'serial_onpolicy', Run, id='tokens'),
            long('think_answer_grpo', TOKENS, 'serial_onpolicy', Torchrun, id='torchrun'),
            long('think_answer_grpo', CRITIC, 'serial_onpolicy', Run, id='critic'),
            long('key_and_door_grpo', TURNS, 'serial_onpolicy', Run, id='turns'),
            long('think_answer_grpo', AGENTS, 'serial_onpolicy', Run, id='agents'),
            long('think_answer_grpo', SELF, 'serial_onpolicy', Run, id='self_distillation'),
            long('cartpole_grpo', STEPS, 'serial_onpolicy', Run, id='steps'),
            long('cartpole_grpo', MEMORY, 'serial_onpolicy', Run, id='memory'),
            pytest.param('think_answer_grpo_serial', BUFFER, 'serial', Run, id='replay_buffer'),
        ]
    )
    def test_the_weights_of_one(self, tmp_path, config, changes, mode, start):
        # all processes decide by the samples of the first
        samples = dict(policy=dict(eval=dict(evaluator=dict(eval_freq=4, sample=True))))
        one, two = one_and_two(tmp_path, config, deep_merge_dicts(changes, samples), mode, 6, start)
        assert distance(one.weights(6), two.weights(6)) < 1e-6
        found = metrics(two.folder)
        assert len(found) == 6  # written by one of them
        lengths = {r.get('completion_length_min', r.get('episode_length_min')) for r in found}
        assert len(lengths) > 1  # rows are of uneven lengths
        assert evaluated(two.folder) == [0, 4, 6]
        assert not list(tmp_path.glob('p2_[0-9]*'))  # in one folder

    @pytest.mark.algotest
    def test_a_teacher_demonstrations_and_what_shadow_losses_and_noise_measure(self, tmp_path):
        """Each process reads its own rows: without the sum over processes, losses and norms would be of a part."""
        model = load('think_answer_grpo', policy=SHAPE)[0].policy.model.config
        torch.manual_seed(1)
        CausalLM(config=dict(model)).save_pretrained(str(tmp_path / 'teacher'), TokenEnv().tokenizer)
        instruments = dict(shadow=['dapo', 'gspo'], shadow_every=1, noise_every=1)
        policy = dict(teacher=dict(pretrained=str(tmp_path / 'teacher')), instruments=instruments)
        changes, learn = deep_merge_dicts(TOKENS, dict(policy=policy)), dict(demonstrations=dict(share=0.5))
        one, two = one_and_two(tmp_path, 'think_answer_grpo', changes, 'serial_onpolicy', 4, **learn)
        assert distance(one.weights(4), two.weights(4)) < 1e-6
        for name in ('teacher_kl', 'teacher_loss', 'demonstration_nll', 'total_loss'):
            of_one, of_two = ([r[name] for r in metrics(run.folder)] for run in (one, two))
            assert of_two == pytest.approx(of_one, abs=1e-5)
        one, two = (
            {name: value
             for name, value in metrics(run.folder)[0].items() if name.startswith(('shadow/', 'noise/'))}
            for run in (one, two)
        )
        assert {'shadow/gspo/weights_cosine', 'noise/weights/within'} <= set(one)
        assert one == pytest.approx(two, rel=1e-3, abs=1e-7)

    @pytest.mark.algotest
    @pytest.mark.parametrize('changes', [TOKENS, AGENTS], ids=['tokens', 'agents'])
    def test_resumed_by_another_number(self, tmp_path, changes):
        of = 'think_answer_grpo', changes, 'serial_onpolicy'
        for updates, processes in ((4, 2), (7, 1), (10, 2)):
            run = Run(tmp_path, 'run', *of, updates, processes, resume_training=updates > 4)
            run.finish()
        whole = Run(tmp_path, 'whole', *of, 10, 1)
        whole.finish()
        assert distance(run.weights(10), whole.weights(10)) < 1e-6 and len(metrics(run.folder)) == 10
        assert evaluated(run.folder) == evaluated(whole.folder) == [0, 4, 8, 10]

    @pytest.mark.algotest
    @pytest.mark.parametrize('changes, kills', [(TOKENS, 20), (AGENTS, 6)], ids=['tokens', 'agents'])
    def test_kills(self, tmp_path, changes, kills):
        """Each run goes on from what the killed one left, which is whole."""
        moment = random.Random(0)
        learn = dict(resume_training=True, learner=dict(hook=dict(save_ckpt_after_iter=3)))
        changes = deep_merge_dicts(changes, dict(policy=dict(run=dict(keep_ckpt=2))))
        for kill in range(kills):
            before = len(metrics(tmp_path / 'run'))
            run = Run(tmp_path, 'run', 'think_answer_grpo', changes, 'serial_onpolicy', 10 ** 6, 2, **learn)
            run.wait(before + 4)
            time.sleep(moment.uniform(0, 1))
            died, other = run.processes[kill % 2], run.processes[1 - kill % 2]
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
        run = Torchrun(tmp_path, 'run', *THINK, 10 ** 6, 2)
        run.wait(3)
        run.process.terminate()
        code, out = run.end(60)
        assert code != 0 and 'SIGTERM: saving after update' in out
        saved = max(int(p.name.split('_')[1].split('.')[0]) for p in (run.folder / 'ckpt').glob('iteration_*'))
        assert saved == len(metrics(run.folder)) >= 3


FAILS = '''
import os
from ding_grpo.policy import GRPOPolicy
method = GRPOPolicy.{method}
def fail(self, *args, **kwargs):
    if os.environ['RANK'] == '{rank}' and self.age[1] > 4:
        raise RuntimeError('injected')
    return method(self, *args, **kwargs)
GRPOPolicy.{method} = fail
main_config.policy.eval.evaluator.eval_freq = 2
'''


@pytest.mark.parametrize('method, rank', [('_forward_learn', 1), ('_forward_eval', 0)])
def test_an_error_of_one_process_in_a_run(tmp_path, method, rank):
    """The other one waits in a call of torch's or DI-engine's."""
    status, out = Run(tmp_path, 'run', *THINK, 4, 2, FAILS.format(method=method, rank=rank)).end()
    assert status == 1
    assert out.count('RuntimeError: injected') == 1 and 'in fail\n' in out
    who = rf'(another process|process {rank} \(pid \d+\))'
    assert len(re.findall(f'{who} of this run', out)) == 1
    assert re.search(f'Error: process {1 - rank}: {who} of this run has exited, so this one exits too', out)


def test_resumed_where_one_process_alone_sees_the_checkpoints(tmp_path):
    write_config(tmp_path, 'run', 'think_answer_grpo', TOKENS, 2, resume_training=True)
    for updates in (3, 5):
        options = f'-m serial_onpolicy -c ../run_config.py -s 0 --train-iter {updates}'
        processes = connected(run_ding, options, [tmp_path / '0', tmp_path / '1'])
        (code, out), (other_code, other_out) = [process.end() for process in processes]
        assert code == other_code == 0, out + other_out  # at the end the weights of all are compared
    assert 'resuming from run/ckpt/iteration_3.pth.tar, after update 3' in out
    assert (tmp_path / '0/run/ckpt/iteration_5.pth.tar').exists() and not list(tmp_path.glob('1/**/*.pth.tar'))


def test_processes_that_do_not_share_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '2')
    code, out = Run(tmp_path, 'run', *THINK, 1, 1).end()
    assert code == 1
    assert out.strip() == 'Error: policy.multi_gpu = False: torchrun started 2 processes; must be True for ' \
        'them to share one run.'


def test_without_a_gpu(tmp_path):
    changes = deep_merge_dicts(TOKENS, dict(policy=dict(cuda=True)))
    code, out = Run(tmp_path, 'run', 'think_answer_grpo', changes, 'serial_onpolicy', 1, 2).end()
    assert code == 1 and 'ZeroDivisionError' not in out and not os.path.exists(tmp_path / 'run')
    assert out.count('Error: policy.cuda = True: torch finds no GPU on this machine; set it to False.\n') == 2
