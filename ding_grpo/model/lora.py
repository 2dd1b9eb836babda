"""LoRA adapters of peft."""
import inspect
import warnings
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

from torch import nn
from transformers import PreTrainedModel

from ding_common import ConfigError, describe, nearest
from ding_common.hub.adapters import adapter_config, base_of_adapters, check_keys, with_adapters
from ding_common.hub.pretrained import Pretrained

_REFERENCE = 'without adapters the model must be the pretrained one, which is the reference'
# Values of arguments of ``peft.LoraConfig``, and why others are refused.
_ALLOWED: Dict[str, Tuple[List[Any], str]] = dict(
    lora_dropout=([0, 0.0], 'sampling and learning must use one distribution'),
    bias=(['none'], _REFERENCE),
    init_lora_weights=([True, False, 'gaussian', 'orthogonal'], _REFERENCE),
    inference_mode=([False], 'the adapters must be trainable'),
)


def check_base(
        lora: Union[dict, str, None], save_merged: bool, pretrained: Optional[str], gguf_file: Optional[str]
) -> None:
    """Check that what a run saves can be loaded again: adapters name their base model, which must be neither random nor
    from a GGUF file."""
    if lora is None:
        if save_merged:
            raise ConfigError('policy.model.save_merged = True: needs policy.model.lora.')
        return
    if pretrained is None:
        raise ConfigError(
            f'policy.model.lora = {lora!r}: needs policy.model.pretrained. The weights of a random model are not '
            'saved, so its adapters would be useless.'
        )
    if not save_merged and Pretrained.locate(pretrained, gguf_file, 'policy.model').gguf_file is not None:
        raise ConfigError(
            f'policy.model.pretrained = {pretrained!r}: peft cannot load the base model of adapters from a GGUF file. '
            'Set policy.model.save_merged = True, so that the whole model is saved; with policy.model.quantize, which '
            "saves adapters alone, save the model as a folder first: transformers' from_pretrained(..., "
            'gguf_file=...).save_pretrained(folder).'
        )


def add_adapters(lm: PreTrainedModel, lora: Union[dict, str]) -> nn.Module:
    """Add adapters to a model in place, new ones or those of a folder, freeze its other weights, and return peft's
    wrapper of it. Raises a ``ConfigError`` if an argument is invalid or would change the reference."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("policy.model.lora: needs the extra: pip install '.[lora]' in the clone") from error
    if isinstance(lora, str):
        return _loaded(lm, lora)
    if not isinstance(lora, dict):
        raise ConfigError(f'policy.model.lora = {lora!r}: must be a dict of arguments of peft.LoraConfig, or a folder.')
    _check_allowed(lora, 'policy.model.lora.')
    known = inspect.signature(LoraConfig).parameters
    for key, value in lora.items():
        if key not in known:
            raise ConfigError(f'policy.model.lora.{key} = {value!r}: unknown key; {nearest(key, known)}')
    try:
        config = LoraConfig(task_type='CAUSAL_LM', **lora)
        check_keys(config.to_dict(), 'policy.model.lora.')  # as when they are loaded again
        with warnings.catch_warnings():  # about a name that peft uses and transformers has renamed
            warnings.filterwarnings('ignore', '`is_gradient_checkpointing` is deprecated', FutureWarning)
            return get_peft_model(lm, config)
    except ConfigError:
        raise
    except Exception as error:  # peft may raise any exception for its arguments
        raise ConfigError(f'policy.model.lora = {dict(lora)!r}: {describe(error)}') from error


def trained_modules(lora: Union[dict, str]) -> List[str]:
    """The ends of the names of modules that are trained whole beside the adapters of ``add_adapters``."""
    config = adapter_config(lora, f'policy.model.lora = {lora!r}') if isinstance(lora, str) else lora
    named = config.get('modules_to_save') if isinstance(config, dict) else None
    return list(map(str, named)) if isinstance(named, Iterable) else []


def _loaded(lm: PreTrainedModel, folder: str) -> nn.Module:
    where = f'policy.model.lora = {folder!r}'
    if base_of_adapters(folder, where) is None:
        raise ConfigError(f'{where}: must be a folder with an adapter_config.json, or a dict.')
    adapted = with_adapters(lm, folder, where, trained=True)
    _check_allowed(adapted.active_peft_config.to_dict(), f'{where}: ', besides='init_lora_weights')
    return adapted


def _check_allowed(config: Dict[str, Any], before: str, besides: str = '') -> None:
    """Check that a model with adapters samples and learns one distribution, and is the pretrained one without them."""
    for key, (values, why) in _ALLOWED.items():
        if key in config and key != besides and config[key] not in values:
            choice = ' or '.join(map(repr, dict.fromkeys(values)))
            raise ConfigError(f'{before}{key} = {config[key]!r}: must be {choice}; {why}.')
