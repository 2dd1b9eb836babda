import copy
import os

import numpy as np
import pytest
from ding.entry import eval as ding_eval
from ding.entry import serial_pipeline_onpolicy

from ding_common import ConfigError, TaskError, read_json_lines


@pytest.mark.envtest
class TestGroupEvaluator:

    @pytest.mark.parametrize('number', [1, 3, 4])
    def test_record_has_each_problem_once_in_order(self, think_answer, number):
        main, create = think_answer
        main.env.evaluator_env_num = number
        serial_pipeline_onpolicy((main, create), max_train_iter=1)
        record = read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        assert [c['index'] for c in record['completions']] == [0, 1, 2, 3]
        assert record['eval_episode_return'] == pytest.approx(record['answer'])  # the part, not the reward
        assert record['total_reward'] == pytest.approx(record['answer'] + 0.5 * record['format'])

    def test_one_line_an_evaluation_and_the_best_one_marked(self, think_answer, capsys):
        main, create = think_answer
        main.policy.eval.evaluator.eval_freq = 1
        main.policy.learn.learning_rate = 1e-9  # the return stays what it is: only the first is the best so far
        serial_pipeline_onpolicy((main, create), max_train_iter=3)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('evaluation')]
        assert ['(best so far)' in line for line in lines] == [True, False, False, False]

    def test_evaluation_of_a_checkpoint(self, think_answer):
        main, create = think_answer
        serial_pipeline_onpolicy((copy.deepcopy(main), copy.deepcopy(create)), max_train_iter=1)
        trained = read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        main.exp_name = 'again'
        value = ding_eval((main, create), load_path='run/ckpt/ckpt_best.pth.tar')
        assert np.mean(value) == pytest.approx(trained['eval_episode_return'])

    def test_failing_task_ends_in_its_own_error(self, think_answer, monkeypatch):
        from dizoo_llm.tasks import ThinkAnswerTask
        monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: dict(answer='x', format=0, solved=0))
        with pytest.raises(TaskError, match="answer = 'x'"):  # the first evaluation comes before the first collect
            serial_pipeline_onpolicy(think_answer, max_train_iter=1)

    @pytest.mark.parametrize(
        'evaluator, message', [
            (dict(render=dict(render_freq=1)), 'render.render_freq = 1: the environment gives no pictures'),
            (dict(figure_path='figures'), "figure_path = 'figures': the environment saves no figures"),
        ]
    )
    def test_pictures_that_an_environment_cannot_give(self, think_answer, evaluator, message):
        main, create = think_answer
        main.policy.eval.evaluator.update(evaluator)
        with pytest.raises(ConfigError, match=f'policy.eval.evaluator.{message}'):
            serial_pipeline_onpolicy((main, create), max_train_iter=1)

    @pytest.mark.parametrize('number', [1, 3, 4])
    def test_pass_at_k_of_samples_from_the_same_starts(self, think_answer, number, monkeypatch):
        """Right answers are those of problem 0 in each second sample: 1/8 of all, pass@2 of problem 0 is 5/6."""
        from dizoo_llm.tasks import ThinkAnswerTask
        main, create = think_answer
        main.env.evaluator_env_num = number
        main.policy.eval.evaluator.update(samples_per_start=4, pass_at=[1, 2])
        asked = []

        def score(self, problem, completion):
            index = [self.problem(i).prompt for i in range(4)].index(problem.prompt)
            asked.append(index)
            return dict(answer=0., format=0., solved=float(index == 0 and asked.count(0) % 2))

        monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
        monkeypatch.setattr(ThinkAnswerTask, 'score', score)
        serial_pipeline_onpolicy((main, create), max_train_iter=1)
        record = read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        assert record['sampled_return'] == pytest.approx(1 / 8)
        assert record['pass_at_1']['mean'] == pytest.approx(1 / 8)
        assert record['pass_at_2']['mean'] == pytest.approx(5 / 6 / 4)
        assert 0 < record['pass_at_1']['low'] < 1 / 8 < record['pass_at_1']['high'] < 1
        assert record['sampled_solved'] == pytest.approx(1 / 8) and record['sampled_format'] == 0
        assert 1 <= record['sampled_completion_length'] <= main.env.max_new_tokens and 0 <= record['sampled_truncated'
                                                                                                   ] <= 1

    @pytest.mark.parametrize('most', [0.3, 0.1])
    def test_what_cannot_be_scored_counts_as_0_or_stops(self, think_answer, monkeypatch, capsys, most):
        """Problem 2 fails, the others are worth -1; right is what is worth 0."""
        from dizoo_llm.tasks import ThinkAnswerTask
        main, create = think_answer
        main.policy.eval.evaluator.update(samples_per_start=2, pass_at=[1], right_from=0.0, max_failed=most)
        main.policy.collect.collector = dict(max_failed=1.0)

        def score(self, problem, completion):
            return dict(answer=0.0, format=0.0, solved=1 / 0 if problem == self.problem(2) else -1.0)

        monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
        monkeypatch.setattr(ThinkAnswerTask, 'score', score)
        if most < 0.25:
            with pytest.raises(TaskError,
                               match='3 of 12 completions could not .* policy.eval.evaluator.max_failed = 0.1'):
                serial_pipeline_onpolicy((main, create), max_train_iter=1)
            assert not os.path.exists('run/ckpt/ckpt_best.pth.tar')
        else:
            serial_pipeline_onpolicy((main, create), max_train_iter=1)
            assert '3 of 12 completions could not be scored and count as 0; the first: Think' in capsys.readouterr().out
            assert os.path.exists('run/ckpt/ckpt_best.pth.tar')
        record = read_json_lines('run/log/evaluator/evaluations.jsonl')[0]
        assert record['eval_episode_return'] == record['sampled_return'] == -0.75
        assert record['failed'] == record['sampled_failed'] == 0.25 and record['pass_at_1']['mean'] == 0

    def test_a_task_that_always_fails_ends_the_samples_in_one_line(self, think_answer, monkeypatch):
        from dizoo_llm.tasks import ThinkAnswerTask
        main, create = think_answer
        main.env.update(evaluator_env_num=1, n_evaluator_episode=4)
        main.policy.eval.evaluator.update(samples_per_start=40, max_failed=1.0)
        monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: dict(answer=1 / 0, format=0.0, solved=0.0))
        with pytest.raises(TaskError, match='completions in a row'):
            serial_pipeline_onpolicy((main, create), max_train_iter=1)

    def test_more_samples_are_needed(self, think_answer):
        main, create = think_answer
        main.policy.eval.evaluator.update(samples_per_start=1, pass_at=[1, 2])
        with pytest.raises(ConfigError, match=r'pass_at = \[1, 2\]: needs samples_per_start of at least 2'):
            serial_pipeline_onpolicy((main, create), max_train_iter=1)
