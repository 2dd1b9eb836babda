"""A group that is rebuilt from a checkpoint, and what a change does to it."""
import glob
import math
import os
import random

import pytest
from ding.entry import serial_pipeline

from ding_common import ConfigError, read_json_lines
from ding_grpo.replay.changes import Changes, Force
from ding_grpo.replay.session import replay

from . import helper
from .helper import CONFIGS, EXTRA, GROUPS, UPDATES, Run, shown

pytestmark = pytest.mark.envtest


def files(run):
    paths = sorted(p for p in glob.glob(f'{run.folder}/**', recursive=True) if os.path.isfile(p))
    return {path: (os.path.getsize(path), os.stat(path).st_mtime_ns) for path in paths}


@pytest.mark.parametrize('name', list(CONFIGS))
def test_groups_are_the_recorded_ones_to_the_last_bit(runs, name):
    """Sampled steps, rewards, advantages, and what the update did: the numbers of a record have every bit."""
    run = runs[name]
    before = files(run)
    assert len(run.records) == 4 * UPDATES
    for record in random.Random(0).sample([r for r in run.records if r['train_iter'] > 0], 3):
        found = run.replay(record['train_iter'], record['group'])
        assert found.record == record and found.groups == 4
    assert files(run) == before


@pytest.fixture
def run(runs):
    return runs['think_answer_grpo']


def test_the_numbers_of_an_update_are_the_recorded_ones(run):
    recorded = read_json_lines(f'{run.name}/log/learner/metrics.jsonl')[2]
    metrics = run.replay(2, 0).metrics
    measured = ('seconds', 'per_second', 'memory_mib')
    assert {k: v for k, v in metrics.items() if not any(m in k for m in measured)}.items() <= recorded.items()


def test_a_group_of_a_run_with_a_replay_buffer(runs, tmp_path, own_folder):
    """Its sampling is the recorded one to the last bit. The update of the run learned from other groups too."""
    changes = dict(collect=dict(groups=4), learn=dict(update_per_collect=2, batch_groups=4, learning_rate=1e-3))
    changes['other'] = dict(replay_buffer=dict(max_use=4))
    run = Run(tmp_path, 'think_answer_grpo_serial', serial_pipeline, policy=changes)
    own = [r for r in run.records if r['train_iter'] == r['collect_iter'] == 2]
    assert own and any(r['train_iter'] == 2 > r['collect_iter'] for r in run.records)  # an update of both kinds
    sampled = ('row', 'action', 'logp_old', 'text', 'own', 'reward', 'reward_parts', 'truncated', 'failed')
    for record in own:
        found = run.replay(2, record['group']).record
        assert found['prompt'] == record['prompt'] and len(found['rows']) == len(record['rows']) == 4
        for old, new in zip(record['rows'], found['rows']):
            assert {name: new[name] for name in sampled} == {name: old[name] for name in sampled}
            assert new['advantage'] == old['advantage']
            assert new['logp'] == pytest.approx(old['logp'], abs=1e-6)
    line = 'The run has a replay buffer: the group is the one that it sampled, but its update learned from groups of'
    for folder, has in ((run.folder, True), (runs['think_answer_grpo'].folder, False)):
        assert shown(folder / 'ckpt' / 'iteration_2.pth.tar').startswith(line) == has


@pytest.mark.parametrize('name', ['guess_grpo', 'cartpole_grpo'])
def test_forcing_what_was_sampled_changes_no_bit(runs, name):
    record = runs[name].recorded(1, 2)
    own = [t for t, mine in enumerate(record['rows'][1]['own']) if mine]
    forces = [Force(1, own[-1], record['rows'][1]['action'][own[-1]])]
    assert runs[name].replay(1, 2, forces=forces).record == record


@pytest.mark.parametrize('name, step, action', [('think_answer_grpo', 1, 9), ('cartpole_grpo', 2, None)])
def test_a_forced_step_changes_its_row_alone(runs, name, step, action):
    record = runs[name].recorded(1, 2)
    action = 1 - record['rows'][1]['action'][step] if action is None else action
    found = runs[name].replay(1, 2, forces=[Force(1, step, action)]).record
    for old, new in zip(record['rows'], found['rows']):
        same = len(old['action']) if old['row'] != 1 else step
        assert new['action'][:same] == old['action'][:same] and new['logp_old'][:same] == old['logp_old'][:same]
    new = found['rows'][1]
    assert new['action'][step] == action != record['rows'][1]['action'][step]
    assert new['logp_old'] == pytest.approx(new['logp'], abs=1e-5)  # the sampler's number for the forced step too


