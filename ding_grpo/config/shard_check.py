"""Checks of ``policy.shard``: what is not divided among processes yet is refused before a run."""
from typing import Dict

from ding_common import ConfigError

from .check_keys import model_type
from .keys import DEFAULTS

# Keys that must keep their defaults. Each would read the model, or another one, in a way that is not divided.
_WHOLE = (
    ('teacher', ),
    ('learn', 'log_prob_fn'),
    ('learn', 'demonstrations', 'share'),
    ('learn', 'shadow'),
    ('learn', 'noise_every'),
)


def check_shard(cfg: Dict) -> None:
    """
    Overview:
        Check that a run with ``policy.shard`` uses only what can be divided.
    Arguments:
        - cfg (:obj:`Dict`): The compiled section ``policy`` of a config.
    Raises:
        - ConfigError: On the first key that it does not work with.
    """
    if not cfg['shard']:
        return
    if not cfg['multi_gpu']:
        raise ConfigError(
            f"policy.shard = {cfg['shard']!r}: needs policy.multi_gpu = True, since processes share the model."
        )
    if model_type(cfg['model']) != 'causal_lm':
        raise ConfigError(
            f"policy.shard = {cfg['shard']!r}: needs policy.model.type = 'causal_lm', not {model_type(cfg['model'])!r}."
        )
    if cfg['learn']['advantage'] == 'gae':
        raise _refusal(cfg, 'learn.advantage', 'gae', 'outcome')
    for path in _WHOLE:
        value, default = cfg, DEFAULTS
        for key in path:
            value, default = value[key], default[key]
        if value != default:
            raise _refusal(cfg, '.'.join(path), value, default)


def _refusal(cfg: Dict, key: str, value: object, allowed: object) -> ConfigError:
    return ConfigError(
        f"policy.{key} = {value!r}: not available with policy.shard = {cfg['shard']!r}. Set it to {allowed!r}, or "
        'shard to False.'
    )
