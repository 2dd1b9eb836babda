"""Checks which keys must be consistent in a config whose policy type is ``grpo``."""
from typing import Dict

from ding.utils import BUFFER_REGISTRY

from ding_common import ConfigError, describe, parallel
from ding_grpo.rl_utils import TOKEN_ADVANTAGE_METHODS

from .check_keys import check_keys
from .distillation_check import check_distillation
from .keys import DEFAULTS, SINGLE_ROW_METHODS, UNGROUPED_METHODS
from .loss_options import check_loss, loss_config, surrogate_name
from .schedule import Schedule
from .shard_check import check_shard

GAE_METHODS = ('batch', 'no_std')
# Keys that need a critic, with their defaults.
CRITIC_KEYS = {
    key: DEFAULTS['learn'][key]
    for key in ('critic', 'gae_lambda', 'value_weight', 'value_norm', 'value_clip', 'value_warmup')
}


def check_policy_config(cfg: Dict, default: Dict) -> None:
    """
    Overview:
        Check the compiled section ``policy`` of a config.
    Arguments:
        - cfg (:obj:`Dict`): The section as DI-engine compiled it, with the user's keys in it.
        - default (:obj:`Dict`): The defaults of the policy.
    Raises:
        - ConfigError: On the first key or combination that cannot run; the message gives the key, its value and the \
            allowed values.
    """
    check_keys(cfg, default)
    _check_sampling(cfg)
    _check_buffer(cfg)
    _check_stale(cfg)
    check_loss(cfg['learn'])
    _check_critic(cfg)
    check_distillation(cfg)
    check_shard(cfg)
    _check_schedule(cfg['learn']['lr_scheduler'], cfg['learn']['learning_rate'])
    if cfg['cuda']:
        parallel.check_gpu()


def _check_sampling(cfg: Dict) -> None:
    collector = cfg['collect'].get('collector', {}).get('type', 'group')
    if collector != 'group':
        raise ConfigError(
            f'create_config.collector.type = {collector!r}: grpo learns from whole groups, which only the group '
            "collector makes. Use collector=dict(type='group') in create_config."
        )
    order, pools = cfg['collect']['problem_order'], cfg['collect']['pools']
    changed = [key for key, default in DEFAULTS['collect']['pools'].items() if pools[key] != default]
    if changed and order != 'pools':
        raise ConfigError(
            f'policy.collect.pools.{changed[0]} = {pools[changed[0]]}: only available with '
            f"policy.collect.problem_order = 'pools', not {order!r}."
        )
    if pools['hard_to'] >= pools['easy_from']:
        raise ConfigError(
            f"policy.collect.pools.hard_to = {pools['hard_to']}: must be below easy_from = {pools['easy_from']}."
        )
    if cfg['learn']['extend_truncated'] and cfg['collect']['discount_factor'] == 1:
        raise ConfigError(
            'policy.learn.extend_truncated = True: needs policy.collect.discount_factor below 1, because the sum of '
            'infinitely many rewards has no limit without a discount.'
        )
    if cfg['learn']['ref_sync_freq'] is not None and cfg['learn']['beta'] == 0:
        raise ConfigError(
            f"policy.learn.ref_sync_freq = {cfg['learn']['ref_sync_freq']}: there is no reference with "
            'policy.learn.beta = 0. Raise beta, or remove ref_sync_freq.'
        )
    evaluator = cfg['eval']['evaluator']
    if any(k > evaluator['samples_per_start'] for k in evaluator['pass_at']):
        raise ConfigError(
            f"policy.eval.evaluator.pass_at = {list(evaluator['pass_at'])!r}: needs samples_per_start of at least "
            f"{max(evaluator['pass_at'])}, which is {evaluator['samples_per_start']}."
        )


def _check_stale(cfg: Dict) -> None:
    for key in ('cuda', 'multi_gpu'):
        if cfg['collect']['stale'] > 0 and cfg[key]:
            raise ConfigError(
                f"policy.collect.stale = {cfg['collect']['stale']}: not available with policy.{key} = True. Set it to "
                '0.'
            )


