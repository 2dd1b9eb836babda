"""Adapter folders of ``peft``, as saved by a run with ``policy.model.lora``. Each names its base model."""
import json
import os
import re
import warnings
from importlib.util import find_spec
from itertools import combinations, starmap
from typing import Any, Dict, Optional

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file

from ding_common.config.check import Rule
from ding_common.errors import ConfigError, config_errors

from .loading import quiet_hub, reason
from .model_folder import integer_weights

MOST_RANK = 10_000
MOST_NUMBER = 1_000_000  # of any other key
LENGTH, MOST_WAYS = 50, 1e8  # of a module's name; of matching patterns to it, which takes a tenth of a second
_parser = getattr(re, '_parser', None) or re.sre_parse  # the latter in Python 3.10


def _ways(pattern: Any) -> float:
    """At most how many ways of matching a parsed pattern to a name are tried before it fails; may be inf."""
    ways = 1.
    for kind, value in pattern:
        kind = str(kind)
        if kind in ('MAX_REPEAT', 'MIN_REPEAT'):
            least, most, part = value
            each = _ways(part)
            ways *= sum(each ** number for number in range(min(least, LENGTH), min(most, LENGTH) + 1))
        elif kind == 'BRANCH':
            parts = [_ways(part) for part in value[1]]
            ways *= max(parts) if all(starmap(_exclude, combinations(value[1], 2))) else sum(parts)
        elif kind == 'SUBPATTERN' and not value[1] and not value[2]:  # flags could make unequal letters equal
            ways *= _ways(value[3])
        elif kind in ('ASSERT', 'ASSERT_NOT'):
            ways *= _ways(value[1])
        elif kind not in ('LITERAL', 'NOT_LITERAL', 'ANY', 'IN', 'AT'):
            return float('inf')
    return ways


def _exclude(one: Any, other: Any) -> bool:
    """Whether two alternatives never match the same name, because they differ in a letter."""
    return next((str(a[0]) == str(b[0]) == 'LITERAL' for a, b in zip(one, other) if a != b), False)


