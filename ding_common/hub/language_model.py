"""Build language models of ``transformers``: pretrained by name or folder, or random from a model config."""
import inspect
import itertools
import os
import re
import warnings
from contextlib import contextmanager, nullcontext
from typing import Any, ContextManager, Iterator, List, Optional, Set, Type

import torch
import transformers
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ding_common.config.check import nearest
from ding_common.errors import ConfigError

from .adapters import add_adapters, base_of_adapters
from .loading import quiet_hub, reason
from .model_folder import MOST_COUNT, check_gguf, check_model_folder, integer_weights, is_count, weight_files
from .pretrained import Pretrained

# Keys of published config files that transformers still accepts, although its config classes no longer declare them.
OLD_NAMES = {'rope_theta', 'rope_scaling', 'torch_dtype'}
# What a folder may describe beside its weights until it is loaded.
FEW_WEIGHTS, FEW_BYTES = 10_000_000, 2 ** 30
MOST_MODULES = 200_000  # of a model; they take half a minute
MOST_SIZE = 1_000_000_000  # of a value of ``policy.model.config``, where a larger one is a typing error
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
        reading: ContextManager = nullcontext(),
) -> PreTrainedModel:
    """
    Load a pretrained model, or create one with random weights: set either ``pretrained``, a folder, a hub name or the
    name of a packaged model (see ``Pretrained``), or ``config``, ``model_type`` and arguments of that architecture's
    config class. Raises a ``ConfigError`` if a value is invalid or the model cannot be loaded.

    ``dtype`` is one of ``DTYPES``; None uses the type of the folder. If the folder contains adapters, None keeps them
    separate from the base model's weights. Otherwise they are merged, which needs 'float32'. ``gguf_file`` names a GGUF
    file of ``pretrained``, whose weights become ordinary ones. ``reading``: context in which ``transformers`` reads a
    folder or a model of the hub that is neither adapters nor such a file, see ``weight_by_weight``.
    """
    _check_one(pretrained, config, key)
    if gguf_file is not None and pretrained is None:
        raise ConfigError(f'{key}.gguf_file = {gguf_file!r}: needs {key}.pretrained.')
    if attn_implementation is not None and (not isinstance(attn_implementation, str) or not attn_implementation):
        raise ConfigError(f'{key}.attn_implementation = {attn_implementation!r}: must be non-empty text, or None.')
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f'{key}.dtype = {dtype!r}: must be one of {", ".join(DTYPES)}.')
    options = dict(dtype='auto' if dtype is None else DTYPES[dtype])
    if attn_implementation is not None:
        options['attn_implementation'] = attn_implementation
    if pretrained is None:
        return _make(config, options, key)
    return _load(pretrained, gguf_file, options, key, reading)


def load_reward_model(pretrained: str, dtype: str, key: str) -> PreTrainedModel:
    """Load a model with a classification head, of which no weight may be missing."""
    return _load_head(pretrained, dict(dtype=DTYPES[dtype]), key)


def build_reward_model(
        vocab_size: int,
        key: str,
        pretrained: Optional[str] = None,
        config: Optional[dict] = None,
) -> PreTrainedModel:
    """A model with one label in float32, to be trained: random, or pretrained, perhaps with a random head."""
    _check_one(pretrained, config, key)
    options = dict(dtype=torch.float32)
    if config is None:
        return _load_head(pretrained, dict(options, num_labels=1), key, new_head=True)
    sized = {'vocab_size': vocab_size, **config} if isinstance(config, dict) else config
    return _make(sized, options, key, AutoModelForSequenceClassification, num_labels=1)


def _load_head(pretrained: str, options: dict, key: str, new_head: bool = False) -> PreTrainedModel:
    where = f'{key}.pretrained = {pretrained!r}'
    check_model_folder(pretrained, f'{key}.pretrained')
    return _load_whole(pretrained, options, key, where, AutoModelForSequenceClassification, new_head)


def _check_one(pretrained: Optional[str], config: Optional[dict], key: str) -> None:
    if (pretrained is None) == (config is None):
        raise ConfigError(f'{key}.pretrained = {pretrained!r}, {key}.config = {config!r}: set exactly one of them.')


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
        most = MOST_COUNT if is_count(name) else MOST_SIZE
        if isinstance(value, int) and value > most:
            raise ConfigError(f'{key}.config.{name} = {value!r}: must be at most {most}.')
    try:
        with _few_modules():
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


