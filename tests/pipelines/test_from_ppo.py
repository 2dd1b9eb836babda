"""Configs of DI-engine's PPO become configs of grpo: refused as they are, converted, trained."""
import glob
import os
import shutil

import dizoo
import pytest
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from ding.entry.cli import cli
from easydict import EasyDict

from ding_common import ConfigError, read_config_file, read_json_lines
from ding_grpo import from_ppo
from ding_grpo.from_ppo import Source, convert, write
from ding_grpo.policy.ppo_keys import PPO_KEYS, check_ppo_keys

DIZOO = os.path.dirname(dizoo.__file__)
PPO = ('cartpole_ppo', 'cartpole_ppo_ddp', 'pendulum_ppo', 'lunarlander_ppo', 'bipedalwalker_ppo')
OTHERS = dict(
    cartpole_ppo_offpolicy="policy.type = 'ppo_offpolicy'",
    cartpole_ppopg="policy.type = 'ppo_pg'",
    cartpole_ppo_stdim="policy.type = 'ppo_stdim'",
    cartpole_ppo_icm="policy.type = 'ppo_offpolicy'",
    cartpole_trex_onppo='a config with a reward model',
    lunarlander_rnd_onppo='a config with a reward model',
    cartpole_dqn="policy.type = 'dqn'",
)


def shipped(name):
    """Of DI-engine."""
    path, = glob.glob(f'{DIZOO}/*/*/config/{name}_config.py')
    if 'box2d' in path:
        pytest.importorskip('Box2D')
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def converted(name):
    shutil.copy(shipped(name), f'{name}_config.py')
    result = CliRunner().invoke(from_ppo.main, [f'{name}_config.py'])
    assert result.exit_code == 0, result.output
    return f"{name.replace('ppo', 'grpo')}_config.py"


@pytest.mark.envtest
class TestShippedConfigs:

    @pytest.mark.parametrize('name', PPO)
    def test_converted_it_trains(self, folder, name):
        main, create = read_config_file(converted(name))
        main.env.update(n_evaluator_episode=1, evaluator_env_num=1)
        main.exp_name, main.policy.cuda, main.policy.multi_gpu = 'run', False, False
        main.policy.collect.n_sample = min(main.policy.collect.n_sample, 2)
        main.policy.learn.epoch_per_collect = 1
        if 'env_id' in main.env:  # episodes of up to 1,600 steps
            main.policy.group_size, main.env.collector_env_num = 2, 2
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=2)
        metrics = read_json_lines('run/log/learner/metrics.jsonl')
        assert len(metrics) == 2 and max(m['grad_norm'] for m in metrics) > 0
        assert sum(m['optimizer_steps'] for m in metrics) >= 2

    @pytest.mark.algotest
    @pytest.mark.parametrize('name', ['cartpole_ppo', 'pendulum_ppo'])
    def test_it_reaches_the_stop_value_of_ppo(self, folder, name):
        main, create = read_config_file(converted(name))
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=200)
        last = read_json_lines(f'{main.exp_name}/log/evaluator/evaluations.jsonl')[-1]
        assert last['eval_episode_return'] >= main.env.stop_value

    @pytest.mark.parametrize('name, message', OTHERS.items())
    def test_others_end_in_one_sentence(self, folder, name, message):
        shutil.copy(shipped(name), f'{name}_config.py')
        before = os.listdir()
        result = CliRunner().invoke(from_ppo.main, [f'{name}_config.py'])
        assert result.exit_code == 1 and message in result.output and os.listdir() == before
        assert len(result.output.strip().splitlines()) == 1


