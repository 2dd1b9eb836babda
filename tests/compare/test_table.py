import csv

import numpy as np
import pytest
from matplotlib.image import imread

from ding_common import ConfigError
from ding_grpo.compare import picture, runs, table

from tests.shipped import path_of


def record(step, value):
    return dict(envstep=step, seconds=step / 10, eval_episode_return=value)


@pytest.fixture
def made(monkeypatch):
    """Finished runs with the given evaluations: {name: [evaluations of seed 0, of seed 1, ...]}, bar 10."""

    def make(of_name, bar=10.):
        monkeypatch.setattr(runs.Run, 'done', property(lambda self: self.evaluations() is not None))
        monkeypatch.setattr(runs.Run, 'evaluations', lambda self: of_name[self.name][self.seed])
        return [
            runs.Run(name, f'{name}.py', 'serial', seed, f'out/{name} {seed}', bar, False, '')
            for name, of_seeds in of_name.items() for seed in range(len(of_seeds))
        ]

    return make


@pytest.mark.unittest
class TestTable:
    three = [[record(0, 1.), record(50, 11.)], [record(0, 12.)], [record(0, 1.), record(50, 9.), record(60, 3.)]]

    def test_by_hand(self, made):
        line, = table.table(made(dict(a=self.three)))
        assert (line['seeds'], line['solved'], line['bar']) == (3, 2, 10)
        assert line['environment steps to the bar'] == '25 (0 to 50)'
        assert line['seconds to the bar'] == '2.5 (0.0 to 5.0)'
        assert line['best return'] == '11.00 (9.00 to 12.00)'
        assert line['final return'] == '11.00 (3.00 to 12.00)'  # not 9, which the third seed has lost again
        assert line['IQM of the final return'].startswith('8.67 (3.00 to 12.00')  # of three seeds all count
        assert line['IQM of the steps to the bar'] == ''  # the third seed did not reach it
        assert line['P(a needs fewer steps)'] == line['P(a has a higher final return)'] == ''

    def test_the_first_is_compared_with_each_other(self, made):
        """Steps (50, 0, never) against (40, 40, 40): only 0 is fewer. Final returns (11, 12, 3) against 10: 2 of 3."""
        first, other = table.table(made(dict(a=self.three, b=[[record(40, 10.)]] * 3)))
        assert other['P(a needs fewer steps)'].startswith('0.33 (')
        assert other['P(a has a higher final return)'].startswith('0.67 (')
        assert other['IQM of the steps to the bar'] == '40 (40 to 40)'

    def test_failed_runs_and_few_seeds(self, made):
        first, other = table.table(made(dict(a=self.three, b=[None, [record(40, 10.)], None])))
        assert other['seeds'] == 1 and other['P(a needs fewer steps)'] == '' == other['IQM of the final return']
        nothing, = table.table(made(dict(a=[None])))
        assert nothing['seeds'] == 0 and nothing['final return'] == ''

    def test_files(self, made, tmp_path):
        lines = table.table(made(dict(a=self.three, b=self.three)))
        text = table.write_table(lines, str(tmp_path), ['a note'])
        assert (tmp_path / 'comparison.md').read_text() == text and '\n\na note\n\n' in text
        with open(tmp_path / 'comparison.csv') as f:
            assert [row['final return'] for row in csv.DictReader(f)] == ['11.00 (3.00 to 12.00)'] * 2
        tables = [part for part in text.split('\n\n') if part.startswith('|')]
        assert len(tables) == 2 and all(len(part.splitlines()) == 4 for part in tables)
        assert '95 % bootstrap interval' in text and 'in which a is better' in text
        few = table.write_table(table.table(made(dict(a=self.three[:2]))), str(tmp_path), [])
        assert 'need at least 3 seeds' in few and 'IQM' not in few


@pytest.mark.unittest
class TestPicture:

    def test_a_run_that_has_ended_stays_at_its_last_value(self):
        records = [record(0, 1.), record(10, 2.)]
        assert picture._on_grid(records, 'envstep', np.array([0, 5, 10, 100])).tolist() == [1, 1, 2, 2]

    def test_every_panel_is_drawn(self, made, tmp_path):
        """Left, middle and right third, against a picture without a run that has finished."""
        for name, evaluations in (('with', TestTable.three), ('without', [None] * 3)):
            picture.draw(made(dict(a=evaluations, b=evaluations)), str(tmp_path / f'{name}.png'))
        with_data, without = imread(tmp_path / 'with.png'), imread(tmp_path / 'without.png')
        assert with_data.shape == without.shape
        width = with_data.shape[1]
        for low, high in ((0.1, 0.3), (0.45, 0.7), (0.85, 0.99)):
            part = np.s_[60:-90, int(low * width):int(high * width)]
            assert (with_data[part] != without[part]).any(-1).sum() > 200


@pytest.mark.unittest
class TestRuns:

    def test_mode_and_order(self):
        names = [path_of(f'think_answer_{n}') for n in ('grpo', 'grpo_serial')]
        found = runs.plan(tuple(names), [0, 1], 'out')
        assert [(r.name, r.mode, r.seed) for r in found] == [
            ('think_answer_grpo', 'serial_onpolicy', 0), ('think_answer_grpo_serial', 'serial', 0),
            ('think_answer_grpo', 'serial_onpolicy', 1), ('think_answer_grpo_serial', 'serial', 1)
        ]
        with pytest.raises(ConfigError, match='has the name of'):
            runs.plan((names[0], names[0]), [0], 'out')

    def test_bars(self):
        names = tuple(path_of(f'{n}_grpo') for n in ('cartpole', 'acrobot'))
        assert runs.bar_warning(
            runs.plan(names, [0, 1], 'out')
        ).startswith('Warning: the bars (env.stop_value) differ: cartpole_grpo 475, acrobot_grpo -100. ')
        assert runs.bar_warning(runs.plan(names[:1], [0, 1], 'out')) == ''
        of_one = runs.plan(names, [0], 'out', bar=20)
        assert runs.bar_warning(of_one) == '' and {r.bar for r in of_one} == {20}
