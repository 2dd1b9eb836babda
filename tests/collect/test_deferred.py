"""Scores of all episodes of a collect, or of a step of an evaluation, at once."""
import os
import re
import time

import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from dizoo_llm.tasks import Task, ThinkAnswerTask
from ding_common import TaskError, read_json_lines

from tests.cases import long
from tests.same import same
from tests.shipped import small
from tests.tasks import in_batches
from tests.collect.test_group_collector import AbnormalEnv, make_collector


@pytest.fixture
def uneven(monkeypatch):
    """Scores that differ between most completions; the first problem's rewards are all equal, and none is scored of
    the third."""

    def score(self, problem, completion):
        if problem == self.problem(2):
            raise KeyError('oh')
        number = len(completion) / 37 if problem != self.problem(0) else 0.
        return dict(answer=number, format=None if len(completion) % 3 else number / 7, solved=1.)

    monkeypatch.setattr(ThinkAnswerTask, 'score', score)


def collected(think_answer, tmp_path, *args, **kwargs):
    """The groups of three collects, with the infos that were logged."""
    collector = make_collector(*think_answer, tmp_path, *args, max_failed=1.0, **kwargs)
    groups = [g for i, n in enumerate((6, 3, 5)) for g in collector.collect(n_sample=n, train_iter=i)]
    collector.close()
    for group in groups:
        for values in group['reward_parts'].values():
            values.nan_to_num_(-7)  # NaN equals no NaN
    path = str(tmp_path / 'exp' / 'log' / 'collector' / 'completions.jsonl')
    recorded = read_json_lines(path)
    os.remove(path)
    return groups, recorded


@pytest.mark.envtest
class TestCollect:

    @pytest.mark.parametrize('order', ['epoch', long('random')])
    @pytest.mark.parametrize('manager, env_num', [('base', 8), ('base', 4), ('base', 24), ('subprocess', 8)])
    def test_groups_are_those_of_single_scores(
        self, think_answer, tmp_path, monkeypatch, uneven, manager, env_num, order
    ):
        """With groups that are replaced and groups that fail, to the last bit."""
        think_answer[0].policy.collect.problem_order = order
        groups, recorded = alone = collected(think_answer, tmp_path, manager, env_num, max_replacements=2)
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        same(alone, collected(think_answer, tmp_path, manager, env_num, max_replacements=2))
        assert calls
        if order == 'epoch':  # all problems
            assert {group['failed'].all().item() for group in groups} == {True, False}
            assert any(group['replaced_groups'] for group in groups)
            assert {record['failed'] is None for record in recorded} == {True, False}

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    def test_one_call_a_collect_in_this_process(self, think_answer, tmp_path, monkeypatch, manager):
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        collector = make_collector(*think_answer, tmp_path, manager)
        samples = collector.collect(n_sample=6)  # three rounds of the eight environments
        (problems, completions), = calls
        tokenizer = collector._env.env_ref.token_spec.tokenizer
        rows = [(s, row) for s in samples for row in range(4)]
        assert len(rows) == len(problems) == len(completions) == 24
        for (s, row), problem, completion in zip(rows, problems, completions):
            assert tokenizer.decode(s['prompt']) == problem.prompt
            ids = s['action'][row][s['weight'][row] == 1]
            assert completion == tokenizer.decode(ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids)
        collector.close()

    def test_each_round_of_dynamic_sampling_is_one_call(self, think_answer, tmp_path, monkeypatch):
        monkeypatch.setattr(ThinkAnswerTask, 'score', lambda *args: dict(answer=0., format=0., solved=0.))
        calls = in_batches(monkeypatch, ThinkAnswerTask)
        make_collector(*think_answer, tmp_path, max_replacements=4).collect(n_sample=3)
        assert [len(completions) for _, completions in calls] == [12, 12, 4]  # 3 and 1 groups replaced

    def test_a_group_that_begins_anew(self, think_answer, tmp_path, monkeypatch):
        AbnormalEnv.broken = 2
        alone = collected(think_answer, tmp_path, env_cls=AbnormalEnv)
        in_batches(monkeypatch, ThinkAnswerTask)
        AbnormalEnv.broken = 2
        same(alone, collected(think_answer, tmp_path, env_cls=AbnormalEnv))
        assert AbnormalEnv.broken == 0

    @pytest.mark.parametrize(
        'score_batch, message', [
            (lambda *args: {}['gone'], r"raised KeyError: 'gone' \(test_deferred.py:\d+\) for 8 completions"),
            (lambda *args: [], 'returned 0 entries, must return a list of 8'),
            (lambda *args: time.sleep(60), 'raised TimeoutError'),
        ],
        ids=['raises', 'wrong number', 'hangs']
    )  # yapf: disable
    def test_a_call_that_fails_stops_the_run(self, think_answer, tmp_path, monkeypatch, score_batch, message):
        monkeypatch.setattr(ThinkAnswerTask, 'score_batch', score_batch)
        collector = make_collector(*think_answer, tmp_path, step_timeout=1)
        begun = time.monotonic()
        with pytest.raises(TaskError) as caught:
            collector.collect()
        assert time.monotonic() - begun < 30
        assert re.match(
            '8 of 8 completions could not be scored, more than policy.collect.collector.max_failed = 0.1; the first: '
            f'ThinkAnswerTask.score_batch {message}', caught.value.message
        )

    def test_an_entry_that_fails_costs_its_row(self, think_answer, tmp_path, monkeypatch, capsys):
        score = ThinkAnswerTask.score

        def score_batch(self, problems, completions):
            scores = [score(self, *row) for row in zip(problems, completions)]
            scores[5] = TimeoutError('too slow')
            return scores

        monkeypatch.setattr(ThinkAnswerTask, 'score_batch', score_batch)
        samples = make_collector(*think_answer, tmp_path, max_failed=0.2).collect(n_sample=2)
        assert [s['failed'].tolist() for s in samples] == [[0.] * 4, [0., 1., 0., 0.]]
        told = capsys.readouterr().out
        assert '1 of 8 completions could not be scored and are dropped; the first: ThinkAnswerTask raised Time' in told

    def test_its_seconds_are_those_of_scoring(self, think_answer, tmp_path, monkeypatch):

        def score_batch(self, problems, completions):
            time.sleep(0.5)
            return [dict(answer=0., format=0., solved=0.)] * len(completions)

        monkeypatch.setattr(ThinkAnswerTask, 'score_batch', score_batch)
        samples = make_collector(*think_answer, tmp_path).collect(n_sample=2)
        assert sum(s['seconds_scoring'] for s in samples) >= 0.5

    def test_what_a_scorer_loads_is_loaded_once(self, think_answer, tmp_path, monkeypatch):
        loaded = set()

        def score_batch(self, problems, completions):
            loaded.add(id(self))
            return [dict(answer=0., format=0., solved=0.)] * len(completions)

        monkeypatch.setattr(ThinkAnswerTask, 'score_batch', score_batch)
        collector = make_collector(*think_answer, tmp_path)
        for update in range(3):
            collector.collect(n_sample=4, train_iter=update)
        assert len(loaded) == 1


