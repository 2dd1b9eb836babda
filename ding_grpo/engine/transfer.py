"""How weights go to servers: the whole model in a file, or adapters in a folder."""
import copy
import os
import shutil
from typing import Dict, List, Protocol

from safetensors.torch import save_file
from torch import Tensor

from ding_common import ConfigError
from ding_common.hub.loading import no_bars
from ding_grpo.model import CausalLM

from .options import KEY
from .server import Server

# Ranks for which vLLM has memory of its own, of which the next larger one is taken.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class Transfer(Protocol):
    """Of a model, through a folder that servers see too."""

    def weights(self) -> Dict[str, Tensor]:
        """Those that are sent, by name."""

    def arguments(self) -> List[str]:
        """Of a server that the run starts."""

    def save_base(self, folder: str) -> None:
        """Write the model that such a server begins with."""

    def write(self, folder: str, version: str) -> None:
        """Write the weights of now in place of others, unless they are there already."""

    def give(self, server: Server, folder: str, version: str) -> None:
        """Have a server take what was written."""


class WholeModel(Transfer):

    def __init__(self, model: CausalLM) -> None:
        self._lm = model.lm

    def weights(self) -> Dict[str, Tensor]:
        return dict(self._lm.named_parameters())  # a tied output matrix is among them once

    def arguments(self) -> List[str]:
        return []

    def save_base(self, folder: str) -> None:
        with no_bars():
            self._lm.save_pretrained(folder)

    def write(self, folder: str, version: str) -> None:
        path = _only(folder, 'weights', version)
        if not os.path.exists(path):
            save_file({name: w.detach().cpu().contiguous() for name, w in self.weights().items()}, f'{path}.part')
            os.replace(f'{path}.part', path)

    def give(self, server: Server, folder: str, version: str) -> None:
        server.load(os.path.join(folder, f'weights.{version}'), version)


class Adapters(Transfer):
    """Each version is an adapter of its own for the server, so that nothing that it keeps is of another version."""

    def __init__(self, model: CausalLM) -> None:
        self._model, self._peft = model, model.peft
        self._rank = self._peft.active_peft_config.r
        if self._rank > RANKS[-1]:
            raise ConfigError(f'policy.model.lora.r = {self._rank}: must be at most {RANKS[-1]} with {KEY}.')

    def weights(self) -> Dict[str, Tensor]:
        return {name: w for name, w in self._model.lm.named_parameters() if w.requires_grad}

    def arguments(self) -> List[str]:
        rank = next(rank for rank in RANKS if rank >= self._rank)
        return ['--enable-lora', '--max-lora-rank', str(rank)]

    def save_base(self, folder: str) -> None:
        with no_bars():
            copy.deepcopy(self._peft).unload().save_pretrained(folder)

    def write(self, folder: str, version: str) -> None:
        path = _only(folder, 'adapter', version)
        if not os.path.exists(path):
            self._peft.save_pretrained(f'{path}.part')
            os.replace(f'{path}.part', path)

    def give(self, server: Server, folder: str, version: str) -> None:
        server.load_adapter(os.path.join(folder, f'adapter.{version}'), version)


def _only(folder: str, name: str, version: str) -> str:
    """The path of a version, after all others have been removed."""
    kept = f'{name}.{version}'
    for other in os.listdir(folder):
        if other.startswith(f'{name}.') and other != kept:
            path = os.path.join(folder, other)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    return os.path.join(folder, kept)
