"""What a user may write under ``policy`` when its type is ``grpo``."""
import math
import os
from typing import Any, Dict, Tuple

from ding.utils import BUFFER_REGISTRY, ENV_REGISTRY, LEARNER_REGISTRY, MODEL_REGISTRY, SERIAL_COLLECTOR_REGISTRY, \
    SERIAL_EVALUATOR_REGISTRY, deep_merge_dicts, import_module
from ding.worker import LearnerHook, get_buffer_cls
from ding.worker.learner.learner_hook import hook_mapping
from transformers import SchedulerType

from ding_common import MOST, ConfigError, Rule, check_arguments, check_config, check_is_file, describe, nearest, \
    parallel, require_dict, require_section
from ding_common.adapters import base_of_adapters
from ding_grpo.rl_utils import ADVANTAGE_METHODS, KL_TYPES, LOSS_PRESETS, RATIOS, REDUCTIONS, \
    STEP_ADVANTAGE_METHODS, efficient_method, less_efficient_method, linear_log_prob, naive_method

from .surrogate import find_surrogate

from .schedule import Schedule

LOG_PROB_FNS = {f.__name__: f for f in (linear_log_prob, efficient_method, naive_method, less_efficient_method)}

# Without those that want a metric at each step.
SCHEDULES = [t.value for t in SchedulerType if t.value not in ('reduce_lr_on_plateau', 'greedy')]

_POSITIVE = Rule.number(0, open_low=True)

RULES = {
    'group_size': Rule.integer(2, MOST),
    'cuda': Rule.one_of(True, False),
    'multi_gpu': Rule.one_of(True, False),
    'learn.epoch_per_collect': Rule.integer(1, MOST),
    'learn.target_kl': Rule.number(0, open_low=True).or_none(),
    'learn.max_ratio': Rule.number(1, open_low=True).or_none(),
    'learn.max_bad_updates': Rule.integer(1),
    'learn.batch_size': Rule.integer(1),
    'learn.batch_steps': Rule.integer(1).or_none(),
    'learn.resume_training': Rule.one_of(True, False),
    'learn.keep_ckpt': Rule.integer(1),
    'learn.micro_batch_tokens': Rule.integer(1).or_none(),
    'learn.update_per_collect': Rule.integer(1, MOST),
    'learn.learning_rate': Rule.number(0, open_low=True),
    'learn.weight_decay': Rule.number(0),
    'learn.lr_scheduler.type': Rule.one_of(*SCHEDULES),
    'learn.lr_scheduler.num_warmup_steps': Rule.integer(0),
    'learn.lr_scheduler.num_training_steps': Rule.integer(1).or_none(),
    'learn.grad_clip_value': Rule.number(0, open_low=True),
    'learn.loss': Rule.one_of(*LOSS_PRESETS),
    'learn.clip_ratio': Rule.number(0, 1, open_low=True).or_none(),
    'learn.clip_ratio_high': Rule.number(0, open_low=True).or_none(),
    'learn.delta': Rule.number(1, open_low=True).or_none(),
    'learn.ratio': Rule.one_of(*RATIOS).or_none(),
    'learn.surrogate': Rule('the name of a surrogate', lambda v: isinstance(v, str)).or_none(),  # see find_surrogate
    'learn.reduction': Rule.one_of(*REDUCTIONS).or_none(),
    'learn.beta': Rule.number(0),
    'learn.kl_type': Rule.one_of(*KL_TYPES),
    'learn.adv_method': Rule.one_of(*ADVANTAGE_METHODS).or_none(),
    'learn.log_prob_fn': Rule.one_of(*LOG_PROB_FNS),
    'learn.entropy_weight': Rule.number(0),
    'learn.advantage': Rule.one_of('outcome', 'return_to_go', 'return_to_go_by_step'),
    'learn.reward_aggregation': Rule.one_of('sum_then_normalize', 'normalize_then_sum'),
    'learn.ref_sync_freq': Rule.integer(1).or_none(),
    'learn.ref_sync_mixup': Rule.number(0, 1, open_low=True),
    'collect.collector.max_replacements': Rule.integer(0),
    'collect.collector.max_failed': Rule.number(0, 1),
    'eval.evaluator.max_failed': Rule.number(0, 1),
    'collect.discount_factor': Rule.number(0, 1),
    'collect.n_sample': Rule.integer(1, MOST),
    'n_sample': Rule.integer(1, MOST),
    'batch_size': Rule.integer(1),
    'collect.temperature': Rule.number(0, open_low=True),
    'collect.top_k': Rule.integer(1).or_none(),
    'collect.top_p': Rule.number(0, 1, open_low=True).or_none(),
    'eval.evaluator.eval_freq': Rule.integer(1),
    'eval.evaluator.samples_per_start': Rule.integer(0, MOST),
    'eval.evaluator.pass_at': Rule(
        'a list of integers of at least 1', lambda v: isinstance(v,
                                                                 (list, tuple)) and all(map(Rule.integer(1).holds, v))
    ),
    'priority': Rule('False: there are no priorities of groups', lambda v: v is False),
    'random_collect_size': Rule.integer(0, MOST),
    'collect.unroll_len': Rule.integer(1),
    'collect.collector.collect_print_freq': Rule.integer(1),
    'collect.collector.table_freq': Rule.integer(1),
    'collect.collector.table_rows': Rule.integer(0),
    'collect.collector.max_restarts': Rule.integer(0),
    'eval.evaluator.type': Rule.registered(SERIAL_EVALUATOR_REGISTRY),
    'eval.evaluator.right_from': Rule.number(),
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
    n_sample=1,
    batch_size=1,
    random_collect_size=0,
    transition_with_policy_data=True,
    eval=dict(evaluator=dict(stop_value=None, n_episode=None, type='', import_names=[], render={})),
    collect=dict(collector=dict(type='', import_names=[], cfg_type='')),
    learn=dict(learner=dict(type='', import_names=[], cfg_type='', load_path='', hook={})),
    other=dict(commander=dict(cfg_type='', path_policy=''), replay_buffer={}),
)


