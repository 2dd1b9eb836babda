"""Configs of DI-engine's PPO become configs of grpo: refused as they are, converted, trained."""
import glob
import os
import re
import shutil
from functools import reduce

import dizoo
import pytest
from click.testing import CliRunner
from ding.entry.cli import cli
from ding.utils import deep_merge_dicts
from easydict import EasyDict

from ding_common import ConfigError, TaskError, read_config_file
from ding_grpo import from_ppo
from ding_grpo.config.ppo_keys import PPO_KEYS, check_ppo_keys
from ding_grpo.from_ppo import Source, convert, write
from tests.cases import brief
from tests.runs import evaluations, metrics, train

pytestmark = pytest.mark.usefixtures('own_folder')
DIZOO = os.path.dirname(dizoo.__file__)
# Each config of DI-engine's on-policy PPO: it is converted and starts, or is refused in a line with these words.
STARTS = (
    'enduro_onppo pong_ppo pong_ppo_ddp qbert_onppo spaceinvaders_onppo bipedalwalker_ppo lunarlander_ppo cartpole_ppo '
    'cartpole_ppo_ddp pendulum_ppo ant_ppo ant_onppo halfcheetah_onppo hopper_onppo walker2d_onppo coinrun_ppo '
    'gym_hybrid_hppo maze_ppo rocket_hover_ppo rocket_landing_ppo'
).split()
WITH_REWARD_MODEL = (
    'lunarlander_gcl lunarlander_rnd_onppo cartpole_gcl cartpole_trex_onppo ant_trex_onppo halfcheetah_trex_onppo '
    'hopper_gcl hopper_trex_onppo walker2d_gcl walker2d_trex_onppo'
).split()
TABLE = dict.fromkeys(STARTS) | dict.fromkeys(WITH_REWARD_MODEL, 'a config with a reward model') | dict(
    overcooked_ppo='policy.multi_agent = True: grpo trains one agent',
    ptz_simple_spread_mappo='policy.multi_agent = True: grpo trains one agent',
)
OTHERS = dict(
    cartpole_ppo_offpolicy="policy.type = 'ppo_offpolicy'",
    cartpole_ppopg="policy.type = 'ppo_pg'",
    cartpole_dqn="policy.type = 'dqn'",
)
# One of each kind: that starts, of each environment's spaces, that is not installed, and that is refused.
KEPT = (
    'pong_ppo cartpole_ppo_ddp pendulum_ppo ant_ppo coinrun_ppo gym_hybrid_hppo lunarlander_gcl overcooked_ppo '
    'cartpole_ppo_offpolicy'
).split()
CARTPOLE = 'dizoo.classic_control.cartpole.envs.cartpole_env'
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
    """Path of a config of DI-engine."""
    return min(glob.glob(f'{DIZOO}/**/config/**/{name}_config.py', recursive=True), key=len)


def conversion(text, *options):
    """The exit code and the lines of the conversion of a config, and the files after it."""
    with open('a_ppo_config.py', 'w') as f:
        f.write(text)
    ended = CliRunner().invoke(from_ppo.main, ['a_ppo_config.py', *options])
    return ended.exit_code, ended.output.strip().splitlines(), sorted(os.listdir())


def converted(name):
    """The converted configs, with evaluations of one episode."""
    shutil.copy(shipped(name), 'ppo_config.py')
    ended = CliRunner().invoke(from_ppo.main, ['ppo_config.py'])
    if ended.exit_code != 0:
        return None, ended.output
    main, create = read_config_file('grpo_config.py')
    main.policy.update(cuda=False, multi_gpu=False)
    main.exp_name = 'run'
    return (main, create), ended.output


