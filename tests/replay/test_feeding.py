"""Replays that make the recorded requests of an agent, which does not run."""
import json

import pytest

from ding_common import TaskError
from ding_grpo.replay.changes import Force
from ding_grpo.replay.feeding import recorded

from tests.replay import helper
from tests.replay.helper import Run, shown


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('recorded')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield Run(folder, 'recorded', policy=dict(collect=dict(groups=4), learn={}))


@pytest.fixture
def ran(monkeypatch):
    """The problems for which the agent runs from now on, with rewards that are not those of the run."""
    monkeypatch.setenv('SHIFT', '0.5')
    helper.CALLED.clear()
    return helper.CALLED


def test_a_replay_is_the_run_to_the_last_bit_without_its_agent(run, ran):
    for update in (1, 3):
        records = recorded(str(run.folder), update)
        assert sorted(records) == [(group, row) for group in range(4) for row in range(4)]
        assert run.replay(update, 1, records=records).record == run.recorded(update, 1)
    assert ran == []
    assert run.replay(1, 1).record != run.recorded(1, 1) and len(ran) == 16  # without records


def test_rewards_change_without_the_agent_and_settings_with_it(run, ran):
    records = recorded(str(run.folder), 1)
    rows = run.replay(1, 2, records=records, rewards={3: 9.0}).record['rows']
    assert [row['reward'] for row in rows[:4]] == [row['reward'] for row in run.recorded(1, 2)['rows'][:3]] + [9.0]
    assert ran == []
    run.replay(1, 2, records=records, settings={'policy.collect.temperature': 0.5})
    assert len(ran) == 16


def test_other_answers_than_those_of_the_run_cost_their_rows(run, ran):
    """As with other weights: nobody knows what the agent would ask."""
    records = recorded(str(run.folder), 3)
    with pytest.raises(TaskError, match='the answer to request 1 is not that of the run'):
        run.replay(1, 2, records=records)
    assert ran == []


def test_the_agent_runs_for_rows_without_a_record(run, ran):
    records = {place: record for place, record in recorded(str(run.folder), 1).items() if place != (2, 1)}
    rows = run.replay(1, 2, records=records).record['rows']
    was = run.recorded(1, 2)['rows']
    assert len(ran) == 1 and [a['reward'] - b['reward'] for a, b in zip(rows, was)][:4] == [0, 2, 0, 0]


def test_of_an_update_that_a_resumed_run_repeated_the_last_record_counts(run, tmp_path):
    folder = tmp_path / 'log' / 'collector'
    folder.mkdir(parents=True)
    lines = [dict(collect_iter=i, group=0, row=0, record=[value]) for i, value in ((1, 'a'), (2, 'b'), (1, 'c'))]
    lines += [dict(collect_iter=1, group=0, record=['no row']), dict(collect_iter=1, group=0, row=0, record=[])]
    (folder / 'records.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines), encoding='utf-8')
    assert recorded(str(tmp_path), 1) == {(0, 0): ['c']}  # lines that are no records are left out, and told
    assert recorded(str(tmp_path / 'none'), 1) == {}


def test_the_command_tells_that_requests_are_recorded_ones(run, ran):
    said = shown('recorded/ckpt/iteration_2.pth.tar', '--group', 1, '--trust')
    assert 'Requests of 16 rows are those that the run recorded.' in said and ran == []
    assert 'otherwise than the run' not in said and 'update 2, group 1 of 4' in said


def test_the_agent_runs_for_a_forced_row_alone(tmp_path, monkeypatch):
    """Of episodes of one text, whose agent reads log-probabilities."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(helper.AGENTS, 'recorded', 'weighs')
    run = Run(tmp_path, 'recorded', policy=dict(collect=dict(groups=4), learn={}))
    helper.CALLED.clear()
    records, was = recorded('recorded', 1), run.recorded(1, 0)['rows']
    token = (was[2]['action'][0] + 1) % 8
    rows = run.replay(1, 0, records=records, forces=[Force(2, 0, token)]).record['rows']
    assert len(helper.CALLED) == 1 and rows[2]['action'][0] == token
    assert [rows[i]['action'] == was[i]['action'] for i in range(4)] == [True, True, False, True]
    assert [rows[i]['reward'] == was[i]['reward'] for i in range(4)] == [True, True, False, True]
