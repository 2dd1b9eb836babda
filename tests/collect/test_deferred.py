"""Scores of all episodes of a collect, or of a step of an evaluation, at once."""
import os
import re
import time

import pytest

from ding_common import TaskError
from dizoo_llm.envs import TokenEnv
from dizoo_llm.tasks import ThinkAnswerTask
from tests.collect.helper import AbnormalEnv
from tests.runs import completions, pays, rescore
from tests.same import same
from tests.tasks import in_batches

pytestmark = pytest.mark.envtest


@pytest.fixture
def collected(collector):
    """The groups of three collects, with the infos that were logged."""

    def collect(*args, **kwargs):
        made = collector(*args, max_failed=1.0, **kwargs)
        groups = [g for i, n in enumerate((6, 3, 5)) for g in made.collect(n_sample=n, train_iter=i)]
        for group in groups:
            for values in group['reward_parts'].values():
                values.nan_to_num_(-7)  # NaN equals no NaN
        recorded = completions('exp')
        os.remove('exp/log/collector/completions.jsonl')
        return groups, recorded

    return collect


def test_groups_are_those_of_single_scores(collected, monkeypatch):
    """With groups that are replaced, that fail and that begin anew, to the last bit; ``tests/pipelines`` has runs."""

    def groups_and_log():
        AbnormalEnv.broken = 2
        found = collected('base', 24, AbnormalEnv, max_replacements=2)
        assert AbnormalEnv.broken == 0
        return found

    def score(self, problem, completion):
        """Differs between most completions but those of the first problem, and fails for the third."""
        if problem == self.problem(2):
            raise KeyError('oh')
        number = len(completion) / 37 if problem != self.problem(0) else 0.
        return dict(answer=number, format=None if len(completion) % 3 else number / 7, solved=1.)

    rescore(monkeypatch, score)
    groups, recorded = alone = groups_and_log()
    calls = in_batches(monkeypatch, ThinkAnswerTask)
    same(alone, groups_and_log())
    assert calls
    assert {group['failed'].all().item() for group in groups} == {True, False}
    assert any(group['replaced_groups'] for group in groups)
    assert {record['failed'] is None for record in recorded} == {True, False}


def test_one_call_a_collect_in_this_process(collector, monkeypatch):
    calls, tokenizer = in_batches(monkeypatch, ThinkAnswerTask), TokenEnv().tokenizer
    samples = collector('subprocess').collect(n_sample=6)  # three rounds of the eight environments
    (problems, texts), = calls
    rows = [(s, row) for s in samples for row in range(4)]
    assert len(rows) == len(problems) == len(texts) == 24
    for (s, row), problem, text in zip(rows, problems, texts):
        assert tokenizer.decode(s['prompt']) == problem.prompt
        ids = s['action'][row][s['weight'][row] == 1]
        assert text == tokenizer.decode(ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids)


def test_each_round_of_dynamic_sampling_is_one_call(collector, monkeypatch):
    rescore(monkeypatch, pays())
    calls = in_batches(monkeypatch, ThinkAnswerTask)
    collector(max_replacements=4).collect(n_sample=3)
    assert [len(texts) for _, texts in calls] == [12, 12, 4]  # 3 and 1 groups replaced


@pytest.mark.parametrize(
    'score_batch, message', [
        (lambda *args: {}['gone'], r"raised KeyError: 'gone' \(test_deferred.py:\d+\) for 8 completions"),
        (lambda *args: [], 'returned 0 entries, must return a list of 8'),
        (lambda *args: time.sleep(60), 'raised TimeoutError'),
    ],
    ids=['raises', 'wrong number', 'hangs']
)
def test_a_call_that_fails_stops_the_run(collector, monkeypatch, score_batch, message):
    rescore(monkeypatch, score_batch=score_batch)
    begun = time.monotonic()
    with pytest.raises(TaskError) as caught:
        collector(step_timeout=1).collect()
    assert time.monotonic() - begun < 30
    assert re.match(
        '8 of 8 completions could not be scored, more than policy.collect.collector.max_failed = 0.1; the first: '
        f'ThinkAnswerTask.score_batch {message}', caught.value.message
    )


def test_an_entry_that_fails_costs_its_row_and_seconds_are_those_of_scoring(collector, monkeypatch, capsys):
    tasks = set()

    def score_batch(self, problems, texts):
        tasks.add(id(self))
        time.sleep(0.5)
        scores = [score(self, *row) for row in zip(problems, texts)]
        scores[5] = TimeoutError('too slow')
        return scores

    score = rescore(monkeypatch, score_batch=score_batch)
    made = collector(max_failed=0.2)
    for update in range(2):
        samples = made.collect(n_sample=2, train_iter=update)
        assert [s['failed'].tolist() for s in samples] == [[0.] * 4, [0., 1., 0., 0.]]
        assert sum(s['seconds_scoring'] for s in samples) >= 0.5
    told = capsys.readouterr().out
    assert '1 of 8 completions could not be scored and are dropped; the first: ThinkAnswerTask raised Time' in told
    assert len(tasks) == 1  # what a scorer loads is loaded once
