"""Whole runs whose task scores batches, beside runs whose task scores single completions."""
import pytest
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from dizoo_llm.tasks import ThinkAnswerTask
from ding_common import TaskError, read_json_lines

from tests.pipelines.test_processes import TOKENS, Run, furthest
from tests.same import same
from tests.shipped import small
from tests.tasks import in_batches

IN_BATCHES = '''
from dizoo_llm.tasks import ThinkAnswerTask

def score_batch(self, problems, completions):
    with open('calls.txt', 'a') as f:
        f.write(f'{len(completions)} ')
    return [self.score(*row) for row in zip(problems, completions)]

ThinkAnswerTask.score_batch = score_batch
'''


def train(name, pipeline=serial_pipeline_onpolicy, config='think_answer_grpo', manager='base', updates=4, **env):
    """Weights, records of evaluations, and metrics of all updates but those of the clock."""
    main, create = small(config, env=dict(max_new_tokens=8, **env))
    main.exp_name, create.env_manager.type = name, manager
    main.policy.learn.update(learning_rate=3e-3)
    main.policy.eval.evaluator.update(eval_freq=2, max_failed=1.0)
    main.policy.collect.collector = dict(max_failed=1.0, max_replacements=3)
    policy = pipeline((main, create), seed=1, max_train_iter=updates)
    weights = {key: value.clone() for key, value in policy._model.state_dict().items()}
    metrics = read_json_lines(f'{name}/log/learner/metrics.jsonl')
    for line in metrics:
        line.pop('tokens_per_second')
    return weights, read_json_lines(f'{name}/log/evaluator/evaluations.jsonl'), metrics


@pytest.mark.envtest
class TestTraining:

    @pytest.mark.parametrize(
        'options',
        [
            dict(),
            dict(overlong_buffer=4),
            dict(manager='subprocess'),
            dict(pipeline=serial_pipeline, config='think_answer_grpo_serial'),
        ],
        ids=['onpolicy', 'overlong', 'subprocess', 'serial']
    )  # yapf: disable
    def test_equals_that_with_single_scores_to_the_last_bit(self, think_answer, monkeypatch, options):
        """All weights, evaluations and metrics, with completions of one problem that fail now and then, a part that
        does not always apply, and dynamic sampling."""
        score = ThinkAnswerTask.score

        def failing(self, problem, completion):
            if problem == self.problem(2) and len(completion) % 2:
                raise KeyError('oh')
            scored = score(self, problem, completion)
            return dict(scored, answer=None if len(completion) % 5 == 0 else len(completion) / 30)

        monkeypatch.setattr(ThinkAnswerTask, 'score', failing)
        alone = train('alone', **options)
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        together = train('together', **options)
        same(alone, together)
        assert any(line['failed'] for line in alone[2]) and len(alone[1]) == 3
        probes, *of_run = [len(completions) for _, completions in calls]  # first the demonstrations and junk
        assert probes == 15 and max(of_run) == 8

    def test_scores_matter(self, think_answer, monkeypatch):
        """Else the comparison above would say nothing."""
        weights, *_ = train('one', updates=2)
        in_batches(monkeypatch, ThinkAnswerTask)
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda self, p, c: dict(answer=len(c) / 9, format=0., solved=0.))
        assert furthest(weights, train('other', updates=2)[0]) > 0

    def test_each_of_two_processes_scores_its_share(self, tmp_path):
        runs = [Run(tmp_path, 'p1', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 3, 1)]
        runs.append(Run(tmp_path, 'p2', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 3, 2, code=IN_BATCHES))
        for run in runs:
            code, out = run.end()
            assert code == 0, out
        one, two = (run.weights(3) for run in runs)
        assert furthest(one, two) < 1e-6
        calls = (tmp_path / 'calls.txt').read_text().split()
        # three collects; evaluations, demonstrations and junk by one of them
        assert sorted(calls) == sorted(['12', '12'] * 3 + ['4'] * 2 + ['15'])

    def test_a_scorer_that_fails_ends_in_one_line(self, think_answer, monkeypatch):
        monkeypatch.setattr(ThinkAnswerTask, 'must_end', False)
        monkeypatch.setattr(ThinkAnswerTask, 'score_batch', lambda self, problems, completions: completions[:-1])
        main, create = think_answer
        with pytest.raises(TaskError) as caught:
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        assert caught.value.message == (
            '4 of 4 completions could not be scored, more than policy.eval.evaluator.max_failed = 0.1; the first: '
            'ThinkAnswerTask.score_batch returned 3 entries, must return a list of 4'
        )