@pytest.mark.parametrize('name', ['think_answer_grpo', 'cartpole_grpo'])
def test_several_forced_steps_of_one_row(runs, name):
    """Not the last one alone."""
    sampled = runs[name].recorded(1, 2)['rows'][1]['action'][:3]
    other = [1 - action if action < 2 else 1 for action in sampled]
    for steps in ([0, 2], [2, 0]):
        forces = [Force(1, step, other[step]) for step in steps]
        forced = runs[name].replay(1, 2, forces=forces).record['rows'][1]['action']
        assert forced[0] == other[0] and forced[2] == other[2]


def test_a_forced_token_of_a_later_turn(runs):
    run = runs['guess_grpo']
    record, row = next((r, w) for r in run.records if r['train_iter'] == 1 for w in r['rows'] if False in w['own'])
    reply = row['own'].index(False)
    step = row['own'].index(True, reply)  # the first token of the second turn
    action = row['action'][step] + (1 if row['action'][step] < 5 else -1)
    force = Force(row['row'], step, action)
    new = run.replay(1, record['group'], forces=[force]).record['rows'][row['row']]
    assert new['action'][:step] == row['action'][:step] and new['action'][step] == action and new['own'][step]
    with pytest.raises(ConfigError, match=f'--force {row["row"]}:{reply}: this token is of the environment'):
        run.replay(1, record['group'], forces=[force._replace(step=reply)])


@pytest.mark.parametrize('setting', [{}, {'policy.collect.temperature': 0.5}])
def test_an_agent_reads_the_log_probabilities_of_the_replay(runs, setting):
    """Also that of a forced token, and those of another temperature."""
    run = runs['readers']
    record = run.recorded(1, 2)
    step = record['rows'][1]['own'].index(True)
    force = Force(1, step, (record['rows'][1]['action'][step] + 1) % 8)
    rows = run.replay(1, 2, forces=[force], settings=setting).record['rows']
    for row in rows:
        read = sum(logp for logp, own in zip(row['logp_old'], row['own']) if own)
        assert row['reward'] == pytest.approx(read, abs=1e-5) and read < 0
    assert rows[1]['action'][step] == force.action
    same = [new['reward'] == old['reward'] for new, old in zip(rows, record['rows'])]
    assert same == [i != 1 and not setting for i in range(4)]


@pytest.mark.parametrize('name', ['think_answer_grpo', 'cartpole_grpo'])
def test_another_reward_changes_the_advantages(runs, name):
    record = runs[name].recorded(1, 2)
    found = runs[name].replay(1, 2, rewards={0: 50.0, 3: -2.0}).record
    rewards = [50.0, record['rows'][1]['reward'], record['rows'][2]['reward'], -2.0]
    assert [row['reward'] for row in found['rows']] == pytest.approx(rewards)
    assert [row['action'] for row in found['rows']] == [row['action'] for row in record['rows']]
    if name == 'think_answer_grpo':  # no_std: the reward minus the group's mean
        mean = sum(rewards) / 4
        assert [row['advantage'][0] for row in found['rows']] == pytest.approx([r - mean for r in rewards])
    assert found['rows'][0]['logp_new'] != record['rows'][0]['logp_new']


def test_another_loss_samples_the_same_and_updates_differently(run):
    record = run.recorded(2, 1)
    found = run.replay(2, 1, settings={'policy.learn.loss': 'dr_grpo'}).record
    for old, new in zip(record['rows'], found['rows']):
        assert all(old[key] == new[key] for key in ('action', 'logp_old', 'logp', 'entropy', 'reward'))
    assert found != record


def test_another_temperature_samples_differently(run):
    cold = run.replay(2, 1, settings={'policy.collect.temperature': 1e-5}).record['rows']
    assert len({tuple(row['action']) for row in cold}) == 1  # greedy in effect: all rows are the same
    assert len({tuple(row['action']) for row in run.recorded(2, 1)['rows']}) == 4


def test_a_group_alone_pushes_its_own_tokens(run):
    """Rows of one group with an advantage: without the other groups, log-probabilities move as the advantages say."""
    rewards = {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}
    setting = {'policy.learn.entropy.weight': 0.0}
    rows = run.replay(2, 1, alone=True, rewards=rewards, settings=setting).record['rows']
    moves = [sum(row['logp_new']) - sum(row['logp']) for row in rows]
    assert moves[0] > 0 and moves[0] > max(moves[1:])


