"""The command, its tables and its picture."""
import csv

import pytest
from click.testing import CliRunner

from ding_grpo.gradient_bench import main, table
from ding_grpo.gradient_bench.estimate import Bench


def run(folder, *options):
    """The result of the command, and the lines of its file."""
    result = CliRunner().invoke(main, ['--length', '2', '--seeds', '0,1', '--out', str(folder), *options])
    path = folder / 'gradient_bench.csv'
    return result, list(csv.DictReader(open(path))) if path.exists() else []


def test_files(tmp_path):
    options = '--losses dr_grpo,kl_cov --advantages rloo --staleness 0,1'.split()
    result, lines = run(tmp_path, *options)
    assert result.exit_code == 0, result.output
    assert len(lines) == 2 * 2 * 2 * 2  # seeds, losses, group sizes, staleness
    unbiased = [line for line in lines if line['loss'] == 'dr_grpo' and float(line['staleness']) == 0]
    assert len(unbiased) == 4 and all(float(line['bias']) < 1e-10 for line in unbiased)
    # a group of 4 has 210 batches, more than --calls: kl_cov is sampled
    batches = {(line['loss'], line['group_size'], line['batches']) for line in lines}
    few = {('dr_grpo', '2', '28'), ('kl_cov', '2', '28')}
    assert batches == few | {('dr_grpo', '4', '210'), ('kl_cov', '4', '150')}
    assert all((float(line['standard_error']) > 0) == (line['batches'] == '150') for line in lines)
    text = (tmp_path / 'gradient_bench.md').read_text()
    assert text in result.output and '| `dr_grpo` | 0 |' in text and ' ± ' in text
    assert (tmp_path / 'gradient_bench.png').exists()


def test_one_of_everything_without_the_defaults_of_the_tables(tmp_path):
    options = '--losses grpo --advantages opo --group-sizes 3 --staleness 0.2 --prompts 2 --rewards 0,1 --samples 10'
    result, lines = run(tmp_path, *options.split())
    assert result.exit_code == 0, result.output
    assert 'rows are dropped' not in result.output and {line['batches'] for line in lines} == {'10'}


def test_trees(tmp_path):
    result, lines = run(tmp_path, '--trees', *'--vocabulary 2 --length 3 --group-sizes 2,4 --reward-of last'.split())
    assert result.exit_code == 0, result.output
    names = ('bundle', 'tokens [1]', 'tokens [2]', 'entropy', 'sentences', 'entropy of the whole row')
    assert [(g, t) for g, t in dict.fromkeys((line['group_size'], line['tree'])
                                             for line in lines)] == [('2', 'bundle'), *(('4', name) for name in names)]
    assert '| tokens [1] | 4 |' in result.output and 'The last two tokens decide the reward.' in result.output
    assert all(
        float(line['bias']) < 1e-9 for line in lines
        if line['advantage'] == 'rloo' and line['loss'] == 'dr_grpo' and line['tree'] != 'entropy of the whole row'
    )
    assert (tmp_path / 'gradient_bench.png').exists()


def test_trees_with_extra_rows(tmp_path):
    options = '--trees --vocabulary 2 --length 3 --group-sizes 3 --extra-rows 1 --samples 50'.split()
    result, lines = run(tmp_path, *options)
    assert result.exit_code == 0, result.output
    assert '| tokens [1] | 3 |' in result.output and 'Of G + 1 sampled rows, the longest 1 are dropped' in result.output
    assert not any(line['advantage'].startswith('each row once') for line in lines)


@pytest.mark.parametrize(
    'options, message', [
        (['--losses', 'ppo'], "'ppo': must be among grpo, bnpo"),
        (['--group-sizes', '1'], "'1': must be finite numbers of at least 2"),
        (['--group-sizes', 'two'], "'two': must be integers"),
        (['--staleness', 'nan'], 'must be finite numbers of at least 0'),
        (['--seeds', '1,1'], 'contains a value twice'),
        (['--rewards', '1'], 'at least two values'),
        (['--extra-rows', '1', '--prompts', '2'], '1: needs --prompts 1'),
        (['--trees'], 'a --length of at least 3'),
        (['--trees', '--length', '3', '--self-teacher'], 'only one can be measured at a time'),
        (['--trees', '--length', '3', '--group-sizes', '2,5'], 'a multiple of --branches and at least 4'),
        (['--out', '/dev/null/x'], "'/dev/null/x'"),
    ]
)
def test_wrong_use(options, message, tmp_path):
    result, _ = run(tmp_path, *options)
    assert result.exit_code == 2 and message in result.output


def test_medians_by_hand():
    other = dict(advantage='rloo', staleness=0., group_size=2, scale=0.5, noise=3., batch_cosine=0.25)
    lines = [
        dict(other, loss=loss, bias=bias, standard_error=error) for loss, bias, error in (
            ('dr_grpo', 0.5, 0.),
            ('dr_grpo', 0.1, 0.),
            ('dr_grpo', 0.2, 0.),
            ('grpo', 1e-16, 0.),
            ('bnpo', 0.3, 0.04),
        )
    ]
    text = table.tables(lines)
    assert '| `dr_grpo` | 0.50 | 3.00 | 0.25 | 0.200 |' in text
    assert '| `grpo` | 0.50 | 3.00 | 0.25 | 0 |' in text and '| `bnpo` | 0.50 | 3.00 | 0.25 | 0.30 ± 0.04 |' in text


def test_a_seed_gives_the_same_numbers_again():
    """Also those of the random draw of clip_cov, whatever happened to torch's own random numbers."""
    bench = Bench(['clip_cov'], ['rloo'], group_sizes=[4], staleness=[0.], rewards=(0., 10.), calls=40)
    assert list(bench.run(3)) == list(bench.run(3))
