import os
from contextlib import nullcontext

import numpy as np
import pytest
from ding.entry import eval as ding_eval

from ding_common import ConfigError, TaskError
from tests.runs import evaluations, pays, rescore, train

pytestmark = pytest.mark.envtest


@pytest.mark.parametrize('number', [1, 3])
def test_each_problem_once_in_order_and_pass_at_k_of_samples_from_the_same_starts(think_answer, number, monkeypatch):
    """Right answers are those of problem 0 in each second sample: 1/8 of all, pass@2 of problem 0 is 5/6."""
    main, create = think_answer
    main.env.evaluator_env_num = number
    main.policy.eval.evaluator.update(samples_per_start=4, pass_at=[1, 2])
    asked = []

    def score(self, problem, completion):
        index = [self.problem(i).prompt for i in range(4)].index(problem.prompt)
        asked.append(index)
        return dict(answer=1., format=2., solved=float(index == 0 and asked.count(0) % 2))

    rescore(monkeypatch, score, must_end=False)
    train((main, create), 1)
    record = evaluations()[0]
    assert [c['index'] for c in record['completions']] == [0, 1, 2, 3]
    assert record['eval_episode_return'] == pytest.approx(record['solved'])  # the part, not the reward
    assert record['total_reward'] == pytest.approx(record['answer'] + 0.5 * record['format'])
    assert record['sampled_return'] == record['sampled_solved'] == record['pass_at_1']['mean'] == pytest.approx(1 / 8)
    assert record['pass_at_2']['mean'] == pytest.approx(5 / 6 / 4) and record['sampled_format'] == 2
    assert 0 < record['pass_at_1']['low'] < 1 / 8 < record['pass_at_1']['high'] < 1
    assert 1 <= record['sampled_completion_length'] <= main.env.max_new_tokens
    assert 0 <= record['sampled_truncated'] <= 1


def test_one_line_an_evaluation_the_best_one_marked_and_a_checkpoint_evaluated_again(think_answer, capsys):
    main, create = think_answer
    main.policy.eval.evaluator.eval_freq = 1
    train((main, create), 3, learning_rate=1e-9)  # the return stays what it is: only the first is the best so far
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('evaluation')]
    assert ['(best so far)' in line for line in lines] == [True, False, False, False]
    main.exp_name = 'again'
    value = ding_eval((main, create), load_path='run/ckpt/ckpt_best.pth.tar')
    assert np.mean(value) == pytest.approx(evaluations()[0]['eval_episode_return'])


def test_a_failing_task_ends_in_its_own_error(think_answer, monkeypatch):
    rescore(monkeypatch, pays(answer='x'), must_end=False)
    with pytest.raises(TaskError, match="answer = 'x'"):  # the first evaluation comes before the first collect
        train(think_answer, 1)


@pytest.mark.parametrize(
    'evaluator, message', [
        (dict(render=dict(render_freq=1)), 'render.render_freq = 1: the environment gives no pictures'),
        (dict(figure_path='figures'), "figure_path = 'figures': the environment saves no figures"),
        (dict(samples_per_start=1, pass_at=[1, 2]), r'pass_at = \[1, 2\]: needs samples_per_start of at least 2'),
    ]
)
def test_wrong_options(think_answer, evaluator, message):
    think_answer[0].policy.eval.evaluator.update(evaluator)
    with pytest.raises(ConfigError, match=message):
        train(think_answer, 1)


@pytest.mark.parametrize('most', [0.3, 0.1])
def test_what_cannot_be_scored_counts_as_0_or_stops(think_answer, monkeypatch, capsys, most):
    """Problem 2 fails, the others are worth -1; right is what is worth 0."""
    main, create = think_answer
    main.policy.eval.evaluator.update(samples_per_start=2, pass_at=[1], right_from=0.0, max_failed=most)
    main.policy.collect.collector = dict(max_failed=1.0)

    def score(self, problem, completion):
        return dict(answer=0.0, format=0.0, solved=1 / 0 if problem == self.problem(2) else -1.0)

    rescore(monkeypatch, score, must_end=False)
    message = '3 of 12 completions could not .* policy.eval.evaluator.max_failed = 0.1'
    stops = most < 0.25
    with pytest.raises(TaskError, match=message) if stops else nullcontext():
        train((main, create), 1)
    assert os.path.exists('run/ckpt/ckpt_best.pth.tar') != stops
    told = '3 of 12 completions could not be scored and count as 0; the first: Think' in capsys.readouterr().out
    record = evaluations()[0]
    assert told != stops and record['eval_episode_return'] == record['sampled_return'] == -0.75
    assert record['failed'] == record['sampled_failed'] == 0.25 and record['pass_at_1']['mean'] == 0


def test_a_task_that_always_fails_ends_the_samples_in_one_line(think_answer, monkeypatch):
    main, create = think_answer
    main.env.evaluator_env_num = 1
    main.policy.eval.evaluator.update(samples_per_start=40, max_failed=1.0)
    rescore(monkeypatch, lambda *_: 1 / 0, must_end=False)
    with pytest.raises(TaskError, match='completions in a row'):
        train((main, create), 1)