def check_sections(cfg: Dict, default: Dict) -> None:
    """
    Overview:
        Hold the keys right under ``policy`` to what there is; the config need not be compiled.
    Arguments:
        - cfg (:obj:`Dict`): The section ``policy``.
        - default (:obj:`Dict`): The policy's own defaults.
    Raises:
        - ConfigError: If a key is unknown, a section is no dict, or a value breaks its rule.
    """
    known = {**_PIPELINE, **default}
    for key, value in cfg.items():
        if key not in known:
            raise ConfigError(f'policy.{key} = {value!r}: unknown key; {nearest(key, known)}')
        if key in RULES and not RULES[key].holds(value):
            raise ConfigError(f'policy.{key} = {value!r}: must be {RULES[key].allowed}.')
        if isinstance(known[key], dict):
            require_dict(value, f'policy.{key}')


def check_main_config(main_config: Dict, policy: Dict, default: Dict) -> None:
    """
    Overview:
        Hold what a user wrote to what there is, before DI-engine merges it with defaults: it would fail at what is no \
        section, in a traceback.
    Arguments:
        - main_config (:obj:`Dict`): The config.
        - policy (:obj:`Dict`): What DI-engine will merge its section ``policy`` into.
        - default (:obj:`Dict`): The policy's own defaults.
    Raises:
        - ConfigError: On the first key that is unknown or of a wrong value. What goes together is looked at later, in \
            ``check_policy_config``.
    """
    for section in ('env', 'policy'):
        require_section(main_config, section, 'main_config')
    check_exp_name(main_config.get('exp_name', ''))
    written, env = main_config['policy'], main_config['env']
    check_sections(written, default)
    import_module(written.get('import_names', []))  # they may register what other keys name
    if 'type' in written:
        raise ConfigError(f"policy.type = {written['type']!r}: belongs in create_config.policy.")
    check_config(written, _schema(policy, default), RULES, 'policy')
    if written.get('cuda', False):
        parallel.check_gpu()
    require_dict(env.get('manager', {}), 'env.manager')
    modules = env.get('import_names', [])
    if not Rule.modules().holds(modules):
        raise ConfigError(f'env.import_names = {modules!r}: must be {Rule.modules().allowed}.')
    import_module(modules)
    if 'type' in env and not Rule.registered(ENV_REGISTRY).holds(env['type']):
        raise ConfigError(f"env.type = {env['type']!r}: unknown environment; {nearest(env['type'], ENV_REGISTRY)}")
    surrogate = written.get('learn', {}).get('surrogate')
    if surrogate is not None:
        find_surrogate(surrogate)


def check_exp_name(name: Any) -> None:
    """
    Overview:
        Hold a run's name to what DI-engine makes a folder of.
    Raises:
        - ConfigError: If it is not a relative path.
    """
    if not isinstance(name, str) or os.path.isabs(name):
        raise ConfigError(
            f'exp_name = {name!r}: must be text, and a path from the current folder; DI-engine puts ./ before it.'
        )


