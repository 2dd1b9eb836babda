"""What ``ding``'s other mode and its options do with this plugin's configs."""
import glob
import os
import shutil

import pytest
import torch
from click.testing import CliRunner
from ding.entry.cli import cli

from ding_common import read_json_lines
from ding_grpo.evaluate import GroupEvaluator
from tests.cases import long
from tests.shipped import load, write

STEPS = dict(evaluator_env_num=3, n_evaluator_episode=3, env_kwargs=dict(max_episode_steps=15))

SMALL_PPO = dict(env=dict(collector_env_num=32), policy=dict(collect=dict(n_sample=320)))


@pytest.fixture
def ding(tmp_path, monkeypatch):
    """``ding`` with a shipped config made small: (config, options) -> what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name, *options, env=STEPS):
        sizes = SMALL_PPO if name == 'think_answer_ppo' else dict(env=env)
        write(f'{name}_config.py', load(name, **dict(sizes, exp_name='run', env=dict(sizes['env'], stop_value=1e9))))
        result = CliRunner().invoke(cli, ['-c', f'{name}_config.py', *options])
        assert result.exception is None, result.output
        return result.output

    return run


@pytest.mark.envtest
class TestEval:

    @pytest.mark.parametrize(
        'name, env', [
            ('cartpole_grpo', STEPS),
            ('cartpole_ppo', STEPS),
            ('pendulum_ppo', STEPS),
            ('think_answer_grpo', {}),
            ('think_answer_ppo', {}),
        ],
        ids=lambda v: v if isinstance(v, str) else ''
    )
    def test_finds_what_training_found(self, ding, monkeypatch, name, env):
        # starts depend on the update, and ``eval`` has those of update 0
        monkeypatch.setattr(GroupEvaluator, 'evaluate_end', lambda *args: None)
        ding(name, '-m', 'serial_onpolicy', '--train-iter', '1', '-s', '3', env=env)
        best, = read_json_lines('run/log/evaluator/evaluations.jsonl')
        before, records = sorted(os.listdir()), []
        monkeypatch.setattr('ding_grpo.evaluate.evaluator.append_json', lambda path, record: records.append(record))
        out = ding(name, '-m', 'eval', '-s', '3', '--load-path', 'run/ckpt/ckpt_best.pth.tar', env=env)
        assert (sorted(os.listdir()) == before) == name.endswith('grpo')  # of which it leaves no folder
        found, = records
        assert found['eval_episode_return'] == best['eval_episode_return']
        assert f'evaluation  return {found["eval_episode_return"]:.3f}' in out and 'Eval is over!' in out
        assert found.get('completions') == best.get('completions')

    def test_what_cannot_be_evaluated(self, ding):
        ding('think_answer_grpo', '-m', 'serial_onpolicy', '--train-iter', '1', env={})
        text = open('think_answer_grpo_config.py').read()
        for name, end in (
            ('other', 'main_config.policy.model.config.hidden_size = 64'),
            ('misspelt', "create_config.env_manager.type = 'bas'"),
            ('none', 'main_config.policy.learn = 5'),
        ):
            with open(f'{name}.py', 'w') as f:
                f.write(f'{text}\n{end}\n')
        os.makedirs('broken')
        shutil.copy('run/ckpt/ckpt_best.pth.tar', 'broken/cut')
        os.truncate('broken/cut', 1000)
        torch.save(dict(model=Code()), 'broken/code')
        torch.save(dict(x=1), 'broken/empty')
        before = sorted(os.listdir())
        for config, path, message in (
            ('think_answer_grpo_config.py', 'broken/cut', 'the checkpoint broken/cut is damaged'),
            ('think_answer_grpo_config.py', 'broken/none', 'there is no checkpoint broken/none'),
            ('think_answer_grpo_config.py', 'broken/code', 'contains more than tensors'),
            ('think_answer_grpo_config.py', None, '--load-path: missing'),
            ('none.py', None, 'policy.learn = 5: must be a dict'),
            ('misspelt.py', 'run/ckpt/ckpt_best.pth.tar', "create_config.env_manager.type = 'bas'"),
            ('other.py', 'run/ckpt/ckpt_best.pth.tar', 'policy.model = '),
            ('think_answer_grpo_config.py', 'broken/empty', 'policy.model = '),
        ):
            assert sorted(os.listdir()) == before, path  # but for the last two, which are known once there is a model
            options = ['-m', 'eval', '-c', config, '-s', '0'] + (['--load-path', path] if path else [])
            result = CliRunner().invoke(cli, options)
            last = result.output.splitlines()[-1]
            assert result.exit_code == 1 and last.startswith('Error: ') and message in last, result.output
            if message == 'policy.model = ':
                before = sorted(os.listdir())
        assert not os.path.exists('executed')


class Code:

    def __reduce__(self):
        return os.mkdir, ('executed', )


@pytest.mark.envtest
class TestOptions:

    @pytest.mark.parametrize(
        'mode, name', [
            ('serial_onpolicy', 'cartpole_grpo'),
            long('serial', 'think_answer_grpo_serial'),
        ]
    )
    def test_several_seeds_and_a_name(self, ding, mode, name):
        env = STEPS if name.startswith('cartpole') else {}
        ding(name, '-m', mode, '-s', '0', '-s', '1', '--train-iter', '2', '--exp-name', 'two', env=env)
        runs = sorted(glob.glob('two/seed*/two/log/learner/metrics.jsonl'))
        assert len(runs) == 2
        first, second = (read_json_lines(path) for path in runs)
        assert 2 <= len(first) == len(second) and first[0]['reward_mean'] != second[0]['reward_mean']

    @pytest.mark.parametrize(
        'mode, name', [
            ('serial_onpolicy', 'think_answer_grpo'),
            long('serial', 'think_answer_grpo_serial'),
        ]
    )
    def test_environment_steps_are_tokens(self, ding, mode, name):
        ding(name, '-m', mode, '--env-step', '5000', env={})
        metrics = read_json_lines('run/log/learner/metrics.jsonl')
        assert metrics[-1]['envstep'] >= 5000 > metrics[-1]['envstep'] - 16 * 16 * 10