@pytest.mark.parametrize(
    'group, changes, message', [
        (4, {}, '--group = 4: the collect has the groups 0 to 3'),
        (0, dict(rewards={4: 1.}), 'row 4: the group has the rows 0 to 3'),
        (0, dict(forces=[Force(0, 99, 1)]), '--force 0:99: row 0 has the steps 0 to'),
        (0, dict(forces=[Force(0, 0, 99)]), '--force: .*token 99'),
        (0, dict(settings={'policy.learn.clip_ratios': 1}), 'no such key; did you mean .policy.learn.clip.ratio'),
        (0, dict(settings={'policy.learn.clip.ratio': 7}), 'policy.learn.clip.ratio = 7'),
    ]
)  # yapf: disable
def test_errors(run, group, changes, message):
    with pytest.raises(ConfigError, match=message):
        run.replay(1, group, **changes)


def test_changes_of_a_group_whose_episodes_have_several_texts(runs):
    """Without errors, a change of a further text would do nothing, and a forced step would be of another text."""
    run = runs['agents']
    rows = run.recorded(1, 2)['rows']
    assert len(rows) == 8  # two texts of each of four episodes
    found = run.replay(1, 2, rewards={3: 9.0}).record['rows']
    assert [row['reward'] for row in found] == [9. if i in (3, 7) else row['reward'] for i, row in enumerate(rows)]
    assert [row['action'] for row in found] == [row['action'] for row in rows]
    with pytest.raises(ConfigError, match='--reward 7=9: row 7 is a further text of the episode of row 3'):
        run.replay(1, 2, rewards={7: 9.0})
    with pytest.raises(ConfigError, match='--force: .* several texts'):
        run.replay(1, 2, forces=[Force(1, 0, 3)])


def test_an_agent_that_gives_other_rewards_than_in_its_run_is_told(runs, monkeypatch):
    arguments = ['agents/ckpt/iteration_2.pth.tar', '--group', '1', '--trust']
    told = 'The replay samples otherwise than the run: reward_mean ='
    same = shown(*arguments)
    monkeypatch.setenv('SHIFT', '0.5')
    other, alone = shown(*arguments), shown(*arguments, '--alone')
    assert told in other and told not in same + alone and 'update 2, group 1 of 4' in same
    assert f"env.task.run = '{helper.__name__}:guesses'" in shown(*arguments[:-1], code=1)


DROPPED = 'policy.collect.extra_rows = 2: --force and --reward are not available'


@pytest.mark.parametrize(
    'policy, changes, message', [
        (EXTRA, Changes(rewards={0: 1.}), DROPPED),
        (EXTRA, Changes(forces=[Force(0, 1, 5)]), DROPPED),
        (GROUPS, Changes(), 'does not contain the whole state of its run'),
    ]
)
def test_runs_that_cannot_be_replayed(policy, changes, message):
    """Longest rows are dropped, the checkpoint is empty."""
    with pytest.raises(ConfigError, match=message):
        replay(dict(policy=policy), {}, 0, changes, False)


@pytest.mark.parametrize('name', ['guess_grpo', 'cartpole_grpo'])
def test_the_command_shows_rows_and_steps(runs, name):
    run = runs[name]
    row = run.recorded(2, 1)['rows'][3]
    out = shown(f'{name}/ckpt/iteration_2.pth.tar', '--group', 1, '--row', 3, '--reward', '3=7')
    line = out.split('row 3\n')[1].splitlines()[2]
    assert f"{math.exp(row['logp'][0]):.4f} -> {math.exp(row['logp_new'][0]):.4f}" in line
    assert 'update 2, group 1 of 4' in out and out.count('the same') >= 4 and '\n3      7' in out


@pytest.mark.parametrize(
    'option, text, form', [
        ('--set', 'policy.learn.loss', 'KEY=VALUE'),
        ('--force', '1=2', 'ROW:STEP=ACTION'),
        ('--reward', 'a=1', 'ROW=REWARD'),
        ('--fork', '1', 'ROW:TOKEN'),
    ]
)  # yapf: disable
def test_options_of_another_form(option, text, form):
    assert f'{option} {text}: must have the form {form}' in shown('checkpoint', option, text, code=1)
