"""A run that is stopped and resumed is the run that was not stopped, bit for bit."""
import glob
import os
import subprocess
import sys

import ding.entry
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ding_common import CheckpointError, ConfigError, read_json_lines
from dizoo_llm.tasks import ThinkAnswerTask

from tests.cases import brief
from tests.run.configs import RUNS, pipeline, tokens
from tests.runs import evaluated, evaluations, metrics, state, train
from tests.same import same

ALWAYS = ('tokens', 'curriculum', 'replay_buffer', 'stale', 'noisy', 'agents', 'memory')
SHORT = ('stale', 'noisy', 'agents', 'memory')  # whose states are complete after two updates
# resumed after it was resumed; ``tokens`` also after it was finished
STOPS = dict(tokens=[2, 4, 4, 6], reference=[2, 4, 6], replay_buffer=[2, 4, 6], **dict.fromkeys(SHORT, [2, 4]))


def logs(run):
    """All records of a run, without what is measured by the clock."""
    measured = ('seconds', 'per_second', 'memory_mib')
    return {
        log: [
            {k: v
             for k, v in record.items() if not any(m in k for m in measured)}
            for record in read_json_lines(f'{run}/log/{log}.jsonl')
        ]
        for log in ('learner/metrics', 'learner/tokens', 'evaluator/evaluations', 'collector/completions')
    }


def board(run):
    """Step and value of every scalar of TensorBoard but those of clock and memory; what was written twice, once."""
    found = {}
    for file in sorted(glob.glob(f'{run}/log/serial/events*')):
        events = EventAccumulator(file, size_guidance=dict(scalars=0)).Reload()
        for tag in events.Tags()['scalars']:
            if not any(word in tag for word in ('second', '_avg', 'time', 'per_sec', 'buffer', 'memory_mib')):
                found.setdefault(tag, {}).update({e.step: e.value for e in events.Scalars(tag)})
    return found


def load(config, path):
    config[0].policy.learn.learner.hook.load_ckpt_before_run = path


@pytest.mark.envtest
@pytest.mark.parametrize('name', brief(RUNS, ALWAYS))
def test_stopped_and_resumed_is_not_stopped(own_folder, name):
    main, create = RUNS[name]()
    main.policy.eval.evaluator.eval_freq = 2
    stops = STOPS.get(name, [4, 6])
    last = stops[-1]
    for run, ends in (('whole', [last]), ('run', stops)):
        for i, stop in enumerate(ends):
            train((main, create), stop, 3, run, pipeline(name), resume_training=i > 0)
    same(state(last, 'whole'), state(last))
    saved = state(last)
    assert len(saved['run']) >= 5 and saved['last_iter'] == last and saved['run']['seed'] == 3
    assert logs('whole') == logs('run') and len(metrics()) == last
    assert not glob.glob('run_*')  # it goes on in its folder


