"""``policy.model``: which registered model it names, and whether its arguments can be used."""
import math
from typing import Dict

from ding.utils import MODEL_REGISTRY

from ding_common import MOST, ConfigError, Rule, check_arguments, import_modules, nearest
from ding_common.hub.adapters import base_of_adapters


def model_type(model: Dict) -> str:
    """The registered name of the model in a section ``policy.model``: its ``type`` if given. Otherwise it is
    DI-engine's ``vac``, which its PPO uses, if the section has a shape of observations or actions, or else
    ``causal_lm``."""
    return model.get('type', 'vac' if {'obs_shape', 'action_shape'} & set(model) else 'causal_lm')


def check_model(model: Dict) -> None:
    import_modules(model, 'policy.model')
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
    """Check that new adapters can be loaded again, which needs their base model on the disk."""
    pretrained = model.get('pretrained')
    if model.get('lora') is None or model.get('save_merged') or not isinstance(pretrained, str):
        return
    where = f'policy.model.pretrained = {pretrained!r}'
    if base_of_adapters(pretrained, where) is not None:
        raise ConfigError(
            f'{where}: the folder contains adapters, which are merged into their base model. With policy.model.lora, '
            'set policy.model.save_merged=True, because the new adapters alone would fit no saved model.'
        )


def _check_finite(section: Dict, where: str) -> None:
    """Check that no number is NaN or infinite, because every output of such a model would be NaN or infinite too."""
    for key, value in section.items():
        if isinstance(value, dict):
            _check_finite(value, f'{where}.{key}')
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f'{where}.{key} = {value!r}: must not be NaN or infinite.')
