"""The evaluation at the end of a run: the last weights are evaluated, once."""
import glob
import os
import pickle
import signal
from contextlib import nullcontext

import pytest
import torch
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from ding_common import read_json_lines
from ding_grpo.evaluate import GroupEvaluator
from dizoo_llm.tasks import ThinkAnswerTask
from tests.same import same
from tests.shipped import small

BUFFER = dict(
    policy=dict(
        learn=dict(update_per_collect=1, batch_size=2),
        other=dict(replay_buffer=dict(replay_buffer_size=8, max_use=3)),
    )
)


def evaluated(run='run'):
    return [e['train_iter'] for e in read_json_lines(f'{run}/log/evaluator/evaluations.jsonl')]


def result(run='run'):
    with open(f'{run}/result.pkl', 'rb') as f:
        return pickle.load(f)


def best(run='run'):
    return torch.load(f'{run}/ckpt/ckpt_best.pth.tar', weights_only=True)['last_iter']


@pytest.fixture
def returns(think_answer, monkeypatch):
    """Evaluated return by update, 0 where it is not given; ``asked`` lists the updates that were evaluated."""
    values, now = {}, [0]
    values['asked'] = []

    def seed_starts(self, train_iter):
        values['asked'].append(train_iter)
        now[0] = values.get(train_iter, 0.)

    monkeypatch.setattr(GroupEvaluator, '_seed_starts', seed_starts)
    monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
    monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: dict(answer=0., format=0., solved=now[0]))
    return values


def run(configs, *stops, name='run', eval_freq=4, **limits):
    """Run up to each of ``stops`` in turn."""
    main, create = configs
    main.exp_name, main.policy.eval.evaluator.eval_freq = name, eval_freq
    for i, stop in enumerate(stops):
        main.policy.learn.resume_training = i > 0
        serial_pipeline_onpolicy((main, create), seed=3, max_train_iter=stop)


@pytest.mark.envtest
class TestWhatIsEvaluated:

    @pytest.mark.parametrize('stop, updates', [(6, [0, 4, 6]), (8, [0, 4, 8]), (1, [0, 1])])
    def test_after_the_last_update(self, think_answer, capfd, stop, updates):
        run(think_answer, stop)
        assert evaluated() == updates
        assert f'evaluation  update {stop}  return' in capfd.readouterr().out
        last = read_json_lines('run/log/evaluator/evaluations.jsonl')[-1]
        metrics = read_json_lines('run/log/learner/metrics.jsonl')
        assert last['envstep'] == metrics[-1]['envstep']

    def test_at_the_limit_of_environment_steps(self, think_answer):
        serial_pipeline_onpolicy(think_answer, seed=3, max_env_step=200)
        assert evaluated() == [0, len(read_json_lines('run/log/learner/metrics.jsonl'))]

    def test_with_a_replay_buffer(self, think_answer):
        serial_pipeline(small('think_answer_grpo_serial', **BUFFER), seed=3, max_train_iter=3)
        assert evaluated() == [0, 3]

    @pytest.mark.parametrize('name', ['cartpole_ppo', 'pendulum_ppo'])
    def test_of_di_engines_ppo(self, think_answer, name):
        changes = dict(policy=dict(collect=dict(n_sample=64), learn=dict(epoch_per_collect=1, batch_size=32)))
        serial_pipeline_onpolicy(small(name, **changes), seed=3, max_train_iter=4)
        assert evaluated() == [0, 4]

    def test_a_solved_run_is_not_evaluated_again(self, think_answer, returns):
        returns.update({4: 1.})
        think_answer[0].env.stop_value = 1.
        run(think_answer, 20)
        assert returns['asked'] == evaluated() == [0, 4] and result()['stop']

    @pytest.mark.parametrize(
        'env, value, told', [
            (dict(stop_value=1.), 1., "env.stop_value = 1 reached by 'solved' = 1 at update 4\n"),
            (dict(stop_value=1., return_part='format'), 2., "env.stop_value = 1 reached by 'format' = 2 at update 4\n"),
            (dict(stop_value=9.), 1., None),
            (
                dict(stop_value=1.), 1.5, 'env.stop_value = 1 reached by the reward of all parts '
                '(answer, format, solved; env.return_part names one) = 1.5 at update 4\n'
            ),
        ]
    )
    def test_the_end_says_why(self, think_answer, returns, monkeypatch, capfd, env, value, told):
        parts = ThinkAnswerTask.score

        def score(*args):
            return dict(parts(*args), format=2. * parts(*args)['solved'])

        monkeypatch.setattr(ThinkAnswerTask, 'score', score)
        if told and 'all parts' in told:
            monkeypatch.setattr(ThinkAnswerTask, 'return_part', None)
        returns.update({4: 1.})
        think_answer[0].env.update(env)
        run(think_answer, 8)
        out = capfd.readouterr().out
        assert told in out if told else 'stop_value' not in out
        assert [e['eval_episode_return'] for e in read_json_lines('run/log/evaluator/evaluations.jsonl')][1] == value
        assert best() == 4

    @pytest.mark.parametrize('stop', [20, 3])
    def test_a_run_stopped_by_a_signal_is_not(self, think_answer, monkeypatch, stop):
        """Even if the signal arrives in the last update."""
        from ding_grpo.policy import GRPOPolicy
        forward = GRPOPolicy._forward_learn

        def interrupted(self, data):
            if self._learning.updates == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return forward(self, data)

        monkeypatch.setattr(GRPOPolicy, '_forward_learn', interrupted)
        with pytest.raises(SystemExit) if stop > 3 else nullcontext():
            run(think_answer, stop)
        assert evaluated() == [0] and os.path.exists('run/ckpt/iteration_3.pth.tar')
        think_answer[0].policy.learn.resume_training = True
        serial_pipeline_onpolicy(think_answer, seed=3, max_train_iter=3)
        assert evaluated() == [0, 3] and len(read_json_lines('run/log/learner/metrics.jsonl')) == 3

    def test_a_signal_during_it_ends_nothing_halfway(self, think_answer, monkeypatch):
        seed_starts, before = GroupEvaluator._seed_starts, signal.getsignal(signal.SIGTERM)

        def interrupted(self, train_iter):
            if train_iter == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            seed_starts(self, train_iter)

        monkeypatch.setattr(GroupEvaluator, '_seed_starts', interrupted)
        run(think_answer, 3)
        assert evaluated() == [0, 3] and os.path.exists('run/model/last/model.safetensors')
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.envtest
class TestWhatItLeaves:

    def test_a_new_best(self, think_answer, returns):
        returns.update({0: 0.1, 4: 0.2, 6: 0.9})
        run(think_answer, 6)
        assert best() == 6 and result()['eval_value'] == pytest.approx(0.9) and result()['train_iter'] == 6

    def test_no_new_best(self, think_answer, returns):
        returns.update({4: 0.2})
        run(think_answer, 6)
        assert best() == 4 and result()['eval_value'] == 0 and not glob.glob('run/ckpt/*.before_end')

    def test_random_generators_stay_as_they_were(self, think_answer, monkeypatch):
        states = []
        evaluate_end = GroupEvaluator.evaluate_end

        def noted(self, *args):
            states.append(torch.get_rng_state())
            torch.rand(5)
            evaluate_end(self, *args)

        monkeypatch.setattr(GroupEvaluator, 'evaluate_end', noted)
        run(think_answer, 1)
        assert torch.equal(states[0], torch.get_rng_state())


