"""What ``ding``'s other mode and its options do with this plugin's configs."""
import glob
import os
import re
import runpy
import shutil

import pytest
import torch
from click.testing import CliRunner
from ding.entry.cli import cli

from ding_grpo.__main__ import command
from ding_grpo.config.key import value_at
from ding_grpo.evaluate import GroupEvaluator
from tests.cases import long
from tests.runs import evaluations, metrics
from tests.shipped import load, write

pytestmark = pytest.mark.envtest
STEPS = dict(env=dict(evaluator_env_num=3, n_evaluator_episode=3, env_kwargs=dict(max_episode_steps=15)))
SIZES = dict(
    think_answer_grpo={},
    think_answer_ppo=dict(env=dict(collector_env_num=32), policy=dict(collect=dict(n_sample=320))),
)


@pytest.fixture
def ding(own_folder):
    """``ding`` with a shipped config made small: (config, options) -> what it printed."""

    def run(name, *options):
        main, create = load(name, **dict(SIZES.get(name, STEPS), exp_name='run'))
        main.env.stop_value = 1e9
        result = CliRunner().invoke(cli, ['-c', write(f'{name}_config.py', (main, create)), *options])
        assert result.exception is None, result.output
        return result.output

    return run


@pytest.mark.parametrize('name', [long('cartpole_grpo'), 'pendulum_ppo', 'think_answer_grpo', long('think_answer_ppo')])
def test_eval_finds_what_training_found(ding, monkeypatch, name):
    # starts depend on the update, and ``eval`` has those of update 0
    monkeypatch.setattr(GroupEvaluator, 'evaluate_end', lambda *args: None)
    ding(name, '-m', 'serial_onpolicy', '--train-iter', '1', '-s', '3')
    best, = evaluations()
    before, records = sorted(os.listdir()), []
    monkeypatch.setattr('ding_grpo.evaluate.evaluator.append_json', lambda path, record: records.append(record))
    out = ding(name, '-m', 'eval', '-s', '3', '--load-path', 'run/ckpt/ckpt_best.pth.tar')
    assert (sorted(os.listdir()) == before) == name.endswith('grpo')  # of which it leaves no folder
    found, = records
    assert found['eval_episode_return'] == best['eval_episode_return']
    assert f'evaluation  return {found["eval_episode_return"]:.3f}' in out and 'Eval is over!' in out
    assert found.get('completions') == best.get('completions')


@pytest.mark.parametrize('name', ['cartpole_grpo', long('cartpole_ppo')])
def test_eval_films_each_episode(ding, name):
    clip = pytest.importorskip('moviepy').VideoFileClip
    ding(name, '-m', 'serial_onpolicy', '--train-iter', '1', '-s', '3')
    out = ding(name, '-m', 'eval', '-s', '3', '--load-path', 'run/ckpt/ckpt_best.pth.tar', '--replay-path', 'video')
    steps = 3 * float(re.search(r'evaluation  return ([0-9.]+)', out).group(1))
    frames = []
    for path in glob.glob('video/*.mp4'):
        with clip(path) as film:
            frames.append(film.n_frames)
    assert len(frames) == 3 and sum(frames) == pytest.approx(steps + 3, abs=0.01)  # of each step, and of the start


class Code:

    def __reduce__(self):
        return os.mkdir, ('executed', )


def test_what_cannot_be_evaluated(ding):
    best, config = 'run/ckpt/ckpt_best.pth.tar', 'think_answer_grpo_config.py'
    ding('think_answer_grpo', '-m', 'serial_onpolicy', '--train-iter', '1')
    shutil.copy(config, 'other.py')
    with open('other.py', 'a') as f:
        f.write('\nmain_config.policy.model.config.hidden_size = 64\n')
    torch.save(dict(model=Code()), 'code')
    torch.save(dict(x=1), 'empty')
    before = sorted(os.listdir())
    for config, path, message in (
        (config, 'none', 'there is no checkpoint none'),
        (config, 'code', 'contains more than tensors'),
        (config, None, '--load-path: missing'),
        ('other.py', best, 'policy.model = '),
        (config, 'empty', 'policy.model = '),
    ):
        options = ['-m', 'eval', '-c', config, '-s', '0'] + (['--load-path', path] if path else [])
        result = CliRunner().invoke(cli, options)
        last = result.output.splitlines()[-1]
        assert result.exit_code == 1 and last.startswith('Error: ') and message in last, result.output
        # but for the last two, which are known once there is a model
        assert sorted(os.listdir()) == before or message == 'policy.model = ', path
    assert not os.path.exists('executed')


def test_several_seeds_and_a_name(ding):
    ding('cartpole_grpo', *'-m serial_onpolicy -s 0 -s 1 --train-iter 2 --exp-name two'.split())
    first, second = (metrics(run) for run in sorted(glob.glob('two/seed*/two')))
    assert 2 <= len(first) == len(second) and first[0]['reward_mean'] != second[0]['reward_mean']


def test_environment_steps_are_tokens(ding):
    ding('think_answer_grpo', '-m', 'serial_onpolicy', '--env-step', '2000')
    assert metrics()[-1]['envstep'] >= 2000 > metrics()[-1]['envstep'] - 16 * 16 * 10


@pytest.mark.parametrize('policy, size', [('grpo', 'group_size'), ('ppo', 'learn.batch_size')])
def test_a_config_by_environment_and_policy_with_other_keys(own_folder, policy, size):
    """DI-engine's of its own policies; the shipped one of others."""
    keys = [f'policy.{size}=6', 'exp_name=run', 'env.stop_value=9']
    result = CliRunner().invoke(command(), ['-m', 'serial_onpolicy', '-e', 'cartpole', '-p', policy, '-s', '0', *keys])
    assert result.exception is None, result.output
    main = runpy.run_path('run/total_config.py')['exp_config']
    assert value_at(main['policy'], size) == 6 and main['env']['stop_value'] == 9
    if policy == 'grpo':  # what follows from the changed key
        assert main['env']['collector_env_num'] == 6 * main['policy']['collect']['groups']