@pytest.mark.envtest
class TestFolder:

    def test_a_second_run_in_it_ends_in_one_line(self, own_folder):
        """Both wrote into the logs: 131 lines of metrics for 120 updates."""
        config = tokens()
        os.makedirs('run')
        hold = "import fcntl, sys; f = open('run/.lock', 'a'); fcntl.lockf(f, fcntl.LOCK_EX); " \
            "f.write('process 5 on here'); f.flush(); print(flush=True); sys.stdin.read()"
        other = subprocess.Popen([sys.executable, '-c', hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            other.stdout.readline()
            with pytest.raises(CheckpointError, match=r"exp_name = '.*run': another run \(process 5 on here\) writes"):
                train(config, 1, resume_training=True)
            assert not os.path.exists('run/log/learner/metrics.jsonl') and not os.path.exists('run/ckpt')
        finally:
            other.communicate(b'')
        train(config, 1)  # the lock ends with its process

    def test_without_a_checkpoint_the_run_begins_and_keeps_the_last_few(self, own_folder, capfd):
        hook = dict(save_ckpt_after_iter=2)
        train(tokens(dict(resume_training=True, learner=dict(hook=hook)), run=dict(keep_ckpt=2)), 7)
        assert sorted(os.listdir('run/ckpt')) == ['ckpt_best.pth.tar', 'iteration_6.pth.tar', 'iteration_7.pth.tar']
        said = capfd.readouterr().out
        assert 'no checkpoint in run/ckpt. Starting a new run' in said
        assert 'policy.run.keep_ckpt = 2: iteration_2.pth.tar was deleted, and others will be' in said
        assert said.count('was deleted') == 1


@pytest.mark.envtest
class TestFinished:
    """A run that was finished is begun again."""

    def test_ends_without_another_update(self, stopped, finished, capfd):
        train(stopped, 6, 3)
        same(state(6, finished), state(6))
        assert logs(finished) == logs('run') and os.path.exists('run/result.pkl')
        train(stopped, 7, 3)
        assert len(metrics()) == 7 and 'policy.learn.learning_rate' not in capfd.readouterr().out

    def test_with_another_learning_rate(self, stopped, capfd):
        train(stopped, 7, 3, learning_rate=5e-3)
        line = 'policy.learn.learning_rate = 0.005: the last update of the checkpoint had the rate 0.000833, and ' \
            'would have 0.00417 with this config. The run continues with 0.004\n'  # (1 - n / 30) of the rate
        assert line in capfd.readouterr().out

    def test_the_best_so_far_is_not_lost(self, stopped):
        """DI-engine's first evaluation after a resume overwrites ckpt_best even when it is worse."""
        saved = state(6)
        saved['run']['evaluator']['best'] = 0.9
        torch.save(saved, 'run/ckpt/iteration_6.pth.tar')
        before = os.stat('run/ckpt/ckpt_best.pth.tar').st_mtime_ns
        stopped[0].policy.eval.evaluator.eval_freq = 1
        train(stopped, 8, 3)
        assert max(e['eval_episode_return'] for e in evaluations()) < 0.9 and evaluated()[-2:] == [7, 8]
        assert os.stat('run/ckpt/ckpt_best.pth.tar').st_mtime_ns == before

    def test_from_an_older_checkpoint_of_its_own(self, stopped):
        """Later ones are set aside: neither resumed from, nor a reason to delete what is saved now."""
        load(stopped, 'run/ckpt/iteration_2.pth.tar')
        train(stopped, 3, 3)
        assert sorted(name for name in os.listdir('run/ckpt') if name.startswith('iteration')) == [
            'iteration_2.pth.tar', 'iteration_3.pth.tar', 'iteration_4.pth.tar.left', 'iteration_6.pth.tar.left'
        ]
        assert len(metrics()) == 3

    def test_begun_from_another_run_it_goes_on_from_its_own(self, stopped):
        load(stopped, 'run/ckpt/iteration_2.pth.tar')
        for stop in (4, 5):
            train(stopped, stop, 3, 'other')
        assert [r['train_iter'] for r in metrics('other')] == [2, 3, 4]

    def test_a_checkpoint_that_is_asked_for(self, stopped):
        """``load_ckpt_before_run`` without ``resume_training`` is DI-engine's: weights and counts, another run."""
        load(stopped, 'run/ckpt/iteration_6.pth.tar')
        train(stopped, 8, 4, 'other', resume_training=False)
        assert [r['train_iter'] for r in metrics('other')] == [6, 7]
        load(stopped, 'run/ckpt/iteration_7.pth.tar')
        with pytest.raises(ConfigError, match="load_ckpt_before_run = 'run/ckpt/iteration_7.*there is no such file"):
            train(stopped, 8, 4)

    def test_with_another_seed(self, stopped):
        with pytest.raises(ConfigError, match='seed = 4: the run of .* has seed 3'):
            train(stopped, 7, 4)

    @pytest.mark.parametrize('resumes', [True, False])
    def test_with_another_order_of_the_tokens(self, stopped, resumes):
        """Every token would mean something else. Checkpoints of older versions do not say which tokens theirs are."""
        path = 'run/ckpt/iteration_6.pth.tar'
        stopped[0].policy.learn.resume_training = resumes
        load(stopped, '' if resumes else path)
        stopped[0].env.tokenizer = dict(words=ThinkAnswerTask.words[::-1])
        with pytest.raises(ConfigError, match='env.tokenizer: its 32 tokens are not those of the checkpoint'):
            train(stopped, 7, 3)
        with pytest.raises(ConfigError, match='env.tokenizer: its 32 tokens are not those of the checkpoint'):
            ding.entry.eval(stopped, seed=3, load_path=path)  # loads it before it has an environment
        saved = state(6)
        assert len(saved.pop('vocabulary')) == 64
        torch.save(saved, path)
        train(stopped, 7, 3)

    def test_of_another_model(self, stopped, capfd):
        stopped[0].policy.model.config.intermediate_size = 72
        with pytest.raises(ConfigError, match='policy.model = .* the checkpoint is of another model .*size mismatch'):
            train(stopped, 7, 3)
        assert 'resuming from run/ckpt/iteration_6.pth.tar' in capfd.readouterr().out
