"""Whole runs whose task scores batches, beside runs whose task scores single completions."""
import pytest
from ding.entry import serial_pipeline, serial_pipeline_onpolicy

from dizoo_llm.tasks import Task, ThinkAnswerTask
from tests.cases import long
from tests.pipelines.test_processes import TOKENS, Run
from tests.runs import distance, evaluations, metrics, rescore, train, weights
from tests.same import same
from tests.shipped import small
from tests.tasks import in_batches

pytestmark = pytest.mark.envtest
IN_BATCHES = '''
from dizoo_llm.tasks import ThinkAnswerTask

def score_batch(self, problems, completions):
    with open('calls.txt', 'a') as f:
        f.write(f'{len(completions)} ')
    return [self.score(*row) for row in zip(problems, completions)]

ThinkAnswerTask.score_batch = score_batch
'''


def finished(name, pipeline=serial_pipeline_onpolicy, config='think_answer_grpo', manager='base', updates=4, **env):
    """Weights, records of evaluations, and metrics of all updates but those of the clock."""
    main, create = small(config, env=dict(max_new_tokens=8, **env))
    create.env_manager.type = manager
    main.policy.eval.evaluator.update(eval_freq=2, max_failed=1.0, samples_per_start=2)
    main.policy.collect.collector = dict(max_failed=1.0, max_replacements=3)
    found = weights(train((main, create), updates, 1, name, pipeline, learning_rate=3e-3))
    measured = [{key: value for key, value in m.items() if key != 'tokens_per_second'} for m in metrics(name)]
    return found, evaluations(name), measured


@pytest.mark.parametrize(
    'options, sizes',
    [
        # demonstrations and junk, greedy and sampled episodes of an evaluation, and two groups of a collect
        long(dict(), [15, 4, 4, 4, 8]),
        # two of the six episodes do not count
        (dict(evaluator_env_num=3, overlong_buffer=4), [15, 3, 3, 3, 1, 3, 1, 8]),
        (dict(pipeline=serial_pipeline, config='think_answer_grpo_serial', manager='subprocess'), [15]),
    ],
    ids=['onpolicy', 'uneven and overlong', 'serial in processes']
)
def test_equals_that_with_single_scores_to_the_last_bit(think_answer, monkeypatch, options, sizes):
    """All weights, evaluations and metrics, with completions of one problem that fail now and then, a part that does
    not always apply, and dynamic sampling."""

    def failing(self, problem, completion):
        if problem == self.problem(2) and len(completion) % 2:
            raise KeyError('oh')
        scored = score(self, problem, completion)
        return dict(scored, answer=None if len(completion) % 5 == 0 else len(completion) / 30)

    score = rescore(monkeypatch, failing)
    alone = finished('alone', **options)
    calls = in_batches(monkeypatch, ThinkAnswerTask)
    same(alone, finished('together', **options))
    assert any(line['failed'] for line in alone[2]) and len(alone[1]) == 3
    made = [len(completions) for _, completions in calls]
    assert made[:len(sizes)] == sizes and max(made[1:]) == 8


def test_each_of_two_processes_scores_its_share(tmp_path):
    runs = [Run(tmp_path, 'p1', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 3, 1)]
    runs.append(Run(tmp_path, 'p2', 'think_answer_grpo', TOKENS, 'serial_onpolicy', 3, 2, code=IN_BATCHES))
    for run in runs:
        run.finish()
    assert distance(*(run.weights(3) for run in runs)) < 1e-6
    calls = (tmp_path / 'calls.txt').read_text().split()
    # three collects; evaluations, demonstrations and junk by one of them
    assert sorted(calls) == sorted(['12', '12'] * 3 + ['4'] * 2 + ['15'])


def test_di_engines_ppo_scores_single_completions(think_answer, monkeypatch):
    """A task with ``score_batch`` alone, and a collector that knows nothing of it."""
    score, calls = ThinkAnswerTask.score, []

    def score_batch(self, problems, completions):
        calls.append(len(completions))
        return [score(self, *row) for row in zip(problems, completions)]

    configs = small('think_answer_ppo', policy=dict(collect=dict(n_sample=64)))
    alone = weights(train(configs, 1, name='alone'))
    rescore(monkeypatch, Task.score, score_batch=score_batch)
    same(alone, weights(train(configs, 1, name='together')))
    assert 1 in calls and max(calls) <= 4