def check_policy_config(cfg: Dict, default: Dict) -> None:
    """
    Overview:
        Hold the compiled ``policy`` section of a config to what there is.
    Arguments:
        - cfg (:obj:`Dict`): The section as DI-engine compiled it, with the user's keys in it.
        - default (:obj:`Dict`): The policy's own defaults.
    Raises:
        - ConfigError: On the first thing that cannot be run; the message names the key, the value and what is \
            allowed.
    """
    check_sections(cfg, default)
    check_config(cfg, _schema(cfg, default), RULES, 'policy')
    _check_hooks(cfg['learn'].get('learner', {}).get('hook', {}))
    _check_model(cfg['model'])
    collector = cfg['collect'].get('collector', {}).get('type', 'group')
    if collector != 'group':
        raise ConfigError(
            f'create_config.collector.type = {collector!r}: grpo learns from whole groups, which only the group '
            "collector makes; write collector=dict(type='group') in create_config."
        )
    if cfg['collect']['top_p'] is not None and cfg['collect']['top_k'] is None:
        raise ConfigError(
            f"policy.collect.top_p = {cfg['collect']['top_p']}: needs policy.collect.top_k, the number of token ids "
            'that are stored with each token.'
        )
    if cfg['learn']['extend_truncated'] and cfg['collect']['discount_factor'] == 1:
        raise ConfigError(
            'policy.learn.extend_truncated = True: needs policy.collect.discount_factor below 1; what goes on for ever '
            'has no sum without a discount.'
        )
    if cfg['learn']['ref_sync_freq'] is not None and cfg['learn']['beta'] == 0:
        raise ConfigError(
            f"policy.learn.ref_sync_freq = {cfg['learn']['ref_sync_freq']}: there is no reference with "
            'policy.learn.beta = 0.'
        )
    evaluator = cfg['eval']['evaluator']
    if any(k > evaluator['samples_per_start'] for k in evaluator['pass_at']):
        raise ConfigError(
            f"policy.eval.evaluator.pass_at = {list(evaluator['pass_at'])!r}: needs samples_per_start of at least "
            f"{max(evaluator['pass_at'])}, which is {evaluator['samples_per_start']}."
        )
    buffer = cfg.get('other', {}).get('replay_buffer', {})
    batch_size = cfg.get('batch_size', cfg['learn']['batch_size'])
    bounded = min(buffer.get(key, float('inf')) for key in ('max_use', 'max_staleness')) < float('inf')
    if bounded and batch_size > buffer['replay_buffer_size']:
        raise ConfigError(
            f'policy.learn.batch_size = {batch_size}: never are so many in a buffer of '
            f"policy.other.replay_buffer.replay_buffer_size = {buffer['replay_buffer_size']}."
        )
    if cfg.get('random_collect_size', 0) > 0 and not cfg.get('transition_with_policy_data', False):
        raise ConfigError(
            f"policy.random_collect_size = {cfg['random_collect_size']}: needs policy.transition_with_policy_data = "
            'True; a random policy makes no groups.'
        )
    options, adv_method = loss_options(cfg['learn'])
    if cfg['learn']['advantage'] == 'return_to_go_by_step' and adv_method not in STEP_ADVANTAGE_METHODS:
        raise ConfigError(
            f"policy.learn.adv_method = {adv_method!r}: with advantage 'return_to_go_by_step' must be one of "
            f"{', '.join(STEP_ADVANTAGE_METHODS)}."
        )
    if options.get('delta') is not None and _surrogate_name(cfg['learn']) != 'clip':
        raise ConfigError(
            f"policy.learn.delta = {options['delta']}: goes with surrogate 'clip' only, "
            f"not with {_surrogate_name(cfg['learn'])!r}."
        )
    clip_ratio = options.get('clip_ratio', 0.2)
    high = 1 + options.get('clip_ratio_high', clip_ratio)
    if options.get('delta') is not None and options['delta'] <= high:
        raise ConfigError(
            f"policy.learn.delta = {options['delta']}: must be greater than 1 + the clipping range above 1, {high:g}."
        )
    _check_schedule(cfg['learn']['lr_scheduler'], cfg['learn']['learning_rate'])
    if cfg['cuda']:
        parallel.check_gpu()


