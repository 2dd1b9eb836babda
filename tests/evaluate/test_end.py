"""The evaluation at the end of a run: the last weights are evaluated, once."""
import glob
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from ding_grpo.evaluate import GroupEvaluator
from tests.runs import FOREVER, each_update, evaluated, evaluations, metrics, rescore, result, state, train
from tests.same import same
from tests.shipped import small

pytestmark = pytest.mark.envtest


@pytest.fixture
def at_evaluation(monkeypatch):
    """Call a function with the number of updates before each evaluation."""
    evaluate = GroupEvaluator.eval

    def replace(function):

        def called(self, save_ckpt_fn, train_iter, *args):
            function(train_iter)
            return evaluate(self, save_ckpt_fn, train_iter, *args)

        monkeypatch.setattr(GroupEvaluator, 'eval', called)

    return replace


@pytest.fixture
def returns(at_evaluation, monkeypatch):
    """Evaluated return by update, 0 where it is not given; ``asked`` lists the updates that were evaluated."""
    values = dict(asked=[])
    at_evaluation(values['asked'].append)

    def score(*_):
        solved = values.get(values['asked'][-1], 0.) if values['asked'] else 0.
        return dict(answer=0., format=2. * solved, solved=solved)

    rescore(monkeypatch, score, must_end=False)
    return values


@pytest.fixture
def run(think_answer):
    """Run to each number of updates in turn, with an evaluation after every fourth: (updates, name, changes)."""
    main, create = think_answer
    main.policy.eval.evaluator.eval_freq = 4

    def to(*stops, name='run', resumes=False, **changes):
        main.env.update(changes)
        for i, stop in enumerate(stops):
            train((main, create), stop, 3, name, resume_training=resumes or i > 0)

    return to


def best(run='run'):
    return state('best', run)['last_iter']


class TestWhatIsEvaluated:

    def test_after_the_last_update(self, run, capfd):
        run(6)
        assert evaluated() == [0, 4, 6] and evaluations()[-1]['envstep'] == metrics()[-1]['envstep']
        assert 'evaluation  update 6  return' in capfd.readouterr().out

    def test_at_the_limit_of_environment_steps(self, think_answer):
        serial_pipeline_onpolicy(think_answer, seed=3, max_env_step=200)
        assert evaluated() == [0, len(metrics())]

    def test_with_a_replay_buffer(self, think_answer):
        policy = dict(other=dict(replay_buffer=dict(replay_buffer_size=8, max_use=3)))
        configs = small('think_answer_grpo_serial', policy=policy)
        train(configs, 3, pipeline=serial_pipeline, update_per_collect=1, batch_groups=2)
        assert evaluated() == [0, 3]

    @pytest.mark.parametrize(
        'env, part, value, told', [
            (dict(stop_value=1.), 'solved', 1., "env.stop_value = 1 reached by 'solved' = 1 at update 4\n"),
            (dict(stop_value=9.), 'solved', 1., None),
            (
                dict(stop_value=1.), None, 1.5, 'env.stop_value = 1 reached by the reward of all parts '
                '(answer, format, solved; env.return_part names one) = 1.5 at update 4\n'
            ),
        ]
    )
    def test_a_solved_run_says_why_and_is_not_evaluated_again(
        self, run, returns, monkeypatch, capfd, env, part, value, told
    ):
        rescore(monkeypatch, return_part=part)
        returns.update({4: 1.})
        run(8, **env)
        out = capfd.readouterr().out
        assert told in out if told else 'stop_value' not in out
        assert returns['asked'] == evaluated() == ([0, 4] if told else [0, 4, 8]) and result()['stop'] == bool(told)
        assert evaluations()[1]['eval_episode_return'] == value and best() == 4

    @pytest.mark.parametrize('stop', [20, 3])
    def test_a_run_stopped_by_a_signal_is_not(self, run, monkeypatch, stop):
        """Even if the signal arrives in the last update."""
        each_update(monkeypatch, lambda number, *_: number == 2 and os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)) if stop > 3 else nullcontext():
            run(stop)
        assert evaluated() == [0] and state(3)['last_iter'] == len(metrics()) == 3
        run(3, resumes=True)
        assert evaluated() == [0, 3] and len(metrics()) == 3

    def test_a_signal_during_it_ends_nothing_halfway(self, run, at_evaluation):
        before = signal.getsignal(signal.SIGTERM)
        at_evaluation(lambda update: update == 3 and os.kill(os.getpid(), signal.SIGTERM))
        run(3)
        assert evaluated() == [0, 3] and os.path.exists('run/model/last/model.safetensors')
        assert signal.getsignal(signal.SIGTERM) is before

    def test_the_config_may_name_the_number_of_updates(self, run, think_answer):
        for name, number, resumes in (('run', 3, False), ('run', 5, True), ('whole', 5, False)):
            think_answer[0].policy.run = dict(num_updates=number)
            run(FOREVER, name=name, resumes=resumes)
            assert len(metrics(name)) == number
        assert evaluated() == evaluated('whole') == [0, 4, 5]
        same(state(5), state(5, 'whole'))
        run(2, name='fewer')
        assert evaluated('fewer') == [0, 2]


class TestWhatItLeaves:

    @pytest.mark.parametrize('values, number, value', [({0: 0.1, 4: 0.2, 6: 0.9}, 6, 0.9), ({4: 0.2}, 4, 0.)])
    def test_a_new_best_or_none(self, run, returns, values, number, value):
        returns.update(values)
        run(6)
        assert best() == number and len(glob.glob('run/ckpt/*.before_end')) == (number == 6)  # to resume from
        assert result()['eval_value'] == pytest.approx(value) and result()['train_iter'] == 6

    def test_random_generators_stay_as_they_were(self, run, at_evaluation):
        states = []
        at_evaluation(lambda update: (states.append(torch.get_rng_state()), torch.rand(5)))
        run(1)
        assert torch.equal(states[-1], torch.get_rng_state())


class TestResume:

    def test_the_end_of_a_run_that_goes_on_leaves_nothing(self, run, returns):
        returns.update({0: 0.1, 4: 0.2, 6: 0.9})
        run(6)
        assert best() == 6
        run(12, name='whole')
        run(12, resumes=True)
        assert evaluated() == evaluated('whole') == [0, 4, 8, 12] and best() == best('whole') == 4
        assert {*os.listdir('run/ckpt')} - {*os.listdir('whole/ckpt')} == {'iteration_6.pth.tar'}
        assert len(glob.glob('run/log/serial/*.end')) == 1

    def test_a_finished_run_is_not_evaluated_again(self, run, returns):
        returns.update({6: 0.9})
        run(6, 6, 6)
        assert returns['asked'] == [0, 4, 6] and evaluated() == [0, 4, 6]
        assert best() == 6 and result()['eval_value'] == pytest.approx(0.9)
        run(8, resumes=True)  # and not finished
        assert returns['asked'] == [0, 4, 6, 8] and evaluated() == [0, 4, 8] and best() == 0

    def test_a_run_that_ended_in_its_last_evaluation(self, run, at_evaluation):
        """Its updates are saved, so the evaluation alone is made up for."""
        at_evaluation(lambda update: 1 / (update - 3))
        with pytest.raises(ZeroDivisionError):
            run(3)
        assert evaluated() == [0] and not os.path.exists('run/result.pkl')
        at_evaluation(lambda update: None)
        run(3, resumes=True)
        assert evaluated() == [0, 3] and len(metrics()) == 3
        assert result()['eval_value'] == evaluations()[-1]['eval_episode_return']
