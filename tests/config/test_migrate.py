import shutil

import pytest
from click.testing import CliRunner
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.config.key import value_at
from ding_grpo.config.keys import DEFAULTS
from ding_grpo.config.moved import MOVED, PROCESSORS, check_moved
from ding_grpo.migrate import main, migrated
from tests import shipped

OLD = '''# a config for grpo
main_config = dict(
    policy=dict(
        group_size=4,
        learn=dict(
            batch_size=2,  # groups
            # near the start
            beta=0.1, kl_type='k2',
            learning_rate=1e-3,
            num_updates=5,  # few
            surrogate_options=dict(beta=1),
        ),
        collect=dict(n_sample=2, min_p=0.1, logit_bias=[(1, 2.0)], allowed_tokens='é:f', top_k=3),
    ),
)
main_config['env'] = dict(learn=dict(shadow=['dapo']))
policy = Sections(**main_config['policy'])
policy.learn.update(clip_ratio=0.3, learning_rate=1e-2, tokens_freq=3)
policy.learn.update(keep_ckpt=7)
policy.collect = dict(n_sample=9)
policy.learn.batch_size = 4
'''


class Sections(EasyDict):
    """A config whose sections exist before they are written."""

    def __init__(self, **sections) -> None:
        super().__init__(dict(run={}, instruments={}) | sections)


class TestMigrate:

    def test_keys_move_with_their_comments(self):
        source = migrated(OLD)
        found = dict(Sections=Sections)
        exec(source, found)
        learn = dict(batch_groups=2, learning_rate=1e-3, surrogate_options=dict(beta=1), kl=dict(beta=0.1, type='k2'))
        processors = [dict(type='min_p', p=0.1), dict(type='logit_bias', bias=[(1, 2.0)]), dict(type='é:f')]
        collect = dict(groups=2, top_k=3, processors=processors)
        expected = dict(group_size=4, learn=learn, run=dict(num_updates=5), collect=collect)
        assert found['main_config'] == dict(policy=expected, env=dict(instruments=dict(shadow=['dapo'])))
        policy = found['policy']
        assert (policy.learn.clip, policy.learn.batch_groups, policy.collect.groups) == (dict(ratio=0.3), 4, 9)
        assert (policy.run.keep_ckpt, policy.instruments.tokens_every) == (7, 3)
        for comment in ('batch_groups=2,  # groups', '# near the start\n', 'num_updates=5,  # few'):
            assert comment in source

    def test_a_current_config_stays(self):
        assert migrated(migrated(OLD)) == migrated(OLD)
        for path in map(shipped.path_of, shipped.names('*grpo*')):
            with open(path, encoding='utf-8') as f:
                source = f.read()
            assert migrated(source) == source, path

    def test_rewrites_configs_of_grpo_alone(self, tmp_path):
        """DI-engine's own policies have keys of the same names."""
        paths = [tmp_path / 'grpo_config.py', tmp_path / 'ppo_config.py']
        for path, source in zip(paths, (OLD, OLD.replace('grpo', 'ppo'))):
            path.write_text(source, encoding='utf-8')
        done = CliRunner().invoke(main, list(map(str, paths)))
        assert [line.rpartition(': ')[2] for line in done.output.splitlines()] == ['rewritten', 'nothing to change']
        assert paths[0].read_text(encoding='utf-8') == migrated(OLD)

    @pytest.mark.parametrize('name', shipped.names('*ppo*'))
    def test_shipped_configs_of_ppo_stay_although_they_mention_grpo(self, tmp_path, name):
        path = shutil.copy(shipped.path_of(name), tmp_path)
        assert CliRunner().invoke(main, [path]).output == f'{path}: a config of PPO, left as it is\n'

    @pytest.mark.parametrize(
        'more, told', [
            ("ppo, _ = shipped_config('think_answer_ppo')", 'rewritten'),
            ("create_config['policy']['type'] = 'ppo'", 'a config of PPO, left as it is'),
        ]
    )
    def test_a_config_of_grpo_may_mention_ppo(self, tmp_path, more, told):
        path = tmp_path / 'c.py'
        path.write_text(f'{OLD}\n{more}\n', encoding='utf-8')
        assert CliRunner().invoke(main, [str(path)]).output == f'{path}: {told}\n'


class TestOldNames:

    def test_each_ends_in_a_line_with_the_new_one(self):
        policy = EasyDict()
        for path in (*MOVED, *PROCESSORS):
            *sections, key = path.split('.')
            (policy.setdefault(sections[0], EasyDict()) if sections else policy)[key] = 1
        with pytest.raises(ConfigError) as error:
            check_moved(policy)
        message = str(error.value)
        assert '\n' not in message and 'python -m ding_grpo.migrate FILE' in message
        for old, new in MOVED.items():
            assert f'policy.{old} is policy.{new} now' in message
            value_at(DEFAULTS, new)  # exists
            with pytest.raises(KeyError):
                value_at(DEFAULTS, old)
        assert "policy.collect.min_p is an entry of policy.collect.processors now, dict(type='min_p', p=...)" in message
