"""Adapter folders of ``peft``, as saved by a run with ``policy.model.lora``. Each names its base model."""
import json
import os
import re
import warnings
from importlib.util import find_spec
from typing import Any, Dict, Optional

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from .check import MOST, Rule
from .errors import ConfigError
from .loading import quiet_hub, reason
from .model_folder import stored_weights

MOST_RANK = 10_000


def _are_names(value: Any) -> bool:
    """Whether peft can match names, as the regular expressions that they are, fast: without groups."""
    if isinstance(value, (dict, list)):
        return all(map(_are_names, value))
    return isinstance(value, str) and re.fullmatch(r'[\w.*+^$\\-]*', value) and len(re.findall('[*+]', value)) <= 3


_TEXT = Rule('a text', lambda v: isinstance(v, str))
_NAMES = Rule('names of modules, without groups and with at most three repetitions', _are_names).or_none()
_RANKS = Rule.integer(0, MOST_RANK)
# Peft imports modules (``megatron_core``, ``auto_mapping``), opens files (``adapters``, ``shadow_model``,
# ``tokenizer_name_or_path``) and computes (``loftq_config``, ``layer_replication``) as an ``adapter_config.json`` asks
# for. Each of its releases adds keys. These may have a text, a list or a dict; all others only a number, or nothing.
_KEYS = dict(
    peft_type=_TEXT,
    peft_version=_TEXT.or_none(),
    task_type=_TEXT.or_none(),
    base_model_name_or_path=_TEXT,
    revision=_TEXT.or_none(),
    # written for models without ``task_type``; this project does not use it
    auto_mapping=Rule(
        'a class of transformers',
        lambda v: isinstance(v, dict) and str(v.get('parent_library')).split('.')[0] == 'transformers'
    ).or_none(),
    bias=_TEXT,
    r=_RANKS.or_none(),
    rank_pattern=Rule(
        f'names with ranks of at most {MOST_RANK}', lambda v: isinstance(v, dict) and _are_names(v) and
        all(isinstance(x, list) or _RANKS.holds(x) for x in v.values())
    ).or_none(),
    alpha_pattern=Rule(
        'names with numbers',
        lambda v: isinstance(v, dict) and _are_names(v) and all(map(Rule.number().holds, v.values()))
    ).or_none(),
    target_modules=_NAMES,
    target_parameters=_NAMES,
    exclude_modules=_NAMES,
    feedforward_modules=_NAMES,
    modules_to_save=_NAMES,
    layers_pattern=_NAMES,
    layers_to_transform=Rule('numbers of layers', lambda v: isinstance(v, (int, list))).or_none(),
    trainable_token_indices=Rule('token ids', lambda v: isinstance(v, (list, dict))).or_none(),
    init_lora_weights=Rule(
        'True, False, gaussian, orthogonal, olora or pissa', lambda v: isinstance(v, bool) or v in
        ('gaussian', 'orthogonal', 'olora', 'pissa')
    ),
    megatron_core=Rule.one_of('megatron.core').or_none(),  # peft's default, which it writes into every file
)
_NUMBER = Rule(
    f'a number of at most {MOST}, or None. Remove the key, or merge the adapters where you trust the folder',
    lambda v: not v or isinstance(v, (int, float)) and abs(v) <= MOST
)


def _check_keys(config: Dict[str, Any], where: str) -> None:
    for key, value in config.items():
        rule = _KEYS.get(key, _NUMBER)
        if not rule.holds(value):
            raise ConfigError(f'{where}: {key} = {value!r:.200} in adapter_config.json: must be {rule.allowed}.')


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
        - ConfigError: If that file cannot be read, names no model or asks peft for more than layers, if the folder \
            also contains a full model, or if the extra ``lora`` is not installed.
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
            config = json.load(f)
        base = config['base_model_name_or_path']
    except Exception as error:  # a broken file may raise anything
        raise ConfigError(f'{where}: adapter_config.json cannot be read ({reason(error)}).') from error
    if not isinstance(base, str) or not base:
        raise ConfigError(f'{where}: base_model_name_or_path = {base!r} in adapter_config.json is not a model name.')
    _check_keys(config, where)
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
    for stored in stored_weights(pretrained) if os.path.isdir(pretrained) else ():
        if not stored.floating and 'indices' not in stored.name:
            raise ConfigError(f'{where}: its weight {stored.name!r} must have floating-point numbers.')
    model = adapted.merge_and_unload().requires_grad_(True) if merge else adapted.get_base_model()
    if os.path.isfile(os.path.join(pretrained, 'generation_config.json')):
        try:
            model.generation_config = GenerationConfig.from_pretrained(pretrained)
        except Exception as error:
            raise ConfigError(f'{where}: generation_config.json cannot be read ({reason(error)}).') from error
    return model