@pytest.mark.envtest
class TestTypeChanged:

    @pytest.fixture
    def config(self, folder):
        main, create = read_config_file(shipped('cartpole_ppo'))
        create.policy.type, main.exp_name = 'grpo', 'run'
        return main, create

    def test_one_error_lists_all_keys(self, config):
        with pytest.raises(ConfigError) as caught:
            serial_pipeline_onpolicy(config, seed=0)
        for key in ('policy.action_space', 'policy.learn.value_weight', 'policy.collect.gae_lambda', 'from_ppo'):
            assert key in caught.value.message
        assert not os.path.exists('run')

    def test_steps_in_place_of_groups(self, config):
        main, create = config
        for section, key in ((main.policy, 'action_space'), (main.policy.learn, 'value_weight'), (main.policy.collect,
                                                                                                  'gae_lambda')):
            section.pop(key)
        with pytest.raises(ConfigError, match='n_sample = 256: counts groups, not steps. 256 groups x 8 = 2,048 epis'):
            serial_pipeline_onpolicy((main, create), seed=0)
        assert not os.path.exists('run')  # the next run gets its name
        main.policy.collect.max_episodes_per_env = 256
        main.policy.collect.n_sample = main.policy.learn.batch_size = 17
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        assert len(read_json_lines('run/log/learner/metrics.jsonl')) == 1

    def test_a_refused_run_leaves_an_earlier_one_alone(self, config):
        main, create = config
        os.makedirs('run/log')
        with pytest.raises(ConfigError):
            serial_pipeline_onpolicy((main, create), seed=0)
        assert os.listdir() == ['run'] and os.listdir('run') == ['log']

    def test_without_a_collector_it_is_group(self, folder):
        with open(converted('cartpole_ppo')) as f:
            text = f.read().replace("collector=dict(\n        type='group',\n    ),", '')
        assert "type='group'" not in text
        (folder / 'c.py').write_text(text.replace('n_evaluator_episode=5', 'n_evaluator_episode=1').replace('=5', '=1'))
        ended = CliRunner().invoke(cli, ['-m', 'serial_onpolicy', '-c', 'c.py', '--train-iter', '1'])
        assert ended.exception is None and '2 groups x 8 = 16 episodes an update, batches of 1 groups' in ended.output


@pytest.mark.unittest
class TestConvert:

    def ppo(self, **policy):
        main = EasyDict(exp_name='x', env=dict(collector_env_num=10), policy=dict(model=dict(obs_shape=1), **policy))
        return main, EasyDict(policy=dict(type='ppo'), env=dict(type='e'), env_manager=dict(type='base'))

    def test_sizes_by_hand(self):
        main, create = self.ppo(
            learn=dict(batch_size=64, epoch_per_collect=2),
            collect=dict(n_sample=4096),
            eval=dict(evaluator=dict(eval_freq=1280))
        )
        found = convert(main, create, length=100.)
        policy = found.main['policy']
        assert policy['collect']['n_sample'] == 6  # 4096 / (8 x 100) = 5.1
        assert policy['eval']['evaluator']['eval_freq'] == 10  # 1280 / (2 x 4096 / 64)
        assert found.main['env']['collector_env_num'] == 16 and found.main['exp_name'] == 'x_grpo'

    @pytest.mark.parametrize('length, groups', [(1., 16), (1e6, 2)])
    def test_bounds(self, length, groups):
        found = convert(*self.ppo(collect=dict(n_sample=4096)), length)
        assert found.main['policy']['collect']['n_sample'] == groups

    def test_what_is_left_is_known_to_grpo(self):
        policy = {}
        for path in PPO_KEYS:
            *sections, key = path.split('.')
            section = policy
            for name in sections:
                section = section.setdefault(name, {})
            section[key] = 1
        with pytest.raises(ConfigError) as caught:
            check_ppo_keys(policy)
        assert all(f'policy.{path} = 1 (' in caught.value.message for path in PPO_KEYS)
        found = convert(*self.ppo(**policy), 10.)
        check_ppo_keys(found.main['policy'])
        assert 'lr_scheduler' not in found.main['policy']['learn']

    def test_values_that_are_objects_survive(self):
        text = 'import torch.nn as nn\nimport os\nmain_config = dict(a=dict(b=nn.Tanh(), c=[1, (2,)], d={"x y": None}))'
        names = {}
        exec(text, names)
        source = Source(text)
        written = write(names['main_config'], source, {'a.b': 'a comment'})
        assert source.used_imports() == 'import torch.nn as nn\n' and '# a comment\n' in written
        again = {}
        exec(source.used_imports() + 'again = ' + written, again)
        assert repr(again['again']) == repr(names['main_config'])

    def test_an_object_that_code_made(self):
        source = Source('import torch\nmade = torch.nn.Tanh()\nmain_config = dict(a=made)')
        with pytest.raises(ConfigError, match=r'main_config.a = .*: cannot be written to a file'):
            write(dict(a=object()), source, {})

    def test_a_file_that_exists_is_kept(self, folder):
        out = converted('cartpole_ppo')
        (folder / out).write_text('mine')
        result = CliRunner().invoke(from_ppo.main, ['cartpole_ppo_config.py'])
        assert result.exit_code == 1 and '--overwrite' in result.output and (folder / out).read_text() == 'mine'
        assert CliRunner().invoke(from_ppo.main, ['cartpole_ppo_config.py', '--overwrite']).exit_code == 0
        assert (folder / out).read_text() != 'mine'
