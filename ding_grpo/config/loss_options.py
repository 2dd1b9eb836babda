"""The options of the loss that a config sets, and checks whether they are consistent."""
from typing import Dict, Tuple

from ding_common import ConfigError
from ding_grpo.rl_utils import (
    LOSS_PRESETS, ROW_SURROGATES, STEP_ADVANTAGE_METHODS, SURROGATES, TOKEN_RATIO_SURROGATES
)

from .keys import DEFAULTS
from .surrogate import find_surrogate, needs_advantage

# Keys that a preset sets and the config may set individually; None takes the preset's value.
CHOICES = ('clip_ratio', 'clip_ratio_high', 'delta', 'ratio', 'surrogate', 'reduction', 'adv_method')


def loss_options(learn: Dict) -> Tuple[Dict, str]:
    """
    Overview:
        The options of a preset, replaced by those that are set individually.
    Arguments:
        - learn (:obj:`Dict`): The section ``policy.learn``.
    Returns:
        - options (:obj:`Dict`): Arguments of ``grpo_error``.
        - adv_method (:obj:`str`): Method of ``group_advantage``.
    """
    options = {**LOSS_PRESETS[learn['loss']], **{key: learn[key] for key in CHOICES if learn[key] is not None}}
    adv_method = options.pop('adv_method', 'grpo')
    options.update({key: learn[key] for key in ('beta', 'kl_type', 'kl_ratio_correction')})
    if learn['kl_in_reward']:
        options['beta'] = 0.0
    options['surrogate_options'] = dict(learn['surrogate_options'])
    options['surrogate'] = find_surrogate(surrogate_name(learn), options['surrogate_options'])
    return options, adv_method


def adv_method(learn: Dict) -> str:
    """The method of ``Advantage`` for the section ``policy.learn``."""
    return learn['adv_method'] or 'batch' if learn['advantage'] == 'gae' else loss_options(learn)[1]


def surrogate_name(learn: Dict) -> str:
    """The name of the surrogate for the section ``policy.learn``."""
    return learn['surrogate'] or LOSS_PRESETS[learn['loss']].get('surrogate', 'clip')


def check_loss(learn: Dict) -> None:
    """
    Overview:
        Check that the options of the loss are consistent.
    Arguments:
        - learn (:obj:`Dict`): The section ``policy.learn``.
    Raises:
        - ConfigError: On the first combination that cannot run.
    """
    options, method = loss_options(learn)
    _check_surrogate(learn, options)
    _check_coefficients(learn)
    if learn['shadow_every'] > 0 and not learn['shadow']:
        raise ConfigError(
            f"policy.learn.shadow_every = {learn['shadow_every']}: needs losses to compare. Set policy.learn.shadow, "
            "for example to 'all'."
        )
    if learn['advantage'] == 'return_to_go_by_step' and method not in STEP_ADVANTAGE_METHODS:
        raise ConfigError(
            f"policy.learn.adv_method = {method!r}: with advantage 'return_to_go_by_step' must be one of "
            f"{', '.join(STEP_ADVANTAGE_METHODS)}."
        )
    if options.get('delta') is not None and surrogate_name(learn) != 'clip':
        raise ConfigError(
            f"policy.learn.delta = {options['delta']}: needs surrogate 'clip', "
            f"not {surrogate_name(learn)!r}."
        )
    clip_ratio = options.get('clip_ratio', 0.2)
    high = 1 + options.get('clip_ratio_high', clip_ratio)
    if options.get('delta') is not None and options['delta'] <= high:
        raise ConfigError(
            f"policy.learn.delta = {options['delta']}: must be greater than 1 + the clipping range above 1, {high:g}."
        )


def _check_surrogate(learn: Dict, options: Dict) -> None:
    name, ratio, reduction = surrogate_name(learn), options.get('ratio', 'token'), options.get('reduction', 'sequence')
    if ratio != 'token' and SURROGATES.get(name) in TOKEN_RATIO_SURROGATES:
        raise ConfigError(
            f"policy.learn.ratio = {ratio!r}: must be 'token' with surrogate {name!r}, which needs the ratio of each "
            'token.'
        )
    if reduction != 'sequence' and SURROGATES.get(name) in ROW_SURROGATES:
        raise ConfigError(
            f"policy.learn.reduction = {reduction!r}: must be 'sequence' with surrogate {name!r}, whose loss is a mean "
            'over rows.'
        )
    for key in ('top_entropy', 'sampler_correction', 'off_policy_mask'):  # these change advantages of single tokens
        if learn[key] is not None and not needs_advantage(options['surrogate'], options['surrogate_options']):
            raise ConfigError(
                f'policy.learn.{key} = {learn[key]!r}: not available with surrogate {name!r}. Its loss of a token does '
                'not vanish with the advantage of the token, or it depends on other advantages.'
            )
    bound = learn['sampler_correction_bound']
    if bound != DEFAULTS['learn']['sampler_correction_bound'] and learn['sampler_correction'] is None:
        raise ConfigError(
            f'policy.learn.sampler_correction_bound = {bound}: only available with policy.learn.sampler_correction.'
        )


def _check_coefficients(learn: Dict) -> None:
    for key in ('kl_in_reward', 'kl_target'):
        if learn[key] not in (None, False) and learn['beta'] == 0:
            raise ConfigError(
                f'policy.learn.{key} = {learn[key]!r}: needs policy.learn.beta above 0, the coefficient of the KL.'
            )
    for key, target in (('kl_horizon', 'kl_target'), ('entropy_step', 'entropy_target')):
        if learn[key] != DEFAULTS['learn'][key] and learn[target] is None:
            raise ConfigError(f'policy.learn.{key} = {learn[key]!r}: only available with policy.learn.{target}.')
    for key, value in (('kl_ratio_correction', False), ('reward_aggregation', 'sum_then_normalize')):
        if learn['kl_in_reward'] and learn[key] != value:
            raise ConfigError(
                f'policy.learn.{key} = {learn[key]!r}: must be {value!r} with policy.learn.kl_in_reward = True, which '
                'changes the reward of each token.'
            )
