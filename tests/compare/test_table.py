import csv
import json
import tempfile
from pathlib import Path

import pytest

from ding_common import ConfigError
from ding_grpo.compare import paired, picture, runs, table
from tests.shipped import path_of

STEPS = 'P(a needs fewer steps)'
RETURN = 'P(a has a higher final return)'


def record(step, value):
    return dict(envstep=step, seconds=step / 10, eval_episode_return=value)


THREE = [[record(0, 1.), record(50, 11.)], [record(0, 12.)], [record(0, 1.), record(50, 9.), record(60, 3.)]]


@pytest.fixture
def made(tmp_path):
    """Runs with the given evaluations: {name: [evaluations of seed 0, of seed 1, ...]}, bar 10. None: not finished."""

    def make(**of_name):
        found, out = [], Path(tempfile.mkdtemp(dir=tmp_path))
        for name, of_seeds in of_name.items():
            for seed, records in enumerate(of_seeds):
                folder = out / f'{name} {seed}'
                found.append(runs.Run(name, f'{name}.py', [], 'serial', seed, str(folder), 10., ''))
                if records is not None:
                    log = folder / 'log' / 'evaluator'
                    log.mkdir(parents=True)
                    (log / 'evaluations.jsonl').write_text(''.join(f'{json.dumps(r)}\n' for r in records), 'utf-8')
                    (folder / runs.DONE).touch()
        return found

    return make


def test_by_hand(made):
    line, = table.table(made(a=THREE))
    assert (line['seeds'], line['solved'], line['bar']) == (3, 2, 10)
    assert line['environment steps to the bar'] == '25 (0 to 50)'
    assert line['seconds to the bar'] == '2.5 (0.0 to 5.0)'
    assert line['best return'] == '11.00 (9.00 to 12.00)'
    assert line['final return'] == '11.00 (3.00 to 12.00)'  # not 9, which the third seed has lost again
    assert line['IQM of the final return'].startswith('8.67 (3.00 to 12.00')  # of three seeds all count
    assert line['IQM of the steps to the bar'] == ''  # the third seed did not reach it
    assert line[STEPS] == line[RETURN] == ''


def test_the_first_is_compared_with_each_other(made):
    """Steps (50, 0, never) against (40, 40, 40): only 0 is fewer. Final returns (11, 12, 3) against 10: 2 of 3."""
    _, other = table.table(made(a=THREE, b=[[record(40, 10.)]] * 3))
    assert other[STEPS].startswith('0.33 (') and other[RETURN].startswith('0.67 (')
    assert other['IQM of the steps to the bar'] == '40 (40 to 40)'


def test_failed_runs_and_few_seeds(made):
    _, other = table.table(made(a=THREE, b=[None, [record(40, 10.)], None]))
    assert other['seeds'] == 1 and other[STEPS] == '' == other['IQM of the final return']
    nothing, = table.table(made(a=[None]))
    assert nothing['seeds'] == 0 and nothing['final return'] == ''


def test_differences_seed_by_seed(made):
    """Final returns 11, 12, 3 and 12, 15, 4: differences 1, 3 and 1. Their variance is 4/3, those of the returns 73/3
    and 97/3. Resampled means: 5/3 in the middle, 1 with 8 of 27, 3 with 1 of 27."""
    other = [[record(0, 12.)], [record(0, 15.)], [record(40, 4.)]]
    row = next(line for line in paired.paired(made(a=THREE, b=other)).splitlines() if line.startswith('| b '))
    assert row == '| b | 3 | +1.667 (+1 to +3) | 42.5 |  |  |'  # (73 + 97) / 4; a seed of both is not at the bar
    row = paired.paired(made(a=[[record(s, 20.)] for s in (10, 20, 60)], b=[[record(s, 20.)] for s in (20, 30, 70)]))
    assert '| b | 3 | +0 (+0 to +0) |  | +10 (+10 to +10) | inf |' in row
    assert '| b | 1 |  |' in paired.paired(made(a=THREE, b=[None, [record(40, 10.)], None]))
    assert paired.paired(made(a=THREE)) == ''


def test_files(made, tmp_path):
    text = table.write_table(table.table(made(a=THREE, b=THREE)), str(tmp_path), ['a note'])
    assert (tmp_path / 'comparison.md').read_text() == text and '\n\na note\n\n' in text
    with open(tmp_path / 'comparison.csv') as f:
        assert [row['final return'] for row in csv.DictReader(f)] == ['11.00 (3.00 to 12.00)'] * 2
    tables = [part for part in text.split('\n\n') if part.startswith('|')]
    assert len(tables) == 2 and all(len(part.splitlines()) == 4 for part in tables)
    few = table.write_table(table.table(made(a=THREE[:2])), str(tmp_path), [])
    assert 'need at least 3 seeds' in few and 'IQM' not in few
    picture.draw(made(a=THREE, b=[None] * 3), str(tmp_path / 'picture.png'))  # no run of b has finished
    assert (tmp_path / 'picture.png').exists()


def test_mode_and_order():
    names = [path_of(f'think_answer_{n}') for n in ('grpo', 'grpo_serial')]
    modes = [('think_answer_grpo', 'serial_onpolicy'), ('think_answer_grpo_serial', 'serial')]
    found = [(r.name, r.mode, r.seed) for r in runs.plan(tuple(names), [0, 1], 'out')]
    assert found == [(*mode, seed) for seed in (0, 1) for mode in modes]
    with pytest.raises(ConfigError, match='has the name of'):
        runs.plan((names[0], names[0]), [0], 'out')


def test_bars():
    names = tuple(path_of(f'{n}_grpo') for n in ('cartpole', 'acrobot'))
    differ = 'Warning: the bars (env.stop_value) differ: cartpole_grpo 475, acrobot_grpo -100. '
    assert runs.bar_warning(runs.plan(names, [0, 1], 'out')).startswith(differ)
    of_one = runs.plan(names, [0], 'out', bar=20)
    assert runs.bar_warning(runs.plan(names[:1], [0, 1], 'out')) == '' == runs.bar_warning(of_one)
    assert {r.bar for r in of_one} == {20}