@pytest.mark.envtest
class TestShippedConfigs:

    def test_the_table_has_all(self):
        paths = glob.glob(f'{DIZOO}/**/*.py', recursive=True)
        of_ppo = [path for path in paths if "type='ppo'" in open(path, encoding='utf-8').read()]
        assert {os.path.basename(path).removesuffix('_config.py') for path in of_ppo} == set(TABLE)

    @pytest.mark.parametrize(
        'name, refused',
        brief((TABLE | OTHERS).items(), [case for case in (TABLE | OTHERS).items() if case[0] in KEPT])
    )
    def test_each_starts_or_ends_in_one_line(self, name, refused):
        """Also those whose environment is not installed, where the tests are run."""
        configs, output = converted(name)
        lines = output.strip().splitlines()
        if refused is not None or configs is None:
            assert configs is None and len(lines) == 1 and os.listdir() == ['ppo_config.py'], output
            assert (refused or 'Error: ') in output
            # what is not installed is no reason to refuse
            assert refused or not re.search('not installed|No module named', output)
            return
        main, create = configs
        if len(lines) > 1:
            assert 'a package is not installed' in lines[0] and 'collect.groups the smallest, 2 groups' in lines[0]
            told = '(create_config.env|an environment failed).*(No module named|install)'
            with pytest.raises((ConfigError, TaskError), match=told):
                train(configs, 1)
            return
        main.env.update(n_evaluator_episode=1, evaluator_env_num=1, collector_env_num=2)
        main.policy.group_size, main.policy.collect.groups = 2, 2
        train(configs, 1, epoch_per_collect=1)
        update, = metrics()
        if name.startswith(('cartpole', 'pendulum', 'lunarlander', 'bipedalwalker')):  # rewards differ from the start
            assert update['optimizer_steps'] >= 1 and update['grad_norm'] > 0

    @pytest.mark.algotest
    @pytest.mark.parametrize('name', ['cartpole_ppo', 'pendulum_ppo'])
    def test_it_reaches_the_stop_value_of_ppo(self, name):
        configs, _ = converted(name)
        train(configs, 200)
        assert evaluations()[-1]['eval_episode_return'] >= configs[0].env.stop_value

    @pytest.mark.parametrize(
        'changes, line',
        [
            (dict(module='missing_package.env'), "wrote grpo_config.py: 2 groups x 8 episodes"),
            (dict(module='missing_package.env', shape="'x'"), 'policy.model'),
            (dict(module='dizoo.no_such_module'), "ModuleNotFoundError: No module named 'dizoo.no_such_module'"),
            (dict(rate='dict(a=1)'), 'policy.learn.learning_rate'),
            (dict(shape='5'), 'policy.model.obs_shape: VAC does not read observations of shape'),
            (dict(shape="4, action_space='continuous'"), "policy.model.action_space = 'continuous': "),
            (dict(shape='4, layers=5'), 'policy.model.layers = 5: unknown key'),
            # only the type was changed, as the message about PPO's keys finds it; without such a key it is of grpo
            (dict(kind='grpo', rate='1e-3, value_weight=0.5'), 'wrote grpo_config.py'),
            (dict(kind='grpo', rate='1e-3, grad_clip_value=0.5'), "policy.type = 'grpo': only configs"),
        ]
    )
    def test_a_missing_package_a_missing_module_and_values_of_other_types(self, changes, line):
        text = WRITTEN.format(**dict(dict(module=CARTPOLE, shape='4', rate='1e-3', kind='ppo'), **changes))
        code, lines, files = conversion(text, '--out', 'grpo_config.py')
        assert code == (not line.startswith('wrote')) and line in lines[-1], lines
        assert len(lines) == 1 or 'module' in changes  # a missing package has a line of its own
        assert ('grpo_config.py' in files) == line.startswith('wrote')


@pytest.mark.envtest
class TestTypeChanged:

    @pytest.fixture
    def config(self):
        main, create = read_config_file(shipped('cartpole_ppo'))
        create.policy.type, main.exp_name = 'grpo', 'run'
        return main, create

    @pytest.mark.parametrize('earlier', [False, True])
    def test_one_error_lists_all_keys_and_an_earlier_run_stays(self, config, earlier):
        if earlier:
            os.makedirs('run/log')
        with pytest.raises(ConfigError) as caught:
            train(config)
        for key in ('policy.action_space', 'policy.learn.value_weight', 'policy.collect.gae_lambda', 'from_ppo'):
            assert key in caught.value.message
        assert os.listdir() == ['run'] * earlier and (not earlier or os.listdir('run') == ['log'])

    def test_steps_in_place_of_groups(self, config):
        policy = config[0].policy
        for section, key in ((policy, 'action_space'), (policy.learn, 'value_weight'), (policy.collect, 'gae_lambda')):
            section.pop(key)
        with pytest.raises(ConfigError,
                           match='policy.collect.n_sample is policy.collect.groups now.*ding_grpo.from_ppo'):
            train(config)
        for key in ('batch_size', 'clip_ratio', 'entropy_weight'):
            policy.learn.pop(key)
        policy.collect.groups = policy.collect.pop('n_sample')
        with pytest.raises(ConfigError, match='groups = 256: counts groups, not steps. 256 groups x 8 = 2,048 epis'):
            train(config)
        assert not os.path.exists('run')  # the next run gets its name
        policy.collect.update(max_episodes_per_env=256, groups=17)
        train(config, 1, batch_groups=17)
        assert len(metrics()) == 1

    def test_without_a_collector_it_is_group(self, own_folder):
        converted('cartpole_ppo')
        text = (own_folder / 'grpo_config.py').read_text().replace("collector=dict(\n        type='group',\n    ),", '')
        assert "type='group'" not in text
        text = text.replace('n_evaluator_episode=5', 'n_evaluator_episode=1')
        (own_folder / 'c.py').write_text(text.replace('=5', '=1'))
        ended = CliRunner().invoke(cli, ['-m', 'serial_onpolicy', '-c', 'c.py', '--train-iter', '1'])
        assert ended.exception is None and '2 groups x 8 = 16 episodes an update, batches of 1 groups' in ended.output


