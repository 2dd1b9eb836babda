"""Checks of the section ``policy`` of a config whose policy type is ``grpo``: alone, and with what a run has."""
from typing import Dict

from ding.utils import BUFFER_REGISTRY

from ding_common import ConfigError
from ding_grpo.rl_utils import TOKEN_ADVANTAGE_METHODS

from .check_keys import check_keys
from .key import Combination
from .keys import CHECKS, DEFAULTS
from .loss_options import loss_config, surrogate_name

# Keys of language models.
_OF_TOKENS = (
    'learn.mask_truncated', 'learn.reward_aggregation', 'learn.demonstrations.share', 'learn.preference.weight',
    'learn.environment_tokens.weight', 'collect.extra_rows', 'collect.tree.branches', 'collect.top_k', 'collect.top_p',
    'collect.processors', 'collect.autocast', 'collect.engine', 'eval.autocast', 'teacher'
)

# What an advantage of whole episodes needs.
_OF_WHOLE_EPISODES = {'learn.kl.in_reward': False, 'collect.extra_rows': 0, 'collect.tree.branches': []}

# Wrappers of DI-engine that normalise by what one environment has seen.
_OF_ONE_ENVIRONMENT = dict(obs_norm='observations', reward_norm='rewards')


def check_policy_config(cfg: Dict, default: Dict) -> None:
    """Check the section ``policy`` as DI-engine compiled it, with the user's keys in it. Raises a ``ConfigError`` on
    the first key or combination that cannot run, with the key, its value and the allowed values."""
    check_keys(cfg, default)
    for check in CHECKS:
        check(Combination(cfg, default))


def check_for_tokens(cfg: Dict) -> None:
    """Check that the compiled section ``policy`` of a run with a language model sets nothing of single steps."""
    policy = Combination(cfg, DEFAULTS)
    policy.only_with(['learn.batch_steps'], False, 'models of single steps. Language models need None')
    policy.only_with(['learn.ppo_param_init'], False, 'models of single steps. Language models keep their weights')
    if cfg.learn.reward_aggregation == 'normalize_then_sum':
        reason = "with policy.learn.reward_aggregation = 'normalize_then_sum'"
        policy.must_be('learn.advantage', 'outcome', reason)
        method = loss_config(cfg.learn).adv_method
        if method != 'grpo':  # others are linear and would not normalise
            raise policy.refusal('learn.adv_method', f"must be 'grpo', not {method!r}, {reason}.")
        policy.must_be('collect.discount_factor', 1, f'{reason}, because only the last token has reward parts')
    if cfg.model.get('gradient_checkpointing'):
        policy.must_be('learn.log_prob_fn', 'linear_log_prob', 'with policy.model.gradient_checkpointing = True')


def check_for_turns(cfg: Dict, max_turns: int, trajectories: bool = False) -> None:
    """Check that the advantage of a language model, in the compiled section ``policy``, fits ``env.max_turns``, and
    episodes with several ``trajectories``."""
    policy, advantage, discount = Combination(cfg, DEFAULTS), cfg.learn.advantage, cfg.collect.discount_factor
    method = loss_config(cfg.learn).adv_method
    if trajectories:
        reason = 'with an agent, whose episodes may have several texts'
        for key, value in _OF_WHOLE_EPISODES.items():
            policy.must_be(key, value, reason)
        if advantage not in ('outcome', 'return_to_go_by_step'):
            raise policy.refusal('learn.advantage', f"must be 'outcome' or 'return_to_go_by_step' {reason}.")
        if method in TOKEN_ADVANTAGE_METHODS:
            raise policy.refusal('learn.adv_method', f'compares single tokens, not available {reason}.')
    if max_turns == 1:
        needed = 'needs env.max_turns above 1, which is 1.'
        if advantage == 'anchor':
            raise policy.refusal('learn.advantage', needed)
        if cfg.collect.tree.branches and cfg.collect.tree.at == 'turns':
            raise policy.refusal('collect.tree.at', needed)
        return
    turns = f'env.max_turns = {max_turns}'
    if cfg.collect.extra_rows > 0:
        reason = 'because how long a row becomes is known after its last turn only. Set it to 0.'
        raise policy.refusal('collect.extra_rows', f'not available with {turns}, {reason}')
    if advantage == 'return_to_go':
        raise policy.refusal(
            'learn.advantage', f'biased with {turns}. It compares all turns of a group with each other, and the policy '
            "decides how many turns a row has. Use 'return_to_go_by_step', 'outcome' or 'anchor', which are unbiased."
        )
    if method in TOKEN_ADVANTAGE_METHODS and (method != 'remax' or discount != 1):
        reason = 'It compares single tokens, and turns differ in length.'
        raise policy.refusal('learn.adv_method', f'not available with {turns}. {reason}')
    if advantage == 'gae':
        reason = 'because a critic discounts by token, and turns differ in length'
        policy.must_be('collect.discount_factor', 1, f"with policy.learn.advantage = 'gae' and {turns}, {reason}")


