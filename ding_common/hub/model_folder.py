"""Checks of a model's folder, made by somebody else, before ``transformers`` reads it: nothing leads out of it."""
import json
import os
import re
import zipfile
from typing import Any, Dict, Iterator, List

import torch
from safetensors import safe_open
from transformers.integrations.gguf import read_gguf_metadata
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from ding_common.errors import ConfigError
from ding_common.files import check_links

MOST_COUNT = 100_000  # of layers, blocks or labels: configs make lists of this length before any message
MOST_GROWTH = 1000  # of a text by a tokenizer
_GROWTH = dict(ByteLevel=4, Precompiled=32)  # by a normaliser or a pre-tokenizer; others keep the length
_COUNT = re.compile('((layer|block|label)s?|attention_types|dense_replace)$')
# Keys that name files beside their own. The names of vocabularies in a ``tokenizer_config.json`` are not used.
_FILES = {'transformers_weights', 'fast_tokenizer_files', 'gguf_file'}
_WEIGHTS = (
    SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME, 'adapter_model.safetensors',
    'adapter_model.bin'
)


def check_model_folder(pretrained: str, key: str) -> None:
    """Require a hub name, or a folder that does not lead outside, unpack to more than it has, or take minutes to build.
    Files of the hub are in the cache and not checked."""
    if not isinstance(pretrained, str) or not pretrained:
        raise ConfigError(f'{key} = {pretrained!r}: must be a folder or a hub name.')
    if not os.path.isdir(pretrained):
        return
    check_links(pretrained, key)
    for name in sorted(os.listdir(pretrained)):
        if name in ('config.json', 'tokenizer_config.json') or name.endswith('.index.json'):
            _check_json(os.path.join(pretrained, name), f'{key} = {pretrained!r}: {name}')
    for path in weight_files(pretrained):
        try:
            check_archive(path)
        except zipfile.BadZipFile as error:
            raise ConfigError(f'{key} = {pretrained!r}: {os.path.basename(path)} cannot be read ({error}).') from error


def is_count(key: str) -> bool:
    """Whether a key of a model's config counts parts of it."""
    return _COUNT.search(key) is not None


def check_archive(path: str) -> None:
    """Raise a ``BadZipFile`` if an archive unpacks to more bytes than it has. ``torch.save`` never compresses."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    packed = [r.filename for r in records if r.compress_type != zipfile.ZIP_STORED or r.file_size != r.compress_size]
    if packed:
        raise zipfile.BadZipFile(f'its record {packed[0]} is compressed')
    if sum(r.file_size for r in records) > os.path.getsize(path):
        raise zipfile.BadZipFile('its records overlap')


def check_gguf(path: str, where: str) -> None:
    """Require that a GGUF file, unless it is on the hub, describes a model of at most ``MOST_COUNT`` layers."""
    try:
        metadata, _ = read_gguf_metadata(path)
    except Exception:  # whoever loads the file names the reason
        return
    for key, value in metadata.items():
        if key.endswith('.block_count') and not (isinstance(value, int) and value <= MOST_COUNT):
            raise ConfigError(f'{where}: {key} = {value!r:.200} in {path}: must be at most {MOST_COUNT}.')


def check_tokenizer(folder: str, where: str) -> None:
    """Require that replacements do not multiply a text: sixty of ``a`` by ``aa`` fill any memory."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not re.fullmatch(r'tokenizer.*\.json', name):  # ``fast_tokenizer_files`` may name another than the usual one
            continue
        content, growth = _read(os.path.join(folder, name)), 1.
        waiting = [content.get('normalizer'), content.get('pre_tokenizer'), content.get('decoder')]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict) and part.get('type') == 'Replace':
                known = part['pattern'].get('String') if isinstance(part.get('pattern'), dict) else None
                growth *= max(1, len(str(part.get('content'))) / max(1, len(str(known or ''))))
            elif isinstance(part, (dict, list)):
                waiting += part.values() if isinstance(part, dict) else part
                growth *= _GROWTH.get(str(part.get('type')), 1) if isinstance(part, dict) else 1
        if growth > MOST_GROWTH:
            raise ConfigError(
                f'{where}: the replacements in its {name} make a text up to {growth:.3g} times as long, must be at '
                f'most {MOST_GROWTH} times.'
            )


def weight_files(folder: str) -> List[str]:
    """The files from which the weights of a folder are loaded; none if the files that name them are broken."""
    named = _read(os.path.join(folder, 'config.json')).get('transformers_weights')
    for name in _WEIGHTS if named is None else [str(named)]:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            parts = _read(path).get('weight_map') if name.endswith('.index.json') else dict(whole=name)
            names = parts.values() if isinstance(parts, dict) else ()
            return [os.path.join(folder, part) for part in sorted(set(map(str, names)))]
    return []


def integer_weights(folder: str) -> Iterator[str]:
    """Names of the tensors in ``weight_files`` that are not floating-point numbers."""
    for path in weight_files(folder):
        if path.endswith('.safetensors'):
            with safe_open(path, 'pt') as tensors:
                yield from (n for n in tensors.keys() if not tensors.get_slice(n).get_dtype().startswith(('F', 'BF')))
        else:
            whole = torch.load(path, map_location='cpu', weights_only=True, mmap=zipfile.is_zipfile(path))
            yield from (n for n, t in whole.items() if isinstance(t, torch.Tensor) and not t.is_floating_point())


def _read(path: str) -> Dict[str, Any]:
    """The content of a JSON file; empty if it cannot be read, since whoever loads the folder names the reason."""
    try:
        with open(path, encoding='utf-8') as f:
            content = json.load(f)
    except Exception:  # a broken file may raise anything, from OSError to RecursionError
        return {}
    return content if isinstance(content, dict) else {}


def _check_json(path: str, where: str) -> None:
    waiting = [('', _read(path))]
    while waiting:
        key, value = waiting.pop()
        if key == 'weight_map' or key in _FILES and value is not None:
            for name in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                if not isinstance(name, str) or os.path.basename(name) != name or name in ('', '.', '..'):
                    raise ConfigError(
                        f'{where}: {key} has {name!r:.200}, must be names of files in the folder, without a path.'
                    )
        elif isinstance(value, dict):  # of implementations by the names of parts
            waiting += [(key if key.endswith('_implementation') else name, x) for name, x in value.items()]
        elif isinstance(value, list):
            waiting += [(key, x) for x in value]
        elif is_count(key) and isinstance(value, (int, float)) and value > MOST_COUNT:
            raise ConfigError(f'{where}: {key} = {value!r:.200}: must be at most {MOST_COUNT}.')
        elif key.endswith('_implementation') and isinstance(value, str) and '/' in value:
            raise ConfigError(f'{where}: {key} = {value!r:.200} would run code of the hub. Remove the key.')