def _check_buffer(cfg: Dict) -> None:
    buffer = cfg.get('other', {}).get('replay_buffer', {})
    batch_size = cfg.get('batch_size', cfg['learn']['batch_size'])
    bounded = min(buffer.get(key, float('inf')) for key in ('max_use', 'max_staleness')) < float('inf')
    if bounded and batch_size > buffer['replay_buffer_size']:
        raise ConfigError(
            f'policy.learn.batch_size = {batch_size}: must be at most '
            f"policy.other.replay_buffer.replay_buffer_size = {buffer['replay_buffer_size']}, because the buffer never "
            'contains more groups.'
        )
    if cfg.get('random_collect_size', 0) > 0 and not cfg.get('transition_with_policy_data', False):
        raise ConfigError(
            f"policy.random_collect_size = {cfg['random_collect_size']}: needs policy.transition_with_policy_data = "
            'True, because a random policy makes no groups.'
        )


def _check_critic(cfg: Dict) -> None:
    learn = cfg['learn']
    if learn['advantage'] != 'anchor' and learn['anchor_weight'] != DEFAULTS['learn']['anchor_weight']:
        raise ConfigError(
            f"policy.learn.anchor_weight = {learn['anchor_weight']}: only available with policy.learn.advantage = "
            f"'anchor', not {learn['advantage']!r}."
        )
    if learn['advantage'] != 'gae':
        ungrouped = learn['advantage'] == 'none' or learn['adv_method'] in UNGROUPED_METHODS
        if cfg['group_size'] == 1 and not ungrouped and learn['adv_method'] not in SINGLE_ROW_METHODS:
            raise ConfigError(
                "policy.group_size = 1: a group is compared with itself, so it needs at least 2 rows. Raise it, or set "
                "policy.learn.advantage to 'gae', or policy.learn.adv_method to 'reinforce_plus_plus' or to 'remax'. "
                "With policy.teacher alone, policy.learn.advantage can be 'none'."
            )
        if learn['adv_method'] == 'remax' and not cfg['collect']['shared_start']:
            raise ConfigError(
                "policy.collect.shared_start = False: must be True with policy.learn.adv_method = 'remax', because one "
                'greedy episode is the baseline of all rows of a group.'
            )
        if ungrouped:
            key = 'advantage' if learn['advantage'] == 'none' else 'adv_method'
            _check_ungrouped(cfg, f'policy.learn.{key} = {learn[key]!r}')
        set_keys = [key for key, default in CRITIC_KEYS.items() if learn[key] != default]
        if set_keys:
            raise ConfigError(
                f'policy.learn.{set_keys[0]} = {learn[set_keys[0]]!r}: only available with policy.learn.advantage = '
                f"'gae', not {learn['advantage']!r}."
            )
        return
    if learn['adv_method'] not in (None, *GAE_METHODS):
        raise ConfigError(
            f"policy.learn.adv_method = {learn['adv_method']!r}: with advantage 'gae' must be None or one of "
            f"{', '.join(GAE_METHODS)}."
        )
    needed = (
        ('learn.extend_truncated', False, 'the critic predicts what follows a time limit'),
        ('learn.reward_aggregation', 'sum_then_normalize', 'the critic predicts the sum of the reward parts'),
    )
    for path, value, reason in needed:
        if learn[path.split('.')[1]] != value:
            raise ConfigError(
                f"policy.{path} = {learn[path.split('.')[1]]!r}: must be {value!r} with policy.learn.advantage = "
                f"'gae', because {reason}."
            )
    _check_ungrouped(cfg, "policy.learn.advantage = 'gae'")


def _check_ungrouped(cfg: Dict, reason: str) -> None:
    """Check that nothing depends on a comparison of the rows of a group."""
    if cfg['learn']['drop_equal_groups']:
        raise ConfigError(
            f'policy.learn.drop_equal_groups = True: must be False with {reason}, because the rows of a group are not '
            'compared.'
        )
    collector = cfg['collect'].get('collector', {})
    replacements = collector.get('max_replacements', 0)
    if replacements > 0 and collector.get('reward_range') is None:
        raise ConfigError(
            f'policy.collect.collector.max_replacements = {replacements}: must be 0 with {reason}, because the rows of '
            'a group are not compared.'
        )


