"""A row of a group that is continued in several ways."""
import pytest

from ding_common import ConfigError
from ding_grpo.replay.changes import Force, Fork
from ding_grpo.replay.fork import forked

from .helper import EXTRA, Run, shown

pytestmark = pytest.mark.envtest


def same_as(row, other):
    """But for the rounding of log-probabilities: those of forced tokens are computed in another way."""
    close = (row[name] == pytest.approx(other[name], abs=1e-5) for name in ('reward', 'logp_old'))
    return all(row[name] == other[name] for name in ('row', 'action', 'text', 'own', 'truncated')) and all(close)


def fork_of(run):
    """A group after update 1, a row of it and a token: the third one, or the first one of a second turn."""
    found = ((r, w) for r in run.records if r['train_iter'] == 1 for w in r['rows'])
    if run.name == 'think_answer_grpo':
        record, row = next((r, w) for r, w in found if len(w['action']) > 5 and w['row'] > 0)
        return record, row, 3
    record, row = next((r, w) for r, w in found if False in w['own'] and w['row'] > 0)
    return record, row, row['own'].index(True, row['own'].index(False))


@pytest.mark.parametrize('name', ['think_answer_grpo', 'guess_grpo', 'readers'])
def test_a_fork_continues_one_row_as_forced_tokens_do(runs, name):
    """With the random numbers of each row; the row itself has the tokens that were recorded."""
    record, row, place = fork_of(runs[name])
    found = runs[name].fork(1, record['group'], row['row'], place)
    assert found.recorded.record['rows'][row['row']]['action'] == row['action']
    own = found.rows[row['row']]
    assert same_as(own, row) and len(found.rows) == len(record['rows'])
    begun = [(t, row['action'][t]) for t in range(place) if row['own'][t]]
    for new in found.rows:
        forces = [Force(new['row'], t, action) for t, action in begun]
        forced = runs[name].replay(1, record['group'], forces=forces).record['rows'][new['row']]
        assert same_as(new, forced) and new['action'][:place] == row['action'][:place]
    assert len({tuple(new['action']) for new in found.rows}) > 1


@pytest.fixture(scope='module')
def grown(tmp_path_factory):
    """A run whose groups are trees: rows 0 and 1, and rows 2 and 3, share two tokens."""
    folder, collect = tmp_path_factory.mktemp('grown'), dict(groups=4, tree=dict(branches=[2], tokens=[2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Run(folder, 'think_answer_grpo', policy=dict(collect=collect, learn=dict(advantage='tree')))


def test_a_row_of_a_tree(grown):
    """Row 3 has two tokens of row 2: they are recorded as such, and a fork leaves it as it was."""
    record = grown.recorded(2, 1)
    row = record['rows'][3]
    assert row['leader'] == [2, 2, *[3] * (len(row['action']) - 2)]
    assert grown.replay(2, 1).record == record
    for place in (1, 3):
        found = grown.fork(2, 1, 3, place)
        assert same_as(found.rows[3], row) and {tuple(r['action'][:place])
                                                for r in found.rows} == {tuple(row['action'][:place])}
        assert len({tuple(r['action']) for r in found.rows}) == 4
    with pytest.raises(ConfigError, match='--force 3:1: row 3 takes this token from row 2, .* Use --force 2:1=5'):
        grown.replay(2, 1, forces=[Force(3, 1, 5)])
    new = grown.replay(2, 1, forces=[Force(2, 1, 5), Force(3, 2, 6)]).record['rows']
    assert new[2]['action'][1] == new[3]['action'][1] == 5 and new[3]['action'][2] == 6


@pytest.mark.parametrize(
    'name, row, token, message', [
        ('think_answer_grpo', 4, 0, '--fork 4:0: the group has the rows 0 to 3'),
        ('think_answer_grpo', 1, 99, '--fork 1:99: row 1 has the steps 0 to'),
        ('guess_grpo', None, None, 'this token is of the environment'),
        ('agents', 0, 0, '--fork: not available, because an episode of this group has several texts'),
        ('cartpole_grpo', 0, 0, '--fork: not available, because the actions of this policy are not tokens'),
    ]
)
def test_forks_that_cannot_be(runs, name, row, token, message):
    group = 2
    if row is None:
        record, sampled, place = fork_of(runs[name])
        group, row, token = record['group'], sampled['row'], place - 1
    with pytest.raises(ConfigError, match=message):
        runs[name].fork(1, group, row, token)


def test_the_command_shows_a_fork(runs):
    record, row, place = fork_of(runs['guess_grpo'])
    arguments = ['guess_grpo/ckpt/iteration_1.pth.tar', '--group', str(record['group'])]
    fork = ['--fork', f"{row['row']}:{place}"]
    out = shown(*arguments, *fork)
    assert f"row {row['row']} until token {place}: {''.join(row['text'][:place])}\n" in out
    line = next(line for line in out.splitlines() if 'as recorded' in line)
    logp = sum(x for x, own in zip(row['logp_old'][place:], row['own'][place:]) if own)
    assert line.startswith(f"{row['row']}, as recorded") and f'{logp:.3f}' in line
    rewards = [w['reward'] for w in runs['guess_grpo'].fork(1, record['group'], row['row'], place).rows]
    means = [sum(x) / len(x) for x in (rewards, [w['reward'] for w in record['rows']])]
    told = 'mean reward: {:.4g} with this beginning, {:.4g} in the group as recorded\n'.format(*means)
    assert out.endswith(told)
    for other in (['--reward', '0=1'], ['--force', '0:0=1'], ['--set', 'seed=1'], ['--row', '1'], ['--alone']):
        refused = shown(*arguments, *fork, *other, code=1)
        assert 'not available with --set, --force, --reward, --row' in refused


def test_a_fork_of_a_run_that_drops_rows():
    with pytest.raises(ConfigError, match='policy.collect.extra_rows = 2: --fork is not available'):
        forked(dict(policy=EXTRA), {}, 0, Fork(0, 1))
