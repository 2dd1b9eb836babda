"""Build language models of ``transformers``: pretrained by name or folder, or random from a model config."""
import inspect
import os
import re
import warnings
from typing import List, Optional, Set, Type

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, \
    AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .adapters import add_adapters, base_of_adapters
from .check import nearest
from .errors import ConfigError
from .loading import quiet_hub, reason
from .model_folder import check_gguf, check_model_folder, most_of, stored_weights
from .pretrained import Pretrained

# Keys of published config files that transformers still accepts, although its config classes no longer declare them.
OLD_NAMES = {'rope_theta', 'rope_scaling', 'torch_dtype'}
FEW_WEIGHTS = 10_000_000  # that a folder may lack until it is loaded
_KINDS = {
    AutoModelForCausalLM: 'causal language model',
    AutoModelForSequenceClassification: 'sequence classification model'
}
# Releases of transformers without this class convert all weights of a GGUF file anyway.
_GGUF = getattr(transformers, 'GgufConfig', None)
_UNPACK = {} if _GGUF is None else dict(quantization_config=_GGUF(dequantize=True))
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


def build_causal_lm(
        pretrained: Optional[str],
        config: Optional[dict],
        dtype: Optional[str],
        attn_implementation: Optional[str],
        key: str,
        gguf_file: Optional[str] = None,
) -> PreTrainedModel:
    """
    Overview:
        Load a pretrained model, or create one with random weights. Set exactly one of ``pretrained`` and ``config``.
    Arguments:
        - pretrained (:obj:`Optional[str]`): Folder or hub name for ``AutoModelForCausalLM.from_pretrained``, or the \
            name of a packaged model, see ``Pretrained``.
        - config (:obj:`Optional[dict]`): ``model_type`` and arguments of that architecture's config class, for random \
            weights.
        - dtype (:obj:`Optional[str]`): One of ``DTYPES``; None uses the type of the folder. If the folder contains \
            adapters, None keeps them separate from the base model's weights. Otherwise they are merged, which needs \
            'float32'.
        - attn_implementation (:obj:`Optional[str]`): As in ``transformers``; None uses its default.
        - key (:obj:`str`): Dotted path of the config's section, for messages.
        - gguf_file (:obj:`Optional[str]`): A GGUF file of ``pretrained``. Its weights become ordinary ones.
    Raises:
        - ConfigError: If a value is invalid or the model cannot be loaded.
    """
    if (pretrained is None) == (config is None):
        raise ConfigError(f'{key}.pretrained = {pretrained!r}, {key}.config = {config!r}: set exactly one of them.')
    if gguf_file is not None and pretrained is None:
        raise ConfigError(f'{key}.gguf_file = {gguf_file!r}: needs {key}.pretrained.')
    if attn_implementation is not None and (not isinstance(attn_implementation, str) or not attn_implementation):
        raise ConfigError(f'{key}.attn_implementation = {attn_implementation!r}: must be non-empty text, or None.')
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f'{key}.dtype = {dtype!r}: must be one of {", ".join(DTYPES)}.')
    options = dict(dtype='auto' if dtype is None else DTYPES[dtype])
    if attn_implementation is not None:
        options['attn_implementation'] = attn_implementation
    return _make(config, options, key) if pretrained is None else _load(pretrained, gguf_file, options, key)


def load_reward_model(pretrained: str, dtype: str, key: str) -> PreTrainedModel:
    """
    Overview:
        Load a model with a classification head, such as a reward model.
    Arguments:
        - pretrained (:obj:`str`): Folder or hub name for ``AutoModelForSequenceClassification.from_pretrained``.
        - dtype (:obj:`str`): One of ``DTYPES``.
        - key (:obj:`str`): Dotted path of the config's section, for messages.
    Raises:
        - ConfigError: If the model cannot be loaded, or the folder lacks weights such as those of the head.
    """
    where = f'{key}.pretrained = {pretrained!r}'
    check_model_folder(pretrained, f'{key}.pretrained')
    return _load_whole(pretrained, dict(dtype=DTYPES[dtype]), key, where, AutoModelForSequenceClassification)