def check_for_tokens(cfg: Dict) -> None:
    """
    Overview:
        Check that no option is set that only applies to single steps.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a run with a language model.
    """
    if cfg.learn.batch_steps is not None:
        raise ConfigError(
            f'policy.learn.batch_steps = {cfg.learn.batch_steps}: not available for language models. Set it to None.'
        )
    if cfg.learn.reward_aggregation == 'normalize_then_sum':
        written = dict(
            advantage=(cfg.learn.advantage, 'outcome'),
            adv_method=(loss_config(cfg.learn).adv_method, 'grpo'),  # others are linear and would not normalise
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
                f'{cfg.collect.discount_factor}, because only the last token has reward parts.'
            )
    if cfg.model.get('gradient_checkpointing') and cfg.learn.log_prob_fn != 'linear_log_prob':
        raise ConfigError(
            "policy.model.gradient_checkpointing = True: needs policy.learn.log_prob_fn = 'linear_log_prob', not "
            f'{cfg.learn.log_prob_fn!r}.'
        )


def check_for_turns(cfg: Dict, max_turns: int) -> None:
    """
    Overview:
        Check that the advantage fits the number of turns.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a run with a language model.
        - max_turns (:obj:`int`): ``env.max_turns``.
    """
    advantage, discount = cfg.learn.advantage, cfg.collect.discount_factor
    if max_turns == 1:
        if advantage == 'anchor':
            raise ConfigError("policy.learn.advantage = 'anchor': needs env.max_turns above 1, which is 1.")
        return
    if cfg.collect.extra_rows > 0:
        raise ConfigError(
            f'policy.collect.extra_rows = {cfg.collect.extra_rows}: not available with env.max_turns = {max_turns}, '
            'because how long a row becomes is known after its last turn only. Set it to 0.'
        )
    if advantage == 'return_to_go':
        raise ConfigError(
            f"policy.learn.advantage = 'return_to_go': biased with env.max_turns = {max_turns}. It compares all turns "
            'of a group with each other, and the policy decides how many turns a row has. Use '
            "'return_to_go_by_step', 'outcome' or 'anchor', which are unbiased."
        )
    method = loss_config(cfg.learn).adv_method
    if method in TOKEN_ADVANTAGE_METHODS and (method != 'remax' or discount != 1):
        raise ConfigError(
            f'policy.learn.adv_method = {cfg.learn.adv_method!r}: not available with env.max_turns = {max_turns}. It '
            'compares single tokens, and turns differ in length.'
        )
    if advantage == 'gae' and discount != 1:
        raise ConfigError(
            f"policy.collect.discount_factor = {discount}: must be 1 with policy.learn.advantage = 'gae' and "
            f'env.max_turns = {max_turns}, because a critic discounts by token, and turns differ in length.'
        )


def check_for_steps(cfg: Dict) -> None:
    """
    Overview:
        Check that no option is set that only applies to language models.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a run with another model.
    """
    of_tokens = dict(
        learn=('micro_batch_tokens', 'mask_truncated', 'reward_aggregation'),
        collect=(
            'extra_rows', 'top_k', 'top_p', 'min_p', 'typical_p', 'repetition_penalty', 'logit_bias', 'allowed_tokens',
            'autocast'
        ),
        eval=('autocast', ),
    )
    for section, key in ((section, key) for section, keys in of_tokens.items() for key in keys):
        if cfg[section][key] != DEFAULTS[section][key]:
            raise ConfigError(f'policy.{section}.{key} = {cfg[section][key]!r}: only available for language models.')
    if cfg.learn.demonstrations.share > 0:
        raise ConfigError(
            f'policy.learn.demonstrations.share = {cfg.learn.demonstrations.share}: only available for language models.'
        )
    if cfg.teacher is not None:
        raise ConfigError(f'policy.teacher = {dict(cfg.teacher)!r}: only available for language models.')
    if cfg.learn.advantage == 'anchor':
        raise ConfigError("policy.learn.advantage = 'anchor': only available for language models with several turns.")
    loss = loss_config(cfg.learn)
    if cfg.learn.batch_steps is not None and loss.ratio != 'token':
        raise ConfigError(
            f'policy.learn.batch_steps = {cfg.learn.batch_steps}: single steps have no ratio of the whole row. '
            f"policy.learn.ratio must be 'token', not {loss.ratio!r}."
        )
    name = surrogate_name(cfg.learn)
    if cfg.learn.batch_steps is not None and loss.traits.whole_rows:
        raise ConfigError(
            f'policy.learn.batch_steps = {cfg.learn.batch_steps}: single steps have no ratio of the whole row, which '
            f'surrogate {name!r} needs. Set it to None.'
        )
    if cfg.learn.adv_method == 'optimal_token_baseline' and cfg.model.get('action_space') == 'continuous':
        raise ConfigError(
            "policy.learn.adv_method = 'optimal_token_baseline': needs probabilities of discrete actions, not "
            "policy.model.action_space = 'continuous'."
        )
    if loss.traits.probabilities and cfg.model.get('action_space') == 'continuous':
        raise ConfigError(
            f"policy.learn.surrogate = {name!r}: compares probabilities of actions. Continuous actions "
            "(policy.model.action_space = 'continuous') have densities."
        )
    if loss.reduction == 'constant':
        raise ConfigError(
            f'policy.learn.loss = {cfg.learn.loss!r} with policy.learn.reduction = {cfg.learn.reduction!r}: '
            "reduction 'constant' divides by the length limit of completions, which this environment does not have. "
            "Use 'token'."
        )


