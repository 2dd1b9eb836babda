"""Configs of DI-engine's PPO become configs of grpo: refused as they are, converted, trained."""
import glob
import os
import re
import shutil

import dizoo
import pytest
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from ding.entry.cli import cli
from easydict import EasyDict

from ding_common import ConfigError, TaskError, read_config_file, read_json_lines
from ding_grpo import from_ppo
from ding_grpo.config.ppo_keys import PPO_KEYS, check_ppo_keys
from ding_grpo.from_ppo import Source, convert, write

DIZOO = os.path.dirname(dizoo.__file__)
# Each config of DI-engine's on-policy PPO: it is converted and starts, or is refused in a line with these words.
TABLE = dict(
    enduro_onppo=None,
    pong_ppo=None,
    pong_ppo_ddp=None,
    qbert_onppo=None,
    spaceinvaders_onppo=None,
    bipedalwalker_ppo=None,
    lunarlander_ppo=None,
    cartpole_ppo=None,
    cartpole_ppo_ddp=None,
    pendulum_ppo=None,
    ant_ppo=None,
    ant_onppo=None,
    halfcheetah_onppo=None,
    hopper_onppo=None,
    walker2d_onppo=None,
    coinrun_ppo=None,
    maze_ppo=None,
    rocket_hover_ppo=None,
    rocket_landing_ppo=None,
    lunarlander_gcl='a config with a reward model',
    lunarlander_rnd_onppo='a config with a reward model',
    cartpole_gcl='a config with a reward model',
    cartpole_trex_onppo='a config with a reward model',
    ant_trex_onppo='a config with a reward model',
    halfcheetah_trex_onppo='a config with a reward model',
    hopper_gcl='a config with a reward model',
    hopper_trex_onppo='a config with a reward model',
    walker2d_gcl='a config with a reward model',
    walker2d_trex_onppo='a config with a reward model',
    gym_hybrid_hppo="policy.action_space = 'hybrid': grpo has discrete or continuous actions",
    overcooked_ppo='policy.multi_agent = True: grpo trains one agent',
    ptz_simple_spread_mappo='policy.multi_agent = True: grpo trains one agent',
)
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
WRITTEN = '''
from easydict import EasyDict
main_config = dict(
    exp_name='a_ppo',
    env=dict(collector_env_num=8, evaluator_env_num=2, n_evaluator_episode=2, stop_value=195),
    policy=dict(
        model=dict(obs_shape={shape}, action_shape=2),
        learn=dict(batch_size=64, learning_rate={rate}),
        collect=dict(n_sample=256),
    ),
)
create_config = dict(
    env=dict(type='cartpole', import_names=['{module}']),
    env_manager=dict(type='base'),
    policy=dict(type='{kind}'),
)
main_config, create_config = EasyDict(main_config), EasyDict(create_config)
'''


def shipped(name):
    """Of DI-engine."""
    path = min(glob.glob(f'{DIZOO}/**/config/**/{name}_config.py', recursive=True), key=len)
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


def of_ppo(path):
    with open(path, encoding='utf-8') as f:
        return "type='ppo'" in f.read()


