"""Checks the keys of what a policy learns from beside the reward: a teacher, and demonstrations."""
from typing import Dict

from ding_common import ConfigError

from .keys import DEFAULTS

_NO_USE = ('config', 'lora', 'save_merged', 'gradient_checkpointing')  # of the arguments of a model
# What changes the sampling distribution, apart from the temperature.
_SAMPLING = ('top_k', 'top_p', 'min_p', 'typical_p', 'repetition_penalty', 'logit_bias', 'allowed_tokens')


def check_distillation(cfg: Dict) -> None:
    """
    Overview:
        Check that the options of a teacher and of demonstrations are consistent.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy``.
    Raises:
        - ConfigError: On the first combination that cannot run.
    """
    learn, teacher = cfg['learn'], cfg['teacher']
    weight = learn['demonstrations']['weight']
    if learn['demonstrations']['share'] == 0 and weight != DEFAULTS['learn']['demonstrations']['weight']:
        raise ConfigError(
            f'policy.learn.demonstrations.weight = {weight}: only available with policy.learn.demonstrations.share '
            'above 0.'
        )
    if learn['advantage'] == 'none':
        if teacher is None and learn['demonstrations']['share'] == 0:
            raise ConfigError(
                "policy.learn.advantage = 'none': nothing would be learned. Set policy.teacher = "
                'dict(pretrained=...), policy.learn.demonstrations = dict(share=...), or another advantage.'
            )
        for key, value in (('adv_method', None), ('reward_aggregation', 'sum_then_normalize')):
            if learn[key] != value:
                raise ConfigError(
                    f"policy.learn.{key} = {learn[key]!r}: must be {value!r} with policy.learn.advantage = 'none', "
                    'which uses no reward.'
                )
    if teacher is None:
        for key, default in DEFAULTS['learn']['distillation'].items():
            if learn['distillation'][key] != default:
                raise ConfigError(
                    f"policy.learn.distillation.{key} = {learn['distillation'][key]!r}: only available with "
                    'policy.teacher.'
                )
        return
    if not isinstance(teacher.get('pretrained'), str):
        raise ConfigError(f'policy.teacher = {dict(teacher)!r}: must have the key pretrained, a folder or a name.')
    for key in _NO_USE:
        if teacher.get(key):
            raise ConfigError(f'policy.teacher.{key} = {teacher[key]!r}: not available, the teacher is not trained.')
    if learn['log_prob_fn'] != 'linear_log_prob':
        raise ConfigError(
            f"policy.learn.log_prob_fn = {learn['log_prob_fn']!r}: must be 'linear_log_prob' with policy.teacher, "
            'which reads the hidden states that the teacher is compared with.'
        )
    for key in _SAMPLING:
        value, default = cfg['collect'].get(key), DEFAULTS['collect'].get(key)
        if value != default:
            raise ConfigError(
                f'policy.collect.{key} = {value!r}: must be {default!r} with policy.teacher, because the teacher is '
                'compared over the whole vocabulary.'
            )
