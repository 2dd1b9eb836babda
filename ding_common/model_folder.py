"""Checks of a model's folder, made by somebody else, before ``transformers`` reads it: nothing leads out of it."""
import json
import math
import os
import re
import zipfile
from typing import Iterator, NamedTuple

import torch
from safetensors import safe_open
from transformers.integrations.gguf import read_gguf_metadata

from .errors import ConfigError
from .files import check_links

# Larger values are typing errors, which would take minutes or exhaust the memory before any message.
MOST_LAYERS, MOST_OF_ALL = 10_000, 1_000_000_000
MOST_GROWTH = 1000  # of a text by a tokenizer
_SIZE = re.compile('layer|expert|head|size|dim|embd|position')
# Keys that name files beside their own. The names of vocabularies in a ``tokenizer_config.json`` are not used.
_FILES = {'transformers_weights', 'fast_tokenizer_files', 'gguf_file'}


def check_model_folder(pretrained: str, key: str) -> None:
    """
    Overview:
        Require that a model is given by a hub name, or by a folder that does not lead outside, unpack to more than \
        it has, or take minutes to build.
    Arguments:
        - pretrained (:obj:`str`): Folder or hub name. Only a folder is checked; hub files are in the cache.
        - key (:obj:`str`): Config key or option that names it, for messages.
    Raises:
        - ConfigError: If it is neither.
    """
    if not isinstance(pretrained, str) or not pretrained:
        raise ConfigError(f'{key} = {pretrained!r}: must be a folder or a hub name.')
    if not os.path.isdir(pretrained):
        return
    check_links(pretrained, key)
    for name in sorted(os.listdir(pretrained)):
        path, where = os.path.join(pretrained, name), f'{key} = {pretrained!r}: {name}'
        if name in ('config.json', 'tokenizer_config.json') or name.endswith('.index.json'):
            _check_json(path, where)
        elif name.endswith('.bin'):
            try:
                check_stored(path)
            except zipfile.BadZipFile as error:
                raise ConfigError(f'{where} cannot be read ({error}).') from error


def most_of(name: str) -> int:
    """The largest value of a key of a model's config that counts something."""
    return MOST_LAYERS if 'layer' in name or 'expert' in name else MOST_OF_ALL


def check_stored(path: str) -> None:
    """
    Overview:
        Require that an archive unpacks to no more bytes than its file has. ``torch.save`` never compresses.
    Arguments:
        - path (:obj:`str`): A file, which need not be an archive.
    Raises:
        - BadZipFile: If it has a compressed record, or records that overlap.
    """
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
    """
    Overview:
        Require that a GGUF file describes a model of at most ``MOST_LAYERS`` layers and experts.
    Arguments:
        - path (:obj:`str`): The file, or a file of the hub, which is not checked.
        - where (:obj:`str`): Key and value, for messages.
    Raises:
        - ConfigError: If it describes more.
    """
    try:
        metadata, _ = read_gguf_metadata(path)
    except Exception:  # whoever loads the file names the reason
        return
    for key, value in metadata.items():
        if key.endswith(('.block_count', '.expert_count')) and not -1 <= value <= MOST_LAYERS:
            raise ConfigError(f'{where}: {key} = {value!r:.200} in {path}: must be at most {MOST_LAYERS}.')


def check_tokenizer(folder: str, where: str) -> None:
    """
    Overview:
        Require that the replacements of a tokenizer do not multiply a text: sixty of ``a`` by ``aa`` fill any memory.
    Arguments:
        - folder (:obj:`str`): Which may contain a ``tokenizer.json``.
        - where (:obj:`str`): Key and value, for messages.
    Raises:
        - ConfigError: If a text can become more than ``MOST_GROWTH`` times as long.
    """
    try:
        with open(os.path.join(folder, 'tokenizer.json'), encoding='utf-8') as f:
            content = json.load(f)
        waiting, growth = [content.get('normalizer'), content.get('pre_tokenizer'), content.get('decoder')], 1.
    except Exception:  # whoever loads the folder names the reason
        return
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and part.get('type') == 'Replace':
            known = part['pattern'].get('String') if isinstance(part.get('pattern'), dict) else None
            growth *= max(1, len(str(part.get('content'))) / max(1, len(str(known or ''))))
        elif isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part
    if growth > MOST_GROWTH:
        raise ConfigError(
            f'{where}: the replacements in its tokenizer.json make a text up to {growth:.3g} times as long, must be at '
            f'most {MOST_GROWTH} times.'
        )


class Stored(NamedTuple):
    """A tensor in a file of weights: its name, number of elements, and whether they are floating-point numbers."""
    name: str
    size: int
    floating: bool


def stored_weights(folder: str) -> Iterator[Stored]:
    """
    Overview:
        The tensors in a folder's files of weights, of which only the descriptions are read.
    Arguments:
        - folder (:obj:`str`): With files of safetensors or torch.
    """
    for file in sorted(os.listdir(folder)):
        path = os.path.join(folder, file)
        if file.endswith('.safetensors'):
            with safe_open(path, 'pt') as tensors:
                for name in tensors.keys():
                    part = tensors.get_slice(name)
                    yield Stored(name, math.prod(part.get_shape()), part.get_dtype().startswith(('F', 'BF')))
        elif file.startswith(('pytorch_model', 'adapter_model')) and zipfile.is_zipfile(path):
            for name, tensor in torch.load(path, map_location='cpu', weights_only=True, mmap=True).items():
                if isinstance(tensor, torch.Tensor):
                    yield Stored(name, tensor.numel(), tensor.is_floating_point())


def _check_json(path: str, where: str) -> None:
    try:
        with open(path, encoding='utf-8') as f:
            waiting = [('', json.load(f))]
    except Exception:  # whoever loads the folder names the reason
        return
    while waiting:
        key, value = waiting.pop()
        if key == 'weight_map' and isinstance(value, dict) or key in _FILES and value is not None:
            for name in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
                if not isinstance(name, str) or os.path.basename(name) != name or name in ('', '.', '..'):
                    raise ConfigError(
                        f'{where}: {key} has {name!r:.200}, must be names of files in the folder, without a path.'
                    )
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, x) for x in value]
        elif isinstance(value, (int, float)) and _SIZE.search(key) and not abs(value) <= most_of(key):
            raise ConfigError(f'{where}: {key} = {value!r:.200}: must be at most {most_of(key)}.')
        elif key.endswith('_implementation') and isinstance(value, str) and '/' in value:
            raise ConfigError(f'{where}: {key} = {value!r:.200} would run code of the hub. Remove the key.')
