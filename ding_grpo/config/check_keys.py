"""Checks each key of a config separately: unknown keys, types, and rules."""
import os
from typing import Any, Dict

from ding.utils import (
    BUFFER_REGISTRY, ENV_REGISTRY, LEARNER_REGISTRY, SERIAL_COLLECTOR_REGISTRY, SERIAL_EVALUATOR_REGISTRY,
    deep_merge_dicts
)
from ding.worker import LearnerHook, get_buffer_cls
from ding.worker.learner.learner_hook import hook_mapping

from ding_common import (
    MOST, ConfigError, Rule, check_config, check_is_file, import_modules, nearest, parallel, require_dict,
    require_section
)

from .keys import RULES
from .models import check_model
from .moved import check_moved
from .ppo_keys import check_ppo_keys
from .surrogate import find_surrogate

_POSITIVE = Rule.number(0, open_low=True)

# Rules of keys that DI-engine or the workers declare.
POLICY_RULES = {
    **RULES,
    'collect.collector.max_replacements': Rule.integer(0),
    'collect.collector.reward_range': Rule(
        'two numbers (low, high) with low <= high',
        lambda v: isinstance(v, (list, tuple)) and len(v) == 2 and all(map(Rule.number().holds, v)) and v[0] <= v[1]
    ).or_none(),
    'collect.collector.max_failed': Rule.number(0, 1),
    'random_collect_size': Rule.integer(0, MOST),
    'collect.collector.collect_print_freq': Rule.integer(1),
    'collect.collector.table_freq': Rule.integer(1),
    'collect.collector.table_rows': Rule.integer(0),
    'collect.collector.max_restarts': Rule.integer(0),
    'eval.evaluator.type': Rule.registered(SERIAL_EVALUATOR_REGISTRY),
    'eval.evaluator.render.render_freq': Rule(
        '-1 or an integer of at least 1', lambda v: v == -1 or Rule.integer(1).holds(v)
    ),
    'eval.evaluator.render.mode': Rule.one_of('envstep', 'train_iter'),
    'eval.evaluator.figure_path': Rule('text', lambda v: isinstance(v, str)).or_none(),
    'other.replay_buffer.type': Rule.registered(BUFFER_REGISTRY),
    'other.replay_buffer.replay_buffer_size': Rule.integer(1, MOST),
    'other.replay_buffer.max_use': Rule.integer(1).or_inf(),
    'other.replay_buffer.max_staleness': Rule.integer(1).or_inf(),
    'other.replay_buffer.alpha': Rule.number(0, 1),
    'other.replay_buffer.beta': Rule.number(0, 1),
    'other.replay_buffer.anneal_step': Rule.integer(0),
    'other.replay_buffer.thruput_controller.push_sample_rate_limit.max': _POSITIVE.or_inf(),
    'other.replay_buffer.thruput_controller.push_sample_rate_limit.min': Rule.number(0),
    'other.replay_buffer.thruput_controller.window_seconds': _POSITIVE,
    'other.replay_buffer.thruput_controller.sample_min_limit_ratio': Rule.number(1),
    'other.replay_buffer.monitor.sampled_data_attr.average_range': Rule.integer(1),
    'other.replay_buffer.monitor.sampled_data_attr.print_freq': Rule.integer(1),
    'other.replay_buffer.monitor.periodic_thruput.seconds': _POSITIVE,
    **{
        f'{section}import_names': Rule.modules()
        for section in ('', 'collect.collector.', 'eval.evaluator.', 'learn.learner.', 'other.replay_buffer.')
    },
}

# Keys that DI-engine's pipelines read or add although no default declares them.
_PIPELINE = dict(
    type='',
    import_names=[],
    cfg_type='',
    random_collect_size=0,
    transition_with_policy_data=True,
    eval=dict(evaluator=dict(stop_value=None, n_episode=None, type='', import_names=[], render={})),
    collect=dict(collector=dict(type='', import_names=[], cfg_type='')),
    learn=dict(learner=dict(type='', import_names=[], cfg_type='', load_path='', hook={})),
    other=dict(commander=dict(cfg_type='', path_policy=''), replay_buffer={}),
)


def check_sections(cfg: Dict, default: Dict) -> None:
    """Check the keys directly under ``policy``, compiled or not, given the policy's own defaults."""
    check_ppo_keys(cfg)
    check_moved(cfg)
    sections = {key: {} if isinstance(value, dict) else None for key, value in {**_PIPELINE, **default}.items()}
    check_config(cfg, sections, POLICY_RULES, 'policy')