@pytest.mark.envtest
class TestShippedConfigs:

    def test_the_table_has_all(self):
        paths = glob.glob(f'{DIZOO}/**/*.py', recursive=True)
        names = {os.path.basename(path).removesuffix('_config.py') for path in paths if of_ppo(path)}
        assert names == set(TABLE)

    @pytest.mark.parametrize('name', TABLE)
    def test_each_starts_or_ends_in_one_line(self, folder, name):
        """Also those whose environment is not installed, where the tests are run."""
        shutil.copy(glob.glob(f'{DIZOO}/**/config/**/{name}_config.py', recursive=True)[0], 'ppo_config.py')
        result = CliRunner().invoke(from_ppo.main, ['ppo_config.py'])
        lines = result.output.strip().splitlines()
        if TABLE[name] is not None or result.exit_code != 0:
            assert result.exit_code == 1 and len(lines) == 1 and os.listdir() == ['ppo_config.py'], result.output
            assert (TABLE[name] or 'Error: ') in result.output
            # what is not installed is no reason to refuse
            assert TABLE[name] or not re.search('not installed|No module named', result.output)
            return
        main, create = read_config_file('grpo_config.py')
        main.policy.update(cuda=False, multi_gpu=False)
        if len(lines) > 1:
            assert 'a package is not installed' in lines[0] and 'n_sample the smallest, 2 groups' in lines[0]
            told = '(create_config.env|an environment failed).*(No module named|install)'
            with pytest.raises((ConfigError, TaskError), match=told):
                serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
            return
        main.env.update(n_evaluator_episode=1, evaluator_env_num=1, collector_env_num=2)
        main.policy.group_size, main.policy.collect.n_sample, main.policy.learn.epoch_per_collect = 2, 2, 1
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)

    @pytest.mark.parametrize(
        'changes, line', [
            (dict(module='missing_package.env'), "wrote grpo_config.py: 2 groups x 8 episodes"),
            (dict(module='missing_package.env', shape="'x'"), 'policy.model'),
            (dict(module='dizoo.no_such_module'), "ModuleNotFoundError: No module named 'dizoo.no_such_module'"),
            (
                dict(module='dizoo.classic_control.cartpole.envs.cartpole_env',
                     rate='dict(a=1)'), 'policy.learn.learning_rate'
            ),
        ]
    )
    def test_a_missing_package_a_missing_module_and_values_of_other_types(self, folder, changes, line):
        text = dict(dict(shape='4', rate='1e-3', kind='ppo'), **changes)
        (folder / 'a_ppo_config.py').write_text(WRITTEN.format(**text))
        result = CliRunner().invoke(from_ppo.main, ['a_ppo_config.py', '--out', 'grpo_config.py'])
        assert result.exit_code == (not line.startswith('wrote')), result.output
        assert line in result.output.strip().splitlines()[-1]
        assert os.path.exists('grpo_config.py') == line.startswith('wrote')

    @pytest.mark.parametrize('more, code', [('value_weight=0.5', 0), ('grad_clip_value=0.5', 1)])
    def test_of_which_the_type_alone_was_changed(self, folder, more, code):
        """As the message about PPO's keys finds it. Without such a key it is a config of grpo."""
        text = WRITTEN.format(
            module='dizoo.classic_control.cartpole.envs.cartpole_env', shape='4', rate=f'1e-3, {more}', kind='grpo'
        )
        (folder / 'a_config.py').write_text(text)
        result = CliRunner().invoke(from_ppo.main, ['a_config.py'])
        assert result.exit_code == code and ("policy.type = 'grpo': only configs" in result.output) == code
        assert os.path.exists('a_config_grpo.py') == (not code)

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

    def test_keys_that_grpo_does_not_have_are_named(self):
        main, create = self.ppo(
            learn=dict(update_per_collect=1, multi_gpu=False),
            collect=dict(n_sample=4096, collector_env_num=8, collector=dict(get_train_sample=True)),
            other=dict(eps=dict(start=1.))
        )
        found = convert(main, create, length=100.)
        told = 'collect.collector.get_train_sample = True, collect.collector_env_num = 8, learn.multi_gpu = False, ' \
            "other.eps = {'start': 1.0}"
        assert ', '.join(found.unknown) == told
        assert found.comments['policy'].endswith(f'Keys that grpo does not have: {told}.')
        assert found.main['policy']['collect']['collector'] == {} == found.main['policy']['other']

    @pytest.mark.parametrize(
        'changes, message', [
            (dict(model=dict(obs_shape=5)), 'policy.model.obs_shape: VAC does not read observations of shape'),
            (dict(model=dict(action_space='continuous')), "policy.model.action_space = 'continuous': .* are discrete"),
            (dict(model=dict(layers=5)), 'policy.model.layers = 5: unknown key'),
        ]
    )
    def test_what_cannot_start_is_refused_by_the_conversion(self, folder, changes, message):
        text = open(shipped('cartpole_ppo')).read()
        (folder / 'c_ppo_config.py').write_text(
            f'{text}\nfrom ding.utils import deep_merge_dicts\n'
            f'main_config.policy = deep_merge_dicts(main_config.policy, {changes})\n'
        )
        result = CliRunner().invoke(from_ppo.main, ['c_ppo_config.py'])
        assert result.exit_code == 1 and re.search(message, result.output), result.output
        assert os.listdir() == ['c_ppo_config.py'] and len(result.output.strip().splitlines()) == 1

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