@pytest.mark.envtest
class TestEvaluate:

    @pytest.mark.parametrize('manager', ['base', 'subprocess'])
    @pytest.mark.parametrize('number', [3, long(4)])
    def test_records_are_those_of_single_scores(self, think_answer, monkeypatch, uneven, manager, number):
        """The greedy and the sampled episodes, with failures; one call for all that end in one step."""
        main, create = think_answer
        create.env_manager.type = manager
        main.env.evaluator_env_num = number
        main.policy.eval.evaluator.update(samples_per_start=2, max_failed=1.0)
        main.policy.collect.collector = dict(max_failed=1.0)
        found = []
        for name in ('alone', 'together'):
            main.exp_name = name
            calls = in_batches(monkeypatch, ThinkAnswerTask) if name == 'together' else None
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
            found.append(read_json_lines(f'{name}/log/evaluator/evaluations.jsonl'))
        same(*found)
        assert found[0][0]['failed'] == 0.25 and found[0][0]['sampled_failed'] == 0.25
        sizes = [len(completions) for _, completions in calls]
        assert sizes.count(15) == 1  # demonstrations and junk of three problems, before the run
        sizes.remove(15)
        if manager == 'base':
            steps = [4] if number == 4 else [3, 3]  # with three environments two of the six episodes do not count
            sampled = [4] * 2 if number == 4 else [3, 1] * 2
            assert sizes == [*steps, *sampled, 8, *steps, *sampled]
        assert sum(sizes) < 100 and max(sizes) == 8


@pytest.mark.envtest
def test_di_engines_ppo_scores_single_completions(think_answer, monkeypatch):
    """A task with ``score_batch`` alone, and a collector that knows nothing of it."""
    from dizoo_llm.tasks import ThinkAnswerTask
    score = ThinkAnswerTask.score
    found = []
    for name in ('alone', 'together'):
        main, create = small('think_answer_ppo')
        main.exp_name = name
        main.policy.collect.n_sample = 64
        if name == 'together':
            calls = []

            def score_batch(self, problems, completions):
                calls.append(len(completions))
                return [score(self, *row) for row in zip(problems, completions)]

            monkeypatch.setattr(ThinkAnswerTask, 'score_batch', score_batch)
            monkeypatch.setattr(ThinkAnswerTask, 'score', Task.score)
        policy = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        found.append({key: value.clone() for key, value in policy._model.state_dict().items()})
    same(*found)
    assert 1 in calls and max(calls) <= 4 and any(isinstance(value, torch.Tensor) for value in found[0].values())
