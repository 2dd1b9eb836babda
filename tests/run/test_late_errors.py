"""A run that an error ends late has saved what it had learned, and resumes as if it had been stopped there."""
import os
import subprocess
import sys

import pytest
import torch

from ding_common import NumericError, TaskError
from ding_grpo.collect.group_player import GroupPlayer
from ding_grpo.learn.learning import Learning
from ding_grpo.learn.update import Updater
from ding_grpo.policy import GRPOPolicy
from dizoo_llm.tasks.think_answer import ThinkAnswerTask
from tests.run.test_resume import buffer, dynamic, stale, state, timeless, tokens
from tests.same import same


@pytest.fixture
def broken(monkeypatch):
    """The scorer raises from update ``at`` on."""
    found, score, learn = dict(at=None, updates=0), ThinkAnswerTask.score, GRPOPolicy._forward_learn

    def score_or_fail(self, problem, completion):
        if found['at'] is not None and found['updates'] >= found['at']:
            raise ValueError('injected')
        return score(self, problem, completion)

    def count(self, data):
        metrics = learn(self, data)
        found['updates'] += 1
        return metrics

    monkeypatch.setattr(ThinkAnswerTask, 'score', score_or_fail)
    monkeypatch.setattr(GRPOPolicy, '_forward_learn', count)
    return found


def start(make, think_answer):
    pipeline, main, create = make(think_answer)
    main.policy.eval.evaluator.eval_freq = 4
    main.env.stop_value = 1e9
    return lambda stop: pipeline((main, create), seed=3, max_train_iter=stop), main


def compare(run, main, number):
    """Resume, and compare with a run that no error ended."""
    main.policy.learn.resume_training = True
    run(number)
    main.policy.learn.resume_training, main.exp_name = False, 'whole'
    run(number)
    same(state(number, 'whole'), state(number))
    for log in ('learner/metrics', 'evaluator/evaluations', 'collector/completions'):
        assert timeless(f'whole/log/{log}.jsonl') == timeless(f'run/log/{log}.jsonl'), log


@pytest.mark.envtest
class TestLateErrors:

    @pytest.mark.parametrize(
        'make, at, where',
        [(tokens, 3, 'collector'), (tokens, 4, 'evaluator'), (dynamic, 3, 'collector'), (buffer, 2, 'collector')]
    )
    def test_of_the_task_saves_first(self, think_answer, broken, capfd, make, at, where):
        run, main = start(make, think_answer)
        main.env.evaluator_env_num = main.env.n_evaluator_episode = 4
        broken['at'] = at
        with pytest.raises(TaskError, match=f'{where}.max_failed') as caught:
            run(8)
        assert str(caught.value) == caught.value.message  # without marks
        saved, = [name for name in os.listdir('run/ckpt') if name.startswith('iteration')]
        number = int(saved.split('_')[1].split('.')[0])
        said = f'saved after update {number}, from where policy.learn.resume_training=True continues'
        assert number >= at and said in capfd.readouterr().out
        broken['at'] = None
        compare(run, main, 8)

    def test_of_sampling_ahead_saves_first(self, think_answer, broken):
        run, main = start(stale, think_answer)
        parent, score = os.getpid(), ThinkAnswerTask.score

        def fail(self, problem, completion):
            if os.getpid() != parent:
                raise ValueError('injected')
            return score(self, problem, completion)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ThinkAnswerTask, 'score', fail)
            with pytest.raises(TaskError, match='ValueError: injected'):
                run(8)
        assert os.path.exists('run/ckpt/iteration_1.pth.tar')
        main.policy.learn.resume_training = True
        run(4)
        assert os.path.exists('run/ckpt/iteration_4.pth.tar')

    def test_of_sampling_ahead_of_the_end_saves_first(self, think_answer):
        run, main = start(stale, think_answer)
        parent, play = os.getpid(), GroupPlayer.play

        def fail(self, *args, **kwargs):
            if os.getpid() != parent:
                raise KeyError('injected')
            return play(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupPlayer, 'play', fail)
            with pytest.raises(KeyError, match='injected'):
                run(1)
        assert 'ahead' not in state(1)['run']['collector']
        main.policy.learn.resume_training = True
        run(2)
        assert 'ahead' in state(2)['run']['collector']

    @pytest.mark.parametrize('make, nth, saved', [(tokens, 1, True), (tokens, 2, False), (buffer, 1, False)])
    def test_of_an_update_saves_unless_half_of_it_is_done(self, think_answer, monkeypatch, make, nth, saved):
        """The buffer already has the groups of the update that failed."""
        run, main = start(make, think_answer)  # four optimizer steps in an update
        step, calls = Updater.step, []

        def step_or_fail(self, mini_batch):
            calls.append(mini_batch)
            if len(calls) == 12 + nth:
                raise RuntimeError('injected')
            return step(self, mini_batch)

        monkeypatch.setattr(Updater, 'step', step_or_fail)
        with pytest.raises(RuntimeError, match='injected'):
            run(8)
        assert os.path.exists('run/ckpt/iteration_3.pth.tar') == saved
        if saved:
            compare(run, main, 6)

    def test_of_bad_updates_leaves_their_number_as_it_was(self, think_answer, monkeypatch):
        """A resumed run would have passed the limit, and skipped every update in silence."""
        run, _ = start(tokens, think_answer)
        learn = Learning._learn

        def fail(self, *args):
            if self.updates == 3:
                self.updater.bad_updates.in_a_row = 9
                raise NumericError('injected')
            return learn(self, *args)

        monkeypatch.setattr(Learning, '_learn', fail)
        with pytest.raises(NumericError, match='injected'):
            run(8)
        assert state(3)['bad_updates'] == 0

    def test_before_anything_is_learned_saves_nothing(self, think_answer, broken):
        run, _ = start(tokens, think_answer)
        broken['at'] = 0
        with pytest.raises(TaskError) as caught:  # its traceback keeps the parts of the run
            run(8)
        assert not os.path.exists('run/ckpt/iteration_0.pth.tar')
        lock = "import fcntl; fcntl.lockf(open('run/.lock', 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        assert subprocess.run([sys.executable, '-c', lock]).returncode == 0 and caught.value  # the folder is free

    def test_while_it_saves_does_not_hide_the_error(self, think_answer, broken, monkeypatch, capfd):
        run, _ = start(tokens, think_answer)
        broken['at'] = 3

        save = torch.save

        def full(state, file):
            if 'iteration_3' in file.name:
                raise OSError(28, 'No space left on device')
            save(state, file)

        monkeypatch.setattr(torch, 'save', full)
        with pytest.raises(TaskError, match='collector.max_failed'):
            run(8)
        assert 'could not be saved after update 3' in capfd.readouterr().out