def build_reward_model(
        vocab_size: int,
        key: str,
        pretrained: Optional[str] = None,
        config: Optional[dict] = None,
) -> PreTrainedModel:
    """
    Overview:
        A sequence-classification model with one label in float32, to be trained: random, or a pretrained model whose \
        head is random unless the folder contains one.
    Arguments:
        - vocab_size (:obj:`int`): Size of the tokenizer's vocabulary, the default of ``config``.
        - key, pretrained, config: As in ``build_causal_lm``.
    Raises:
        - ConfigError: If a value is invalid or the model cannot be loaded.
    """
    if (pretrained is None) == (config is None):
        raise ConfigError(f'{key}.pretrained = {pretrained!r}, {key}.config = {config!r}: set exactly one of them.')
    options = dict(dtype=torch.float32)
    if config is not None:
        sized = dict({'vocab_size': vocab_size}, **config) if isinstance(config, dict) else config
        model = _make(sized, options, key, AutoModelForSequenceClassification, num_labels=1)
    else:
        where = f'{key}.pretrained = {pretrained!r}'
        check_model_folder(pretrained, f'{key}.pretrained')
        options.update(num_labels=1)
        model = _load_whole(pretrained, options, key, where, AutoModelForSequenceClassification, new_head=True)
    return model


def _make(config: dict, options: dict, key: str, builder: Type = AutoModelForCausalLM, **more: int) -> PreTrainedModel:
    if not isinstance(config, dict):
        raise ConfigError(f'{key}.config = {config!r}: must be a dict with model_type.')
    config = {**config}
    if 'model_type' not in config:
        raise ConfigError(f'{key}.config.model_type: missing; must be an architecture. Present: {", ".join(config)}.')
    model_type = config.pop('model_type')
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f'{key}.config.model_type = {model_type!r}: '
            f'must be an architecture that transformers supports; {nearest(str(model_type), _near(model_type))}'
        )
    cls = CONFIG_MAPPING[model_type]
    default = cls()
    known = set(default.to_dict()) | set(default.attribute_map) | OLD_NAMES | _keys_read(cls)
    for name, value in config.items():
        if name not in known:
            raise ConfigError(f'{key}.config.{name} = {value!r}: unknown key; {nearest(name, known)}')
        if isinstance(value, int) and value > most_of(name):
            raise ConfigError(f'{key}.config.{name} = {value!r}: must be at most {most_of(name)}.')
    try:
        return builder.from_config(AutoConfig.for_model(model_type, **config, **more), **options)
    except Exception as error:  # an architecture may raise anything for unsupported values
        raise ConfigError(
            f'{key}.config = {config!r}{_attention(options, key)}: transformers cannot build a {_KINDS[builder]} '
            f'{model_type!r} from it ({reason(error)})'
        ) from error


def _keys_read(cls: type) -> Set[str]:
    """Keys that an architecture's code reads although its config class does not declare them, such as ``head_dim``."""
    found = set(re.findall(r'kwargs\.(?:get|pop)\("(\w+)"', inspect.getsource(inspect.getmodule(cls))))
    if cls in MODEL_FOR_CAUSAL_LM_MAPPING:
        code = inspect.getsource(inspect.getmodule(MODEL_FOR_CAUSAL_LM_MAPPING[cls]))
        found |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', code))
    return {name for name in found if not name.startswith('_')}


def _attention(options: dict, key: str) -> str:
    """The attention option for a message about a model that fails to load: it may be the cause."""
    asked = options.get('attn_implementation')
    return '' if asked is None else f', {key}.attn_implementation = {asked!r}'


def _near(model_type: Optional[str]) -> List[str]:
    """The few architectures that a message lists, out of several hundred."""
    common = ['llama', 'qwen2', 'qwen3', 'gemma', 'gemma2', 'gpt2', 'mistral']
    return common + [m for m in CONFIG_MAPPING.keys() if model_type and m.startswith(str(model_type)[:3])]