def _load(
        pretrained: str, gguf_file: Optional[str], options: dict, key: str, reading: ContextManager
) -> PreTrainedModel:
    where = f'{key}.pretrained = {pretrained!r}'
    found = Pretrained.locate(pretrained, gguf_file, key)
    if found.gguf_file is not None:
        check_gguf(found.where, where)
        return _unpacked(_load_whole(found.path, dict(options, **found.options, **_UNPACK), key, where), where)
    base, merge = base_of_adapters(pretrained, where), options['dtype'] != 'auto'
    if base is None:
        return _load_whole(pretrained, options, key, where, reading=reading)
    if merge and options['dtype'] is not torch.float32:
        raise ConfigError(
            f"{where}: the folder contains adapters, which are merged into their base model; {key}.dtype must be "
            "'float32', since another type would round them away."
        )
    told = f'{where}: its base model {base!r} (base_model_name_or_path in adapter_config.json)'
    check_model_folder(base, f'{where}: base_model_name_or_path')
    return add_adapters(_load_whole(base, options, key, told), pretrained, merge, where)


@contextmanager
def _few_modules() -> Iterator[None]:
    """Stop the construction of a model at ``MOST_MODULES``, whatever keys of its config count them."""
    numbers = itertools.count(1)

    def count(*_: Any) -> None:
        if next(numbers) > MOST_MODULES:
            raise ConfigError(f'its config describes a model of more than {MOST_MODULES:,} modules')

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _check_size(pretrained: str, gguf_file: Optional[str], where: str, loader: Type) -> None:
    """Refuse a folder whose model is much larger than its files: transformers creates the weights that it lacks."""
    named = {} if gguf_file is None else dict(gguf_file=gguf_file)
    try:
        with quiet_hub(), torch.random.fork_rng(devices=[]), _few_modules():
            config = AutoConfig.from_pretrained(pretrained, trust_remote_code=False, **named)
            with torch.device('meta'):
                model = loader.from_config(config)
        files = weight_files(pretrained) if gguf_file is None else [os.path.join(pretrained, gguf_file)]
        stored = sum(map(os.path.getsize, files))
    except ConfigError as error:
        raise ConfigError(f'{where}: {error}.') from error
    except Exception:  # loading names the reason
        return
    weights, buffers = sum(p.numel() for p in model.parameters()), sum(b.nbytes for b in model.buffers())
    packed = gguf_file is not None or hasattr(config, 'quantization_config')
    if weights > (8 if packed else 2) * stored + FEW_WEIGHTS or buffers > stored + FEW_BYTES:
        raise ConfigError(
            f'{where}: its config describes a model of {weights:,} weights and {buffers:,} bytes of buffers, and its '
            f'files have {stored:,} bytes.'
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
        new_head: bool = False,
        reading: ContextManager = nullcontext(),
) -> PreTrainedModel:
    gguf_file = options.get('gguf_file')
    is_folder = os.path.isdir(pretrained)
    if gguf_file is None and is_folder and not os.path.isfile(os.path.join(pretrained, 'config.json')):
        raise ConfigError(f'{where}: the folder contains no config.json.')
    if base_of_adapters(pretrained, where) is not None:  # transformers would load them too
        raise ConfigError(f'{where}: contains adapters, must be a whole model; merge them first.')
    if is_folder:
        _check_size(pretrained, gguf_file, where, loader)
    try:
        with quiet_hub():
            with reading:
                model, found = loader.from_pretrained(
                    pretrained, trust_remote_code=False, output_loading_info=True, **options
                )
            names = {name for name, _ in model.named_parameters()}  # masks and positions are buffers, in whatever type
            packed = gguf_file is not None or hasattr(model.config, 'quantization_config')
            stored = () if packed else integer_weights(pretrained)
            integers = [name for name in stored if name in names or name.endswith('.weight')]
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
    if integers:
        raise ConfigError(f'{where}: its weight {integers[0]!r} must have floating-point numbers.')
    if found['unexpected_keys'] and not new_head:
        some = sorted(found['unexpected_keys'])
        warnings.warn(
            f'{where}: {len(some)} of its weights are not in the model, for example {some[0]!r}.', stacklevel=2
        )
    return model