def check_for_tokens(cfg: Dict) -> None:
    """
    Overview:
        Refuse what goes with single steps only.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a run with a language model.
    """
    if cfg.learn.batch_steps is not None:
        raise ConfigError(f'policy.learn.batch_steps = {cfg.learn.batch_steps}: not for language models.')
    if cfg.learn.reward_aggregation == 'normalize_then_sum':
        written = dict(
            advantage=(cfg.learn.advantage, 'outcome'),
            adv_method=(loss_options(cfg.learn)[1], 'grpo'),  # others are linear: nothing would be normalised
        )
        for key, (value, needed) in written.items():
            if value != needed:
                raise ConfigError(
                    f"policy.learn.reward_aggregation = 'normalize_then_sum': needs policy.learn.{key} = {needed!r}, "
                    f'not {value!r}.'
                )
        if cfg.collect.discount_factor != 1:
            raise ConfigError(
                "policy.learn.reward_aggregation = 'normalize_then_sum': needs policy.collect.discount_factor = 1, not "
                f'{cfg.collect.discount_factor}; parts come with the last token alone.'
            )
    if cfg.model.get('gradient_checkpointing') and cfg.learn.log_prob_fn != 'linear_log_prob':
        raise ConfigError(
            "policy.model.gradient_checkpointing = True: needs policy.learn.log_prob_fn = 'linear_log_prob', not "
            f'{cfg.learn.log_prob_fn!r}.'
        )


def check_for_steps(cfg: Dict) -> None:
    """
    Overview:
        Refuse what goes with a language model only.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a run with another model.
    """
    for section, key, nothing in (('learn', 'micro_batch_tokens', None), ('collect', 'top_k', None),
                                  ('collect', 'top_p', None), ('learn', 'mask_truncated', False),
                                  ('learn', 'reward_aggregation', 'sum_then_normalize')):
        if cfg[section][key] != nothing:
            raise ConfigError(f'policy.{section}.{key} = {cfg[section][key]!r}: goes with a language model only.')
    options, _ = loss_options(cfg.learn)
    if cfg.learn.batch_steps is not None and options.get('ratio', 'token') != 'token':
        raise ConfigError(
            f'policy.learn.batch_steps = {cfg.learn.batch_steps}: single steps have no ratio of the whole row; '
            f"policy.learn.ratio must be 'token', not {options['ratio']!r}."
        )
    if options.get('reduction') == 'constant':
        raise ConfigError(
            f'policy.learn.loss = {cfg.learn.loss!r} with policy.learn.reduction = {cfg.learn.reduction!r}: '
            "reduction 'constant' divides by the length limit of completions, which this environment has not; take "
            "'token'."
        )


def check_replay(cfg: Dict) -> None:
    """
    Overview:
        Refuse what ``ding -m serial`` alone would get wrong: a replay buffer that gives groups of any age, since the \
        importance ratio corrects for a policy that is a few updates old, not for one of long ago.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy``.
    Raises:
        - ConfigError: If neither ``max_use`` nor ``max_staleness`` bounds the buffer, a limit goes by the clock, or \
            ``target_kl`` or ``max_ratio`` would end every update.
    """
    bounds = {key: cfg.other.replay_buffer.get(key, float('inf')) for key in ('max_use', 'max_staleness')}
    if min(bounds.values()) == float('inf'):
        raise ConfigError(
            'policy.other.replay_buffer.max_use = inf, policy.other.replay_buffer.max_staleness = inf: grpo with a '
            'replay buffer (ding -m serial) needs a bound; set max_staleness to some updates, or max_use to some uses.'
        )
    limits = cfg.other.replay_buffer.get('thruput_controller', {}).get('push_sample_rate_limit', {})
    if limits.get('max', float('inf')) != float('inf') or limits.get('min', 0) > 0:
        raise ConfigError(
            f'policy.other.replay_buffer.thruput_controller.push_sample_rate_limit = {dict(limits)!r}: goes by the '
            'clock, so that no run could be resumed, nor shared by several processes; leave it out.'
        )
    for key in ('target_kl', 'max_ratio'):
        if cfg.learn[key] is not None:
            raise ConfigError(
                f'policy.learn.{key} = {cfg.learn[key]}: not with a replay buffer (ding -m serial), whose samples are '
                'of older policies; updates would do nothing. Set it to None, and bound max_staleness.'
            )


def loss_options(learn: Dict) -> Tuple[Dict, str]:
    """
    Overview:
        The preset with the single choices on top.
    Arguments:
        - learn (:obj:`Dict`): The section ``policy.learn``.
    Returns:
        - options (:obj:`Dict`): Arguments of ``grpo_error``.
        - adv_method (:obj:`str`): Method of ``group_advantage``.
    """
    choices = ('clip_ratio', 'clip_ratio_high', 'delta', 'ratio', 'surrogate', 'reduction', 'adv_method')
    options = {**LOSS_PRESETS[learn['loss']], **{key: learn[key] for key in choices if learn[key] is not None}}
    adv_method = options.pop('adv_method', 'grpo')
    options.update({key: learn[key] for key in ('beta', 'kl_type', 'kl_ratio_correction')})
    if learn['surrogate'] is not None:
        options['surrogate'] = find_surrogate(learn['surrogate'])
    return options, adv_method


