"""The options of the loss that a config sets, and checks whether they are consistent."""
from dataclasses import replace
from typing import Dict

from ding_common import ConfigError
from ding_grpo.rl_utils import LOSS_PRESETS, STEP_ADVANTAGE_METHODS, LossConfig, Preset

from .keys import DEFAULTS
from .surrogate import find_surrogate, needs_advantage

# Keys that a preset sets and the config may set individually; None takes the preset's value.
CHOICES = ('clip_ratio', 'clip_ratio_high', 'delta', 'ratio', 'surrogate', 'reduction', 'adv_method')


def loss_config(learn: Dict) -> Preset:
    """
    Overview:
        The preset of a config, in which the choices that are set individually replace those of the preset.
    Arguments:
        - learn (:obj:`Dict`): The section ``policy.learn``.
    Raises:
        - ConfigError: If the loss has no such option, or two of them exclude each other.
    """
    chosen = {key: learn[key] for key in CHOICES if learn[key] is not None}
    if learn['advantage'] == 'gae':  # its advantages are not those of any preset
        chosen['adv_method'] = learn['adv_method'] or 'batch'
    options = dict(learn['surrogate_options'])
    chosen.update(surrogate_options=options, surrogate=find_surrogate(surrogate_name(learn), options))
    chosen.update(beta=0.0 if learn['kl_in_reward'] else learn['beta'])
    chosen.update({key: learn[key] for key in ('kl_type', 'kl_ratio_correction')})
    try:
        return replace(LOSS_PRESETS[learn['loss']], **chosen)
    except ValueError as error:
        raise ConfigError(f'policy.learn.{error}.') from error


def surrogate_name(learn: Dict) -> str:
    """The name of the surrogate for the section ``policy.learn``."""
    return learn['surrogate'] or LOSS_PRESETS[learn['loss']].surrogate


def check_loss(learn: Dict) -> None:
    """
    Overview:
        Check that the options of the loss are consistent.
    Arguments:
        - learn (:obj:`Dict`): The section ``policy.learn``.
    Raises:
        - ConfigError: On the first combination that cannot run.
    """
    loss = loss_config(learn)
    _check_surrogate(learn, loss)
    _check_coefficients(learn)
    if learn['shadow_every'] > 0 and not learn['shadow']:
        raise ConfigError(
            f"policy.learn.shadow_every = {learn['shadow_every']}: needs losses to compare. Set policy.learn.shadow, "
            "for example to 'all'."
        )
    if learn['advantage'] == 'return_to_go_by_step' and loss.adv_method not in STEP_ADVANTAGE_METHODS:
        raise ConfigError(
            f"policy.learn.adv_method = {loss.adv_method!r}: with advantage 'return_to_go_by_step' must be one of "
            f"{', '.join(STEP_ADVANTAGE_METHODS)}."
        )


def _check_surrogate(learn: Dict, loss: LossConfig) -> None:
    name = surrogate_name(learn)
    if loss.reduction != 'sequence' and loss.traits.of_row:
        raise ConfigError(
            f"policy.learn.reduction = {loss.reduction!r}: must be 'sequence' with surrogate {name!r}, whose loss is a "
            'mean over rows.'
        )
    for key in ('top_entropy', 'sampler_correction', 'off_policy_mask'):  # these change advantages of single tokens
        if learn[key] is not None and not needs_advantage(loss.surrogate, loss.surrogate_options):
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
