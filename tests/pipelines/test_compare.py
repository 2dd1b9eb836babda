import csv
import os

import pytest
from click.testing import CliRunner

from ding_common import ConfigError
from ding_grpo import compare

from tests.shipped import load, path_of, write


def cartpole(algo, folder, name, code=''):
    env = dict(evaluator_env_num=2, n_evaluator_episode=2, stop_value=20, env_kwargs=dict(max_episode_steps=25))
    return write(folder / f'{name}_config.py', load(f'cartpole_{algo}', env=env), code)


def call(*args):
    return CliRunner().invoke(compare.main, list(args))


@pytest.mark.envtest
class TestCompare:

    def test_table_picture_and_resuming(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        files = [
            cartpole('grpo', tmp_path, 'grpo', 'main_config.policy.eval.evaluator.eval_freq = 2'),
            cartpole('ppo', tmp_path, 'ppo', 'main_config.policy.collect.n_sample = 64'),
        ]
        options = ['--seeds', '0', '--jobs', '2', '--out', 'out', '--env-step', '2000']
        result = call(*files, *options)
        assert result.exit_code == 0, result.output
        assert result.output.count('started') == 2 and result.output.count('finished') == 2
        lines = list(csv.DictReader(open('out/comparison.csv')))
        assert [line['algorithm'] for line in lines] == ['grpo', 'ppo'] and lines[0]['bar'] == '20'
        assert all(float(line['best return'].split()[0]) > 5 for line in lines)
        assert open('out/comparison.png', 'rb').read(4) == b'\x89PNG' and '| grpo |' in open('out/comparison.md').read()
        again = call(*files, *options)
        assert again.exit_code == 0 and '2 of 2 runs are already done' in again.output and 'started' not in again.output

    def test_a_run_that_fails_is_named(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        file = cartpole('grpo', tmp_path, 'wrong', "main_config.policy.learn.clip_ratoi = 1")
        result = call(file, '--seeds', '3', '--out', str(tmp_path / 'out'))
        assert result.exit_code == 1 and 'wrong seed 3 (out/wrong seed 3.txt)' in result.output
        assert 'clip_ratoi' in open('out/wrong seed 3.txt').read()

    @pytest.mark.parametrize(
        'change, options, message', [
            ('', ('--seeds', '0,0'), "--seeds: '0,0': contains a seed twice"),
            ('', ('--seeds', '0,x'), "--seeds: '0,x': must be integers"),
            ('', ('--out', 'c.py'), "--out: 'c.py': File exists"),
            ('main_config.policy.other = 5', (), 'c.py: policy.other = 5: must be a dict'),
            ("main_config.env.stop_value = 'x'", (), "c.py: env.stop_value = 'x': must be a number"),
        ]
    )
    def test_wrong_use_ends_in_one_line(self, tmp_path, monkeypatch, change, options, message):
        monkeypatch.chdir(tmp_path)
        file = cartpole('grpo', tmp_path, 'c', change)
        os.rename(file, 'c.py')
        result = call('c.py', *options)
        assert result.exit_code != 0 and message in result.output.splitlines()[-1], result.output
        assert not os.path.exists('runs')


@pytest.mark.envtest
class TestParts:

    def evaluations(self, monkeypatch, of_seed):
        monkeypatch.setattr(compare.Run, 'evaluations', lambda self: of_seed[self.seed])
        return [compare.Run('a', 'a.py', 'serial', seed, f'out/{seed}', 10.) for seed in of_seed]

    def test_table_by_hand(self, monkeypatch):

        def record(step, value):
            return dict(envstep=step, seconds=step / 10, eval_episode_return=value)

        runs = self.evaluations(
            monkeypatch, {
                0: [record(0, 1.), record(50, 11.)],
                1: [record(0, 12.)],
                2: [record(0, 1.), record(50, 9.)]
            }
        )
        line, = compare.table(runs)
        assert (line['seeds'], line['solved']) == (3, 2)
        assert line['environment steps to the bar'] == '25 (0 to 50)' and line['seconds to the bar'
                                                                               ] == '2.5 (0.0 to 5.0)'
        assert line['best return'] == '11.00 (9.00 to 12.00)'

    def test_a_run_that_has_ended_stays_at_its_last_value(self):
        records = [dict(envstep=s, eval_episode_return=v) for s, v in ((0, 1.), (10, 2.))]
        assert compare._on_grid(records, 'envstep', [0, 5, 10, 100]).tolist() == [1, 1, 2, 2]

    def test_mode_and_order(self):
        names = [path_of(f'think_answer_{n}') for n in ('grpo', 'grpo_serial')]
        runs = compare.plan(tuple(names), [0, 1], 'out')
        assert [(r.name, r.mode, r.seed) for r in runs] == [
            ('think_answer_grpo', 'serial_onpolicy', 0), ('think_answer_grpo_serial', 'serial', 0),
            ('think_answer_grpo', 'serial_onpolicy', 1), ('think_answer_grpo_serial', 'serial', 1)
        ]
        with pytest.raises(ConfigError, match='has the name of'):
            compare.plan((names[0], names[0]), [0], 'out')
