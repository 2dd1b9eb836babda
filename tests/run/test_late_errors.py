"""A run that an error ends late has saved what it had learned, and resumes as if it had been stopped there."""
import os
import subprocess
import sys

import pytest

from ding_common import NumericError, TaskError
from ding_grpo.collect.group_player import GroupPlayer
from ding_grpo.learn.update import Updater
from tests.cases import long
from tests.run.configs import RUNS, pipeline
from tests.run.test_resume import logs
from tests.runs import each_update, rescore, state, train
from tests.same import same


@pytest.fixture
def broken(monkeypatch):
    """The scorer raises from update ``at`` on."""
    found = dict(at=None, updates=0)

    def score_or_fail(self, problem, completion):
        if found['at'] is not None and found['updates'] >= found['at']:
            raise ValueError('injected')
        return score(self, problem, completion)

    score = rescore(monkeypatch, score_or_fail)
    each_update(monkeypatch, after=lambda number, *_: found.update(updates=number + 1))
    return found


@pytest.fixture
def start(own_folder):
    """Begin a run, or resume it: (name, updates)."""

    def begin(name, updates, run='run', **learn):
        main, create = RUNS[name]()
        main.policy.eval.evaluator.eval_freq = 4
        train((main, create), updates, 3, run, pipeline(name), **learn)

    return begin


def compare(start, name, updates):
    """Resume, and compare with a run that no error ended."""
    start(name, updates, resume_training=True)
    start(name, updates, 'whole')
    same(state(updates, 'whole'), state(updates))
    assert logs('whole') == logs('run')


def of_other_processes(function, error):
    """The function, which raises in processes that this one starts."""
    parent = os.getpid()

    def fail(*args, **kwargs):
        if os.getpid() != parent:
            raise error
        return function(*args, **kwargs)

    return fail


@pytest.mark.envtest
class TestLateErrors:

    @pytest.mark.parametrize(
        'name, at, where', [
            long('tokens', 3, 'collector'),
            ('tokens', 4, 'evaluator'),
            ('replay_buffer', 2, 'collector'),
        ]
    )
    def test_of_the_task_saves_first(self, start, broken, capfd, name, at, where):
        broken['at'] = at
        with pytest.raises(TaskError, match=f'{where}.max_failed') as caught:
            start(name, 6)
        assert str(caught.value) == caught.value.message  # without marks
        saved, = [name for name in os.listdir('run/ckpt') if name.startswith('iteration')]
        number = int(saved.split('_')[1].split('.')[0])
        said = f'saved after update {number}, from where policy.learn.resume_training=True continues'
        assert number >= at and said in capfd.readouterr().out
        broken['at'] = None
        compare(start, name, 6)

    def test_of_sampling_ahead_saves_first(self, start, monkeypatch):
        with monkeypatch.context() as patch:
            score = rescore(patch)
            rescore(patch, of_other_processes(score, ValueError('injected')))
            with pytest.raises(TaskError, match='ValueError: injected'):
                start('stale', 8)
        assert os.path.exists('run/ckpt/iteration_1.pth.tar')
        with monkeypatch.context() as patch:
            patch.setattr(GroupPlayer, 'play', of_other_processes(GroupPlayer.play, KeyError('injected')))
            with pytest.raises(KeyError, match='injected'):
                start('stale', 1, 'end')
        assert 'ahead' not in state(1, 'end')['run']['collector']
        for run in ('run', 'end'):
            start('stale', 3, run, resume_training=True)
            assert 'ahead' in state(3, run)['run']['collector']

    @pytest.mark.parametrize(
        'name, nth, saved', [('tokens', 1, True), ('tokens', 2, False), ('replay_buffer', 1, False)]
    )
    def test_of_an_update_saves_unless_half_of_it_is_done(self, start, monkeypatch, name, nth, saved):
        """The buffer already has the groups of the update that failed."""
        step, calls = Updater.step, []  # four optimizer steps in an update

        def step_or_fail(self, mini_batch):
            calls.append(mini_batch)
            if len(calls) == 12 + nth:
                raise RuntimeError('injected')
            return step(self, mini_batch)

        monkeypatch.setattr(Updater, 'step', step_or_fail)
        with pytest.raises(RuntimeError, match='injected'):
            start(name, 8)
        assert os.path.exists('run/ckpt/iteration_3.pth.tar') == saved
        if saved:
            compare(start, name, 6)

    def test_of_bad_updates_leaves_their_number_as_it_was(self, start, monkeypatch):
        """A resumed run would have passed the limit, and skipped every update in silence."""

        def spoil(number, policy, data):
            for sample in data if number == 3 else []:
                sample['logp_old'][:] = float('nan')

        each_update(monkeypatch, spoil)
        with pytest.raises(NumericError, match='max_bad_updates = 1'):
            start('tokens', 8, max_bad_updates=1)
        assert state(3)['bad_updates'] == 0

    def test_before_anything_is_learned_saves_nothing(self, start, broken):
        broken['at'] = 0
        with pytest.raises(TaskError) as caught:  # its traceback keeps the parts of the run
            start('tokens', 8)
        assert not os.path.exists('run/ckpt/iteration_0.pth.tar')
        lock = "import fcntl; fcntl.lockf(open('run/.lock', 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        assert subprocess.run([sys.executable, '-c', lock]).returncode == 0 and caught.value  # the folder is free

    def test_while_it_saves_does_not_hide_the_error(self, start, broken, monkeypatch, capfd):
        broken['at'] = 3

        def fill(number, *_):
            if number == 2:
                os.makedirs('run/ckpt', exist_ok=True)
                os.symlink('/dev/full', 'run/ckpt/iteration_3.pth.tar.tmp')

        each_update(monkeypatch, after=fill)
        with pytest.raises(TaskError, match='collector.max_failed'):
            start('tokens', 8)
        assert 'could not be saved after update 3' in capfd.readouterr().out
