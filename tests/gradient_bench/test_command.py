"""The command, its tables and its picture."""
import csv

import pytest
from click.testing import CliRunner

from ding_grpo.gradient_bench import main, table
from ding_grpo.gradient_bench.estimate import Bench

pytestmark = pytest.mark.unittest
SMALL = ['--length', '2', '--seeds', '0,1']


def run(tmp_path, *options):
    return CliRunner().invoke(main, [*SMALL, '--out', str(tmp_path), *options])


class TestCommand:

    def test_files(self, tmp_path):
        result = run(tmp_path, '--losses', 'dr_grpo,kl_cov', '--advantages', 'rloo,rloo by step', '--staleness', '0,1')
        assert result.exit_code == 0, result.output
        lines = list(csv.DictReader(open(tmp_path / 'gradient_bench.csv')))
        assert len(lines) == 2 * 2 * 2 * 2 * 2  # seeds, losses, advantages, group sizes, staleness
        unbiased = [line for line in lines if line['loss'] == 'dr_grpo' and float(line['staleness']) == 0]
        assert len(unbiased) == 8 and all(float(line['bias']) < 1e-10 for line in unbiased)
        # a group of 4 has 210 batches, more than --calls: kl_cov is sampled
        batches = {(line['loss'], line['group_size'], line['batches']) for line in lines}
        few = {('dr_grpo', '2', '28'), ('kl_cov', '2', '28')}
        assert batches == few | {('dr_grpo', '4', '210'), ('kl_cov', '4', '150')}
        assert all((float(line['standard_error']) > 0) == (line['batches'] == '150') for line in lines)
        text = (tmp_path / 'gradient_bench.md').read_text()
        assert text in result.output and '| `dr_grpo` | 0 | 0 |' in text and ' ± ' in text
        assert (tmp_path / 'gradient_bench.png').exists()

    def test_one_of_everything(self, tmp_path):
        options = '--losses grpo --advantages opo --group-sizes 3 --staleness 0.2 --prompts 2 --rewards 0,1'
        result = run(tmp_path, *options.split(), '--samples', '10')
        assert result.exit_code == 0, result.output
        assert 'rows are dropped' not in result.output
        assert '10' in {line['batches'] for line in csv.DictReader(open(tmp_path / 'gradient_bench.csv'))}

    @pytest.mark.parametrize(
        'options, message', [
            (['--losses', 'ppo'], "'ppo': must be among grpo, bnpo"),
            (['--advantages', 'rloo,gae'], "'gae': must be among"),
            (['--group-sizes', '1'], "'1': must be finite numbers of at least 2"),
            (['--group-sizes', 'two'], "'two': must be numbers"),
            (['--staleness', 'nan'], 'must be finite numbers of at least 0'),
            (['--seeds', '1,1'], 'contains a value twice'),
            (['--rewards', '1'], 'at least two values'),
            (['--extra-rows', '1', '--prompts', '2'], '1: needs --prompts 1'),
            (['--out', '/dev/null/x'], "'/dev/null/x'"),
        ]
    )
    def test_wrong_use(self, options, message, tmp_path):
        result = run(tmp_path, *options)
        assert result.exit_code == 2 and message in result.output


def line(**fields):
    other = dict(seed=0, loss='dr_grpo', advantage='rloo', staleness=0., group_size=2, kl=0.)
    return {**other, **dict(scale=0.5, noise=3., batch_cosine=0.25, bias=0., standard_error=0.), **fields}


class TestTable:

    def test_medians_by_hand(self):
        lines = [line(seed=seed, bias=bias) for seed, bias in enumerate((0.5, 0.1, 0.2))]
        lines += [line(loss='grpo', bias=1e-16), line(loss='bnpo', bias=0.3, standard_error=0.04)]
        text = table.tables(lines)
        assert '| `dr_grpo` | 0.50 | 3.00 | 0.25 | 0.200 |' in text
        assert '| `grpo` | 0.50 | 3.00 | 0.25 | 0 |' in text and '| `bnpo` | 0.50 | 3.00 | 0.25 | 0.30 ± 0.04 |' in text

    def test_first_where_the_default_is_not_measured(self):
        assert table.fixed([line(loss='gspo'), line(loss='grpo')], 'loss') == 'gspo'
        assert table.fixed([line(loss='gspo'), line()], 'loss') == 'dr_grpo'


def test_a_seed_gives_the_same_numbers_again():
    """Also those of the random draw of clip_cov, whatever happened to torch's own random numbers."""
    bench = Bench(losses=['clip_cov'], methods=['rloo'], group_sizes=[4], staleness=[0.], rewards=(0., 10.), calls=40)
    assert list(bench.run(3)) == list(bench.run(3))