def check_for_steps(cfg: Dict) -> None:
    """Check that the compiled section ``policy`` of a run with another model sets nothing of language models."""
    policy, loss, name = Combination(cfg, DEFAULTS), loss_config(cfg.learn), surrogate_name(cfg.learn)
    policy.only_with(_OF_TOKENS, False, 'language models')
    policy.only_with(['learn.micro_batch_tokens'], policy['learn.micro_batch_tokens'] is None, 'language models')
    if cfg.learn.advantage == 'anchor':
        raise policy.refusal('learn.advantage', 'only available with language models and several turns.')
    if cfg.learn.batch_steps is not None and (loss.ratio != 'token' or loss.traits.whole_rows):
        found = f'surrogate {name!r}' if loss.ratio == 'token' else f'policy.learn.ratio = {loss.ratio!r}'
        raise policy.refusal(
            'learn.batch_steps', f'not available with {found}, which needs the ratio of the whole row. Set it to None.'
        )
    space = cfg.model.get('action_space')
    if space in ('continuous', 'hybrid'):
        reason = f'policy.model.action_space = {space!r}: its actions have densities, no probabilities.'
        if cfg.learn.adv_method == 'optimal_token_baseline':
            raise policy.refusal('learn.adv_method', f'not available with {reason}')
        if loss.traits.probabilities:
            raise ConfigError(f'policy.learn.surrogate = {name!r}: not available with {reason}')
    if loss.reduction == 'constant':
        raise ConfigError(
            f'policy.learn.loss = {cfg.learn.loss!r} with policy.learn.reduction = {cfg.learn.reduction!r}: '
            "reduction 'constant' divides by the length limit of completions, which this environment does not have. "
            "Use 'token'."
        )


def check_wrappers(env: Dict) -> None:
    """Check that no wrapper of the section ``env`` lets the environments of a group differ."""
    wrappers = env.get('env_wrapper')
    for wrapper in wrappers if isinstance(wrappers, (list, tuple)) else ():
        kind = wrapper.get('type') if isinstance(wrapper, dict) else None
        if kind in _OF_ONE_ENVIRONMENT:
            raise ConfigError(
                f'env.env_wrapper.type = {kind!r}: its statistics are those of one environment, so that equal '
                f'{_OF_ONE_ENVIRONMENT[kind]} of a group become unequal. Leave it out, or use constants '
                '(static_obs_norm).'
            )


def check_replay(cfg: Dict, kind: str = 'advanced') -> None:
    """Check the options of ``policy`` that matter for ``ding -m serial`` only. Its replay buffer, of the registered
    name ``kind``, must not return groups of any age: the importance ratio corrects for a policy that is a few updates
    old, not for a much older one."""
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
    if cfg.get('collect', {}).get('max_staleness', 0) != 0:
        raise ConfigError(
            f"policy.collect.max_staleness = {cfg['collect']['max_staleness']}: only available with ding -m "
            'serial_onpolicy. With a replay buffer, set it to 0.'
        )
    for key in ('target_kl', 'max_ratio'):
        value = cfg.get('learn', {}).get(key)
        if value is not None:
            raise ConfigError(
                f'policy.learn.{key} = {value}: not available with a replay buffer (ding -m serial), whose '
                'samples are from older policies: updates would do nothing. Set it to None, and bound max_staleness.'
            )