def check_replay(cfg: Dict, kind: str = 'advanced') -> None:
    """
    Overview:
        Check the options that matter for ``ding -m serial`` only. Its replay buffer must not return groups of any \
        age. The importance ratio corrects for a policy that is a few updates old, not for a much older one.
    Arguments:
        - cfg (:obj:`Dict`): The section ``policy``, compiled or not.
        - kind (:obj:`str`): Registered name of the buffer.
    Raises:
        - ConfigError: If neither ``max_use`` nor ``max_staleness`` bounds the buffer, or its kind has no such bound, \
            if a limit depends on wall-clock time, or if ``target_kl`` or ``max_ratio`` would stop every update.
    """
    buffer = cfg.get('other', {}).get('replay_buffer', {})
    bounds = {key: buffer.get(key, float('inf')) for key in ('max_use', 'max_staleness')}
    if not set(bounds) & set(BUFFER_REGISTRY.get(kind).default_config()):
        raise ConfigError(
            f'create_config.replay_buffer.type = {kind!r}: cannot bound how often or how long groups are used '
            "(max_use, max_staleness), which grpo needs. Use 'advanced', and set one of them in "
            'policy.other.replay_buffer; or train without a buffer (ding -m serial_onpolicy).'
        )
    if min(bounds.values()) == float('inf'):
        raise ConfigError(
            'policy.other.replay_buffer.max_use = inf, policy.other.replay_buffer.max_staleness = inf: grpo with a '
            'replay buffer (ding -m serial) needs a bound. Set max_staleness to a number of updates, or max_use to a '
            'number of uses; or train without a buffer (ding -m serial_onpolicy).'
        )
    limits = buffer.get('thruput_controller', {}).get('push_sample_rate_limit', {})
    if limits.get('max', float('inf')) != float('inf') or limits.get('min', 0) > 0:
        raise ConfigError(
            f'policy.other.replay_buffer.thruput_controller.push_sample_rate_limit = {dict(limits)!r}: depends on '
            'wall-clock time, so a run could neither be resumed nor shared by several processes. Remove it.'
        )
    if cfg.get('collect', {}).get('stale', 0) != 0:
        raise ConfigError(
            f"policy.collect.stale = {cfg['collect']['stale']}: only available with ding -m serial_onpolicy. With a "
            'replay buffer, set it to 0.'
        )
    for key in ('target_kl', 'max_ratio'):
        value = cfg.get('learn', {}).get(key)
        if value is not None:
            raise ConfigError(
                f'policy.learn.{key} = {value}: not available with a replay buffer (ding -m serial), whose '
                'samples are from older policies: updates would do nothing. Set it to None, and bound max_staleness.'
            )


def _check_schedule(schedule: Dict, learning_rate: float) -> None:
    try:
        Schedule(schedule, learning_rate)
    except Exception as error:  # a schedule may raise any exception for its arguments
        written = {key: dict(value) if isinstance(value, dict) else value for key, value in schedule.items()}
        raise ConfigError(f'policy.learn.lr_scheduler = {written!r}: {describe(error)}') from error
