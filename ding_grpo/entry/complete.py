"""What a config may leave out because its other keys determine it."""
import os
from typing import Any, Dict, Optional

from ding.utils import ENV_REGISTRY, POLICY_REGISTRY
from easydict import EasyDict

from ding_common import MOST, Rule, check_configs, is_read_as_written
from ding_common.config.create_config import check_names

# Largest numbers that are derived; larger ones can be written.
MOST_COLLECTING = 1024  # collector environments
MOST_EPISODES = 512  # of an evaluation
MOST_EVALUATING = 128  # evaluator environments

OWN_ENVS = ('token_env', 'gymnasium_env')


def complete(main_config: EasyDict, create_config: EasyDict) -> EasyDict:
    """Fill in what the configs leave out and other keys determine, and return ``create_config``. A key that is written
    stays as it is, and what cannot be derived stays missing. The pipelines call this with every config. A config file
    calls it at its end if the ``ding`` command has to run it, which reads the file before this package is imported."""
    if is_read_as_written():
        return create_config
    check_configs(main_config, create_config)
    _name_parts(create_config)
    check_names(create_config)
    policy = POLICY_REGISTRY.get(create_config.policy.type)
    kind = create_config.get('env', {}).get('type')
    env = None if kind is None else ENV_REGISTRY.get(kind)
    if getattr(policy, 'learns_from_groups', False):
        _set_type(create_config, 'collector', 'group')
        _complete_collector(main_config, policy.default_config(), env)
    _complete_evaluator(main_config.env, env)
    model = main_config.policy.get('model')
    if isinstance(model, dict):
        _complete_texts(main_config.env, model, env)
    return create_config


def _name_parts(create_config: EasyDict) -> None:
    _set_type(create_config, 'env_manager', 'base')
    env = create_config.get('env')
    if isinstance(env, dict) and env.get('type') in OWN_ENVS and 'import_names' not in env:
        env['import_names'] = ['ding_grpo']


def _set_type(create_config: EasyDict, section: str, kind: str) -> None:
    if section not in create_config:
        create_config[section] = EasyDict()
    if isinstance(create_config[section], dict) and create_config[section].get('type') is None:
        create_config[section]['type'] = kind


def _complete_collector(main_config: EasyDict, default: EasyDict, env: Optional[type]) -> None:
    """One environment for each episode of a collect, if these are not too many; whole groups."""
    policy, collect = main_config.policy, main_config.policy.get('collect', {})
    if not isinstance(collect, dict) or not _is_left_out('collector_env_num', main_config.env, env):
        return
    groups = collect.get('groups', default.collect.groups)
    size, extra = policy.get('group_size', default.group_size), collect.get('extra_rows', default.collect.extra_rows)
    if all(map(Rule.integer(1, MOST).holds, (groups, size))) and Rule.integer(0, MOST).holds(extra):
        rows = size + extra
        main_config.env['collector_env_num'] = rows * min(groups, max(1, MOST_COLLECTING // rows))


def _complete_evaluator(cfg: EasyDict, env: Optional[type]) -> None:
    if _is_left_out('n_evaluator_episode', cfg, env) and hasattr(env, 'num_problems_of'):
        cfg['n_evaluator_episode'] = min(env.num_problems_of(cfg), MOST_EPISODES)
    episodes = cfg.get('n_evaluator_episode')
    if _is_left_out('evaluator_env_num', cfg, env) and Rule.integer(1, MOST).holds(episodes):
        cfg['evaluator_env_num'] = min(episodes, MOST_EVALUATING)


def _complete_texts(cfg: EasyDict, model: Dict[str, Any], env: Optional[type]) -> None:
    """The tokenizer of a pretrained model, or the vocabulary of a random one."""
    if not hasattr(env, 'vocab_size_of'):
        return
    if 'tokenizer' not in cfg and isinstance(model.get('pretrained'), str) and not _lacks_a_tokenizer(model):
        names = ('pretrained', 'gguf_file')
        cfg['tokenizer'] = EasyDict({name: model[name] for name in names if model.get(name) is not None})
    shape = model.get('config')
    if isinstance(shape, dict) and 'vocab_size' not in shape:
        shape['vocab_size'] = env.vocab_size_of(cfg)


def _lacks_a_tokenizer(model: Dict[str, Any]) -> bool:
    """A folder with a model alone, for a task that has words or characters of its own."""
    if model.get('gguf_file') is not None or not os.path.isdir(model['pretrained']):
        return False
    return not any(name.startswith('tokenizer') for name in os.listdir(model['pretrained']))


def _is_left_out(key: str, cfg: Dict[str, Any], env: Optional[type]) -> bool:
    return key not in cfg and key not in getattr(env, 'config', {})