def _are_names(value: Any) -> bool:
    """Whether peft can match names, as the regular expressions that they are, fast."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (dict, list, set)) or not all(isinstance(name, str) for name in names):
        return False
    try:
        parsed = [_parser.parse(name) for name in names]
        return all(p.state.flags == re.UNICODE for p in parsed) and sum(map(_ways, parsed)) <= MOST_WAYS
    except (re.error, OverflowError, RecursionError):
        return False


_TEXT = Rule('a text', lambda v: isinstance(v, str))
_PATTERNS = 'of modules, or patterns with at most four repetitions, none of another repetition or of a choice'
_NAMES = Rule(f'names {_PATTERNS}', _are_names).or_none()
_RANKS = Rule.integer(0, MOST_RANK)
_ONCE = Rule('a dict', lambda v: isinstance(v, dict)).or_none()  # what peft read when the adapters were made
# Peft imports modules (``megatron_core``, ``auto_mapping``), opens files (``adapters``, ``shadow_model``,
# ``tokenizer_name_or_path``) and computes (``loftq_config``, ``layer_replication``) as an ``adapter_config.json`` asks
# for. Each of its releases adds keys. These may have a text, a list or a dict; all others only a number, or nothing.
_KEYS = dict(
    **dict.fromkeys(('peft_type', 'bias'), _TEXT),
    **dict.fromkeys(('peft_version', 'task_type', 'base_model_name_or_path', 'revision'), _TEXT.or_none()),
    # written for models without ``task_type``; this project does not use it
    auto_mapping=Rule(
        'a class of transformers',
        lambda v: isinstance(v, dict) and str(v.get('parent_library')).split('.')[0] == 'transformers'
    ).or_none(),
    r=_RANKS.or_none(),
    rank_pattern=Rule(
        f'ranks of at most {MOST_RANK}, or lists of bools, by names {_PATTERNS}',
        lambda v: isinstance(v, dict) and _are_names(v) and
        all(all(isinstance(kept, bool) for kept in x) if isinstance(x, list) else _RANKS.holds(x) for x in v.values())
    ).or_none(),
    alpha_pattern=Rule(
        f'numbers by names {_PATTERNS}',
        lambda v: isinstance(v, dict) and _are_names(v) and all(map(Rule.number().holds, v.values()))
    ).or_none(),
    **dict.fromkeys(('target_modules', 'target_parameters', 'exclude_modules', 'feedforward_modules'), _NAMES),
    **dict.fromkeys(('modules_to_save', 'layers_pattern'), _NAMES),
    layers_to_transform=Rule('numbers of layers', lambda v: isinstance(v, (int, list))).or_none(),
    trainable_token_indices=Rule('token ids', lambda v: isinstance(v, (list, dict))).or_none(),
    init_lora_weights=Rule(
        'True, False, or eva, gaussian, lora_ga, olora, orthogonal, pissa or pissa_niter_16',
        lambda v: isinstance(v, bool) or isinstance(v, str) and re.
        fullmatch(r'eva|gaussian|lora_ga|olora|orthogonal|pissa(_niter_\d\d?)?', v)
    ),
    **dict.fromkeys(('eva_config', 'lora_ga_config'), _ONCE),
    megatron_core=Rule.one_of('megatron.core').or_none(),  # peft's default, which it writes into every file
)
_NUMBER = Rule(
    f'a number of at most {MOST_NUMBER}, or None. Remove the key, or use a merged model',
    lambda v: not v or isinstance(v, (int, float)) and abs(v) <= MOST_NUMBER
)


def check_keys(config: Dict[str, Any], before: str, after: str = '') -> None:
    """Require that an ``adapter_config.json`` asks for plain adapters. Messages: ``before``, key, value, ``after``."""
    for key, value in config.items():
        rule = _KEYS.get(key, _NUMBER)
        if not rule.holds(value):
            raise ConfigError(f'{before}{key} = {value!r:.200}{after}: must be {rule.allowed}.')


def base_of_adapters(pretrained: str, where: str) -> Optional[str]:
    """The base model that the ``adapter_config.json`` of a folder or hub name gives; None without that file. Raises a
    ``ConfigError`` if the folder also contains a full model."""
    config = adapter_config(pretrained, where)
    return None if config is None else config['base_model_name_or_path']


def adapter_config(pretrained: str, where: str) -> Optional[Dict[str, Any]]:
    """The content of the ``adapter_config.json`` of ``base_of_adapters``."""
    try:
        with quiet_hub():
            path = find_adapter_config_file(pretrained)
    except Exception:  # not a model name; loading it reports that
        return None
    if path is None:
        return None
    if find_spec('peft') is None:
        raise ConfigError(f"{where}: contains adapters, which need the extra: pip install '.[lora]' in the clone")
    if os.path.isfile(os.path.join(pretrained, 'config.json')):
        raise ConfigError(f'{where}: the folder contains both a model and adapters for it; merge them first.')
    failed = f'{where}: adapter_config.json cannot be read'
    with config_errors(failed, reason=reason), open(path, encoding='utf-8') as f:
        config = json.load(f)
        base = config['base_model_name_or_path']
        check_keys(config, f'{where}: ', ' in adapter_config.json')
    if not isinstance(base, str) or not base:
        raise ConfigError(f'{where}: base_model_name_or_path = {base!r} in adapter_config.json is not a model name.')
    return config


def add_adapters(base: PreTrainedModel, pretrained: str, merge: bool, where: str) -> PreTrainedModel:
    """Add adapters to a base model, in place: merged into its weights, all of which become trainable, or separate."""
    adapted = with_adapters(base, pretrained, where)
    model = adapted.merge_and_unload().requires_grad_(True) if merge else adapted.get_base_model()
    if os.path.isfile(os.path.join(pretrained, 'generation_config.json')):
        with config_errors(f'{where}: generation_config.json cannot be read', reason=reason):
            model.generation_config = GenerationConfig.from_pretrained(pretrained)
    return model


def with_adapters(base: PreTrainedModel, pretrained: str, where: str, trained: bool = False) -> 'PeftModel':  # noqa
    """The wrapper of ``peft`` around a base model and the adapters of a folder, which may be ``trained`` further."""
    from peft import PeftModel, get_peft_model_state_dict
    from peft.utils import load_peft_weights
    failed = f'{where}: its adapters cannot be added to {base.name_or_path!r}'
    with config_errors(failed, reason=reason), quiet_hub(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # about keys that do not fit; checked below
        adapted = PeftModel.from_pretrained(base, pretrained, is_trainable=trained)
        other = set(get_peft_model_state_dict(adapted)) ^ set(load_peft_weights(pretrained, device='cpu'))
        if other or adapted.active_peft_config.is_prompt_learning:
            told = f'{min(other)!r} is only in one of the two' if other else 'they are a prompt, not layer weights'
            raise ConfigError(f'{where}: its adapters do not fit {base.name_or_path!r}: {told}.')
        integers = [name for name in integer_weights(pretrained) if 'indices' not in name]
        if integers:
            raise ConfigError(f'{where}: its weight {integers[0]!r} must have floating-point numbers.')
        return adapted