def ppo(**policy):
    main = EasyDict(exp_name='x', env=dict(collector_env_num=10), policy=dict(model=dict(obs_shape=1), **policy))
    return main, EasyDict(policy=dict(type='ppo'), env=dict(type='e'), env_manager=dict(type='base'))


class TestConvert:

    @pytest.mark.parametrize('length, groups', [(100., 6), (1., 16), (1e6, 2)])
    def test_sizes_by_hand(self, length, groups):
        """4096 / (8 x 100) = 5.1 groups, within bounds; an evaluation each 12800 / (2 x 4096 / 64) updates."""
        learn = dict(batch_size=64, epoch_per_collect=2, ignore_done=True)
        every = dict(evaluator=dict(eval_freq=12800))
        found = convert(*ppo(learn=learn, collect=dict(n_sample=4096), eval=every), length).main
        assert found['policy']['collect']['groups'] == groups
        assert found['policy']['eval']['evaluator']['eval_freq'] == 100
        assert found['policy']['learn']['extend_truncated'] is True
        assert found['env']['collector_env_num'] == 16 and found['exp_name'] == 'x_grpo'

    def test_keys_that_grpo_does_not_have_are_named(self):
        main, create = ppo(
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

    def test_what_is_left_is_known_to_grpo(self):
        keys = [reduce(lambda inner, name: {name: inner}, reversed(path.split('.')), 1) for path in PPO_KEYS]
        policy = reduce(deep_merge_dicts, keys)
        with pytest.raises(ConfigError) as caught:
            check_ppo_keys(policy)
        assert all(f'policy.{path} = 1 (' in caught.value.message for path in PPO_KEYS)
        found = convert(*ppo(**policy), 10.)
        check_ppo_keys(found.main['policy'])
        assert 'lr_scheduler' not in found.main['policy']['learn']

    def test_values_that_are_objects_survive(self):
        text = 'import torch.nn as nn\nimport os\nmain_config = dict(a=dict(b=nn.Tanh(), c=[1, (2,)], d={"x y": None}))'
        names, again = {}, {}
        exec(text, names)
        source = Source(text)
        written = write(names['main_config'], source, {'a.b': 'a comment'})
        assert source.used_imports() == 'import torch.nn as nn\n' and '# a comment\n' in written
        exec(source.used_imports() + 'again = ' + written, again)
        assert repr(again['again']) == repr(names['main_config'])

    def test_an_object_that_code_made(self):
        source = Source('import torch\nmade = torch.nn.Tanh()\nmain_config = dict(a=made)')
        with pytest.raises(ConfigError, match=r'main_config.a = .*: cannot be written to a file'):
            write(dict(a=object()), source, {})

    def test_a_file_that_exists_is_kept(self, own_folder):
        (own_folder / 'a_grpo_config.py').write_text('mine')
        text = WRITTEN.format(module=CARTPOLE, shape='4', rate='1e-3', kind='ppo')
        code, lines, _ = conversion(text)
        assert code == 1 and '--overwrite' in lines[-1] and (own_folder / 'a_grpo_config.py').read_text() == 'mine'
        assert conversion(text, '--overwrite')[0] == 0 and (own_folder / 'a_grpo_config.py').read_text() != 'mine'