def _load(pretrained: str, gguf_file: Optional[str], options: dict, key: str) -> PreTrainedModel:
    where = f'{key}.pretrained = {pretrained!r}'
    found = Pretrained.locate(pretrained, gguf_file, key)
    if found.gguf_file is not None:
        check_gguf(found.where, where)
        return _unpacked(_load_whole(found.path, dict(options, **found.options, **_UNPACK), key, where), where)
    base, merge = base_of_adapters(pretrained, where), options['dtype'] != 'auto'
    if base is None:
        return _load_whole(pretrained, options, key, where)
    if merge and options['dtype'] is not torch.float32:
        raise ConfigError(
            f"{where}: the folder contains adapters, which are merged into their base model; {key}.dtype must be "
            "'float32', since another type would round them away."
        )
    told = f'{where}: its base model {base!r} (base_model_name_or_path in adapter_config.json)'
    check_model_folder(base, f'{where}: base_model_name_or_path')
    return add_adapters(_load_whole(base, options, key, told), pretrained, merge, where)


def _check_stored(folder: str, where: str, loader: Type) -> None:
    """Refuse a folder without most of the weights of its model, since transformers creates those that it lacks."""
    try:
        with quiet_hub(), torch.random.fork_rng(devices=[]):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            with torch.device('meta'):
                needed = sum(weight.numel() for weight in loader.from_config(config).parameters())
        stored = sum(stored.size for stored in stored_weights(folder))
    except Exception:  # loading names the reason
        return
    packed = 16 if hasattr(config, 'quantization_config') else 1  # weights in an element
    if needed > 2 * packed * stored + FEW_WEIGHTS:
        raise ConfigError(
            f'{where}: its config.json describes a model of {needed:,} weights, and its files have {stored:,}.'
        )


def _unpacked(model: PreTrainedModel, where: str) -> PreTrainedModel:
    """A model from a GGUF file whose weights are converted, but which ``transformers`` would still refuse to save."""
    packed = [name for name, p in model.named_parameters() if not p.is_floating_point()]
    if packed:
        raise ConfigError(f'{where}: transformers leaves weights of this file packed, for example {packed[0]!r}.')
    for owner, name in ((model, 'hf_quantizer'), (model, 'quantization_method'), (model.config, 'quantization_config')):
        if hasattr(owner, name):
            delattr(owner, name)
    model.is_quantized = False
    return model.requires_grad_(True)


def _load_whole(
        pretrained: str,
        options: dict,
        key: str,
        where: str,
        loader: Type = AutoModelForCausalLM,
        new_head: bool = False
) -> PreTrainedModel:
    gguf_file = options.get('gguf_file')
    is_folder = os.path.isdir(pretrained)
    if gguf_file is None and is_folder and not os.path.isfile(os.path.join(pretrained, 'config.json')):
        raise ConfigError(f'{where}: the folder contains no config.json.')
    if base_of_adapters(pretrained, where) is not None:  # transformers would load them too
        raise ConfigError(f'{where}: contains adapters, must be a whole model; merge them first.')
    if is_folder and gguf_file is None:
        _check_stored(pretrained, where, loader)
    try:
        with quiet_hub():
            model, found = loader.from_pretrained(
                pretrained, trust_remote_code=False, output_loading_info=True, **options
            )
    except Exception as error:  # a broken folder may raise anything, from KeyError to SafetensorError
        raise ConfigError(
            f'{where}{_attention(options, key)}: its file {gguf_file} cannot be converted ({reason(error)})'
            if gguf_file is not None and is_folder else
            f'{where}{_attention(options, key)}: neither a folder with a {_KINDS[loader]} nor a model that the '
            f'hub provides ({reason(error)})'
        ) from error
    base = f'{model.base_model_prefix}.'
    missing = [name for name in found['missing_keys'] if not new_head or name.startswith(base)]
    if missing:  # transformers initialises them randomly, and a run would train them
        some = sorted(missing)
        raise ConfigError(
            f'{where}: {len(some)} of the weights that its config.json requires are missing, for example {some[0]!r}.'
        )
    if is_folder and gguf_file is None and not hasattr(model.config, 'quantization_config'):
        names = {name for name, _ in model.named_parameters()}
        for stored in stored_weights(pretrained):  # masks and positions are buffers, in whatever type
            if not stored.floating and (stored.name in names or stored.name.endswith('.weight')):
                raise ConfigError(f'{where}: its weight {stored.name!r} must have floating-point numbers.')
    if found['unexpected_keys'] and not new_head:
        some = sorted(found['unexpected_keys'])
        warnings.warn(
            f'{where}: {len(some)} of its weights are not in the model, for example {some[0]!r}.', stacklevel=2
        )
    return model
