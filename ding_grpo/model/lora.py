"""Adapters (LoRA) by peft."""
from torch import nn
from transformers import PreTrainedModel

from ding_common import ConfigError, describe

_REFERENCE = 'without the adapters the model must be the pretrained one, which is the reference'


def add_adapters(lm: PreTrainedModel, lora: dict) -> nn.Module:
    """
    Overview:
        Put adapters into a model and freeze its other weights.
    Arguments:
        - lm (:obj:`PreTrainedModel`): The model, which is changed.
        - lora (:obj:`dict`): Arguments of ``peft.LoraConfig``.
    Returns:
        - model (:obj:`nn.Module`): peft's wrapper of it.
    Raises:
        - ConfigError: If peft is not installed, or an argument is wrong or would make the reference another model.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("policy.model.lora: needs the extra: pip install 'ding-grpo[lora]'") from error
    if not isinstance(lora, dict):
        raise ConfigError(f'policy.model.lora = {lora!r}: must be a dict of arguments of peft.LoraConfig.')
    allowed = dict(
        lora_dropout=([0, 0.0], 'what is sampled and what is learned must be one distribution'),
        bias=(['none'], _REFERENCE),
        init_lora_weights=([True, False, 'gaussian', 'orthogonal'], _REFERENCE),
        inference_mode=([False], 'adapters are there to be trained'),
    )
    for key, (values, why) in allowed.items():
        if key in lora and lora[key] not in values:
            choice = ' or '.join(map(repr, dict.fromkeys(values)))
            raise ConfigError(f'policy.model.lora.{key} = {lora[key]!r}: must be {choice}; {why}.')
    try:
        return get_peft_model(lm, LoraConfig(task_type='CAUSAL_LM', **lora))
    except Exception as error:  # peft may raise anything over its arguments
        raise ConfigError(f'policy.model.lora = {dict(lora)!r}: {describe(error)}') from error
