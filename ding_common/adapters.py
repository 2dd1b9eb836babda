"""Adapter folders of ``peft``, as saved by a run with ``policy.model.lora``. Each names its base model."""
import json
import os
import warnings
from importlib.util import find_spec
from typing import Optional

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from .errors import ConfigError
from .loading import quiet_hub, reason


def base_of_adapters(pretrained: str, where: str) -> Optional[str]:
    """
    Overview:
        The base model of an adapter folder.
    Arguments:
        - pretrained (:obj:`str`): Folder or hub name.
        - where (:obj:`str`): Key and value, for messages.
    Returns:
        - base (:obj:`Optional[str]`): Folder or hub name from ``adapter_config.json``; None without that file.
    Raises:
        - ConfigError: If that file cannot be read or names no model, if the folder also contains a full model, or if \
            the extra ``lora`` is not installed.
    """
    try:
        with quiet_hub():
            path = find_adapter_config_file(pretrained)
    except Exception:  # not a model name; loading it reports that
        return None
    if path is None:
        return None
    if find_spec('peft') is None:
        raise ConfigError(f"{where}: contains adapters, which need the extra: pip install 'ding-grpo[lora]'")
    if os.path.isfile(os.path.join(pretrained, 'config.json')):
        raise ConfigError(f'{where}: the folder contains both a model and adapters for it; merge them first.')
    try:
        with open(path, encoding='utf-8') as f:
            base = json.load(f)['base_model_name_or_path']
    except Exception as error:  # a broken file may raise anything
        raise ConfigError(f'{where}: adapter_config.json cannot be read ({reason(error)}).') from error
    if not isinstance(base, str) or not base:
        raise ConfigError(f'{where}: base_model_name_or_path = {base!r} in adapter_config.json is not a model name.')
    return base


def add_adapters(base: PreTrainedModel, pretrained: str, merge: bool, where: str) -> PreTrainedModel:
    """
    Overview:
        Add adapters to a base model.
    Arguments:
        - base (:obj:`PreTrainedModel`): The base model; modified in place.
        - pretrained (:obj:`str`): Folder or hub name of the adapters.
        - merge (:obj:`bool`): Whether to merge the adapters into the base model's weights and make all weights \
            trainable. Otherwise the adapters stay separate.
        - where (:obj:`str`): As in ``base_of_adapters``.
    Raises:
        - ConfigError: If the adapters cannot be loaded, or do not fit this base model.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights
    try:
        with quiet_hub(), warnings.catch_warnings():
            warnings.simplefilter('ignore')  # about keys that do not fit; checked below
            adapted = PeftModel.from_pretrained(base, pretrained)
            other = set(get_peft_model_state_dict(adapted)) ^ set(load_peft_weights(pretrained, device='cpu'))
    except Exception as error:  # peft may raise anything for a broken folder
        raise ConfigError(
            f'{where}: its adapters cannot be added to {base.name_or_path!r} ({reason(error)}).'
        ) from error
    if other or adapted.active_peft_config.is_prompt_learning:
        told = f'{sorted(other)[0]!r} is only in one of the two' if other else 'they are a prompt, not layer weights'
        raise ConfigError(f'{where}: its adapters do not fit {base.name_or_path!r}: {told}.')
    model = adapted.merge_and_unload().requires_grad_(True) if merge else adapted.get_base_model()
    if os.path.isfile(os.path.join(pretrained, 'generation_config.json')):
        try:
            model.generation_config = GenerationConfig.from_pretrained(pretrained)
        except Exception as error:
            raise ConfigError(f'{where}: generation_config.json cannot be read ({reason(error)}).') from error
    return model
