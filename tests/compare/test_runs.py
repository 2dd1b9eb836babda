import csv
import os
import runpy

import pytest
from click.testing import CliRunner

from ding_grpo import compare
from tests.runs import evaluations
from tests.shipped import load, write

pytestmark = [pytest.mark.envtest, pytest.mark.usefixtures('own_folder')]
OFTEN = 'main_config.policy.eval.evaluator.eval_freq = 2'


def cartpole(algo, name, code=''):
    env = dict(evaluator_env_num=2, n_evaluator_episode=2, stop_value=20, env_kwargs=dict(max_episode_steps=25))
    return write(f'{name}.py', load(f'cartpole_{algo}', env=env), code)


def call(*args):
    return CliRunner().invoke(compare.main, list(args))


def table(folder):
    with open(f'{folder}/comparison.csv') as f:
        return list(csv.DictReader(f))


def test_table_picture_and_resuming():
    files = [
        cartpole('grpo', 'grpo_config', OFTEN),
        cartpole('ppo', 'ppo_config', 'main_config.policy.collect.groups = 64\nmain_config.env.stop_value = 21'),
    ]
    options = ['--seeds', '0', '--jobs', '2', '--out', 'out', '--env-step', '2000']
    result = call(*files, *options)
    assert result.exit_code == 0, result.output
    assert result.output.count('started') == 2 and result.output.count('finished') == 2
    lines = table('out')
    assert [line['algorithm'] for line in lines] == ['grpo', 'ppo'] and lines[0]['bar'] == '20'
    for line in lines:
        best, final = (float(line[f'{name} return'].split()[0]) for name in ('best', 'final'))
        last = evaluations(f'out/{line["algorithm"]} seed 0')[-1]
        assert 5 < final <= best and final == pytest.approx(last['eval_episode_return'], abs=0.005)
    page = open('out/comparison.md').read()
    assert open('out/comparison.png', 'rb').read(4) == b'\x89PNG' and '| grpo |' in page
    assert result.output.splitlines()[-1].startswith('table: out/comparison.md, ')
    warning = 'Warning: the bars (env.stop_value) differ: grpo 20, ppo 21.'
    assert warning in result.output and warning in page
    again = call(*files, *options)
    assert again.exit_code == 0 and '2 of 2 runs are already done' in again.output and 'started' not in again.output
    for changed, name in (('--env-step', '--env-step'), ('--bar', 'config')):
        other = call(*files, *options, changed, '30')
        assert other.exit_code == 1 and f'out/grpo seed 0: this run finished with another {name}.' in other.output


@pytest.mark.algotest
def test_a_list_of_values_makes_a_run_for_each_and_one_bar_ends_all():
    file = cartpole('grpo', 'grpo_config', OFTEN)
    keys = ['policy.learn.clip.ratio=0.2,0.3', 'env.stop_value=475']
    result = call(
        file, *keys, '--seeds', '0', '--jobs', '2', '--out', 'out', '--env-step', '3000', '--bar', '9', '--paired'
    )
    assert result.exit_code == 0 and 'Warning: the bars' not in result.output, result.output
    lines = table('out')
    assert [line['algorithm'] for line in lines] == ['grpo ratio=0.2', 'grpo ratio=0.3']
    for line in lines:
        folder = f'out/{line["algorithm"]} seed 0'
        main = runpy.run_path(f'{folder}/total_config.py')['exp_config']
        assert main['policy']['learn']['clip']['ratio'] == float(line['algorithm'][-3:])
        assert line['bar'] == '9.0' and line['solved'] == '1'
        records = evaluations(folder)
        reached = [r['eval_episode_return'] >= 9 and r['train_iter'] > 0 for r in records]
        assert reached.index(True) == len(records) - 1  # and the run ends there
    text = open('out/comparison.md').read()
    assert '`env.stop_value=475`' in text and '| grpo ratio=0.3 | 1 |  |' in text


@pytest.mark.algotest
def test_a_run_that_fails_is_named(tmp_path):
    file = cartpole('grpo', 'wrong', "main_config.policy.learn.clip_ratoi = 1")
    result = call(file, '--seeds', '3', '--out', str(tmp_path / 'out'))
    assert result.exit_code == 1 and 'wrong seed 3 (out/wrong seed 3.txt)' in result.output
    assert 'clip_ratoi' in open('out/wrong seed 3.txt').read()
    assert 'Failed and not in the table: wrong seed 3.' in open('out/comparison.md').read()


@pytest.mark.parametrize(
    'change, options, message', [
        ('', ('--seeds', '0,0'), "'--seeds': '0,0': contains a value twice"),
        ('', ('--seeds', '0,x'), "'--seeds': '0,x': must be integers"),
        ('', ('--bar', 'nan'), '--bar: nan: must be finite'),
        ('', ('--out', 'c.py'), "--out: 'c.py': File exists"),
        ('main_config.policy.other = 5', (), 'c.py: policy.other = 5: must be a dict'),
        ("main_config.env.stop_value = 'x'", (), "c.py: env.stop_value = 'x': must be a number"),
    ]
)
def test_wrong_use_ends_in_one_line(change, options, message):
    result = call(cartpole('grpo', 'c', change), *options)
    assert result.exit_code != 0 and message in result.output.splitlines()[-1], result.output
    assert not os.path.exists('runs')


def test_keys_need_a_config():
    assert call('env.stop_value=9').exit_code == 2