def _surrogate_name(learn: Dict) -> str:
    return learn['surrogate'] or LOSS_PRESETS[learn['loss']].get('surrogate', 'clip')


def _check_schedule(schedule: Dict, learning_rate: float) -> None:
    try:
        Schedule(schedule, learning_rate)
    except Exception as error:  # a schedule may raise anything over its arguments
        written = {key: dict(value) if isinstance(value, dict) else value for key, value in schedule.items()}
        raise ConfigError(f'policy.learn.lr_scheduler = {written!r}: {describe(error)}') from error


def _schema(cfg: Dict, default: Dict) -> Dict:
    learner = LEARNER_REGISTRY.get('base').default_config()
    schema = deep_merge_dicts(deep_merge_dicts(_PIPELINE, dict(learn=dict(learner=learner))), default)
    schema['learn']['learner']['hook'] = {}  # see _check_hooks
    schema['model'] = {}  # see _check_model
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
    known = {**LEARNER_REGISTRY.get('base').default_config().hook, 'log_reduce_after_iter': True}
    for key, value in hooks.items():
        full = f'policy.learn.learner.hook.{key}'
        if isinstance(value, dict):
            if not {'name', 'type', 'position'} <= set(value):
                raise ConfigError(f'{full} = {dict(value)!r}: a hook needs the keys name, type and position.')
            check_config(value, _HOOK, _HOOK_RULES, full)
        elif key not in known:
            raise ConfigError(f'{full} = {value!r}: unknown key; {nearest(key, known)}')
        elif key.endswith('_after_iter') and not Rule.integer(1).holds(value):
            raise ConfigError(f'{full} = {value!r}: must be {Rule.integer(1).allowed}.')
        elif key == 'save_ckpt_after_run' and not isinstance(value, bool):
            raise ConfigError(f'{full} = {value!r}: must be True or False.')
        elif key == 'load_ckpt_before_run' and value != '':
            if not isinstance(value, str):
                raise ConfigError(f"{full} = {value!r}: must be a checkpoint's file, or ''.")
            if parallel.rank() == 0:  # the only one that reads it
                check_is_file(value, full)


def model_type(model: Dict) -> str:
    """
    Overview:
        The registered model that a section ``policy.model`` means: what its ``type`` says, else DI-engine's ``vac``, \
        as for its PPO, where there is a shape of observations or actions, else a causal language model.
    Arguments:
        - model (:obj:`Dict`): The section.
    """
    return model.get('type', 'vac' if {'obs_shape', 'action_shape'} & set(model) else 'causal_lm')


def _check_model(model: Dict) -> None:
    modules = model.get('import_names', [])
    if not Rule.modules().holds(modules):
        raise ConfigError(f'policy.model.import_names = {modules!r}: must be {Rule.modules().allowed}.')
    import_module(modules)
    kind = model_type(model)
    if not Rule.registered(MODEL_REGISTRY).holds(kind):
        raise ConfigError(f'policy.model.type = {kind!r}: unknown model; {nearest(kind, MODEL_REGISTRY)}')
    arguments = {key: value for key, value in model.items() if key not in ('type', 'import_names')}
    check_arguments(arguments, MODEL_REGISTRY.get(kind), 'policy.model')
    _check_adapters(arguments)
    for key, value in arguments.items():
        sizes = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(size, int) and size > MOST for size in sizes):
            raise ConfigError(f'policy.model.{key} = {value!r}: must be at most {MOST}.')
    _check_finite(model, 'policy.model')


def _check_adapters(model: Dict) -> None:
    """New adapters on a model that is not on the disk could not be loaded again."""
    pretrained = model.get('pretrained')
    if model.get('lora') is None or model.get('save_merged') or not isinstance(pretrained, str):
        return
    where = f'policy.model.pretrained = {pretrained!r}'
    if base_of_adapters(pretrained, where) is not None:
        raise ConfigError(
            f'{where}: the folder holds adapters, which are merged into their base model first; with policy.model.lora '
            'write policy.model.save_merged=True, since the new adapters alone would fit no saved model.'
        )


def _check_finite(section: Dict, where: str) -> None:
    """Of a model with such a number everything that it gives would be none."""
    for key, value in section.items():
        if isinstance(value, dict):
            _check_finite(value, f'{where}.{key}')
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f'{where}.{key} = {value!r}: must be finite.')