@pytest.mark.envtest
class TestResume:

    def test_the_end_of_a_run_that_goes_on_leaves_nothing(self, think_answer, returns):
        returns.update({0: 0.1, 4: 0.2, 6: 0.9})
        run(think_answer, 6)
        assert best() == 6
        run(think_answer, 12, name='whole')
        think_answer[0].policy.learn.resume_training = True
        think_answer[0].exp_name = 'run'
        serial_pipeline_onpolicy(think_answer, seed=3, max_train_iter=12)
        assert evaluated() == evaluated('whole') == [0, 4, 8, 12]
        assert best() == best('whole') == 4
        assert {*os.listdir('run/ckpt')} - {*os.listdir('whole/ckpt')} == {'iteration_6.pth.tar'}
        assert len(glob.glob('run/log/serial/*.end')) == 1

    def test_a_finished_run_is_not_evaluated_again(self, think_answer, returns):
        returns.update({6: 0.9})
        run(think_answer, 6, 6, 6)
        assert returns['asked'] == [0, 4, 6] and evaluated() == [0, 4, 6]
        assert best() == 6 and result()['eval_value'] == pytest.approx(0.9)
        serial_pipeline_onpolicy(think_answer, seed=3, max_train_iter=8)  # resumed and not finished
        assert returns['asked'] == [0, 4, 6, 8] and evaluated() == [0, 4, 8] and best() == 0

    def test_a_run_that_ended_in_its_last_evaluation(self, think_answer, monkeypatch):
        """Its updates are saved, so the evaluation alone is made up for."""
        seed_starts = GroupEvaluator._seed_starts

        def killed(self, train_iter):
            if train_iter == 3:
                raise ZeroDivisionError
            seed_starts(self, train_iter)

        with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
            patched.setattr(GroupEvaluator, '_seed_starts', killed)
            run(think_answer, 3)
        assert evaluated() == [0] and not os.path.exists('run/result.pkl')
        think_answer[0].policy.learn.resume_training = True
        serial_pipeline_onpolicy(think_answer, seed=3, max_train_iter=3)
        assert evaluated() == [0, 3] and len(read_json_lines('run/log/learner/metrics.jsonl')) == 3
        assert result()['eval_value'] == read_json_lines('run/log/evaluator/evaluations.jsonl'
                                                         )[-1]['eval_episode_return']


@pytest.mark.envtest
def test_the_config_names_the_number_of_updates(think_answer):
    main, create = think_answer
    main.policy.learn.num_updates = 3
    serial_pipeline_onpolicy((main, create), seed=3)
    assert evaluated() == [0, 3] and len(read_json_lines('run/log/learner/metrics.jsonl')) == 3
    main.policy.learn.update(num_updates=5, resume_training=True)
    serial_pipeline_onpolicy((main, create), seed=3)
    main.policy.learn.update(resume_training=False)
    main.exp_name = 'whole'
    serial_pipeline_onpolicy((main, create), seed=3)
    assert evaluated() == evaluated('whole') == [0, 5]
    same(*(torch.load(f'{run}/ckpt/iteration_5.pth.tar', weights_only=True) for run in ('run', 'whole')))
    main.exp_name = 'fewer'
    serial_pipeline_onpolicy((main, create), seed=3, max_train_iter=2)
    assert evaluated('fewer') == [0, 2]