def check_main_config(main_config: Dict, policy: Dict, default: Dict) -> None:
    """Check a user's config before DI-engine merges it with the defaults ``policy``, where it would fail with a
    traceback if a section is not a dict. ``default`` are the policy's own defaults. ``check_policy_config`` later
    checks whether values are consistent with each other."""
    for section in ('env', 'policy'):
        require_section(main_config, section, 'main_config')
    check_exp_name(main_config.get('exp_name', 'default_experiment'))
    written, env = main_config['policy'], main_config['env']
    check_sections(written, default)
    import_modules(written, 'policy')  # which may register names that other keys use
    if 'type' in written:
        raise ConfigError(f"policy.type = {written['type']!r}: belongs in create_config.policy.")
    check_config(written, schema_of(policy, default), POLICY_RULES, 'policy')
    if written.get('cuda', False):
        parallel.check_gpu()
    require_dict(env.get('manager', {}), 'env.manager')
    import_modules(env, 'env')
    if 'type' in env and not Rule.registered(ENV_REGISTRY).holds(env['type']):
        raise ConfigError(f"env.type = {env['type']!r}: unknown environment; {nearest(env['type'], ENV_REGISTRY)}")
    surrogate = written.get('learn', {}).get('surrogate')
    if surrogate is not None:
        find_surrogate(surrogate)


def check_exp_name(name: Any) -> None:
    """Check that DI-engine can make a folder with a run's name."""
    if not isinstance(name, str) or os.path.isabs(name) or not name.strip('./'):
        raise ConfigError(
            f'exp_name = {name!r}: must be text, a path relative to the current folder, and not that folder itself. '
            'DI-engine prepends ./ to it.'
        )


def check_keys(cfg: Dict, default: Dict) -> None:
    """Check each key of the compiled section ``policy`` separately, given the defaults of the policy."""
    check_sections(cfg, default)
    check_config(cfg, schema_of(cfg, default), POLICY_RULES, 'policy')
    _check_hooks(cfg['learn'].get('learner', {}).get('hook', {}))
    check_model(cfg['model'])


def schema_of(cfg: Dict, default: Dict) -> Dict:
    """The keys that a section ``policy`` may have, with the types of their values; ``cfg`` is the section, merged with
    the defaults."""
    learner = LEARNER_REGISTRY.get('base').default_config()
    schema = deep_merge_dicts(deep_merge_dicts(_PIPELINE, dict(learn=dict(learner=learner))), default)
    schema['learn']['learner']['hook'] = {}  # see _check_hooks
    schema['model'] = {}  # see check_model
    workers = dict(
        collector=(schema['collect'], SERIAL_COLLECTOR_REGISTRY, cfg['collect']),
        evaluator=(schema['eval'], SERIAL_EVALUATOR_REGISTRY, cfg['eval']),
    )
    for name, (section, registry, written) in workers.items():
        kind = written.get(name, {}).get('type', dict(collector='group', evaluator='interaction')[name])
        if kind in registry:
            section[name] = deep_merge_dicts(section[name], registry.get(kind).default_config())
    buffer = cfg.get('other', {}).get('replay_buffer', {})
    if 'type' in buffer:
        known = {**get_buffer_cls(buffer).default_config(), 'type': '', 'import_names': [], 'cfg_type': ''}
        schema['other']['replay_buffer'] = known
    return schema


_HOOK = dict(name='', type='', position='', priority=0., ext_args={})

_HOOK_RULES = dict(
    type=Rule.registered(hook_mapping),
    position=Rule.one_of(*LearnerHook.positions),
    priority=Rule.number(0),
)


def _check_hooks(hooks: Dict) -> None:
    where = 'policy.learn.learner.hook'
    known = {**LEARNER_REGISTRY.get('base').default_config().hook, 'log_reduce_after_iter': True}
    rules = {key: Rule.integer(1) for key in known if key.endswith('_after_iter')}
    rules['load_ckpt_before_run'] = Rule("the path of a checkpoint, or ''", lambda v: isinstance(v, str))
    check_config({key: value for key, value in hooks.items() if not isinstance(value, dict)}, known, rules, where)
    for key, value in hooks.items():
        if isinstance(value, dict):
            if not {'name', 'type', 'position'} <= set(value):
                raise ConfigError(f'{where}.{key} = {dict(value)!r}: a hook needs the keys name, type and position.')
            check_config(value, _HOOK, _HOOK_RULES, f'{where}.{key}')
    path = hooks.get('load_ckpt_before_run')
    if path and parallel.rank() == 0:  # only the first process reads it
        check_is_file(path, f'{where}.load_ckpt_before_run')
