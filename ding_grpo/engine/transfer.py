"""How weights go to servers: the whole model in a file, or adapters in a folder."""
import copy
import os
import shutil
from typing import Dict, List

from safetensors.torch import save_file
from torch import Tensor

from ding_common import ConfigError
from ding_common.hub.loading import no_bars
from ding_grpo.model import CausalLM

from .options import KEY
from .server import Server

# Ranks for which vLLM has memory of its own, of which the next larger one is taken.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


class WholeModel:
    """The weights of a model, which go through a folder that servers see too."""
    _name = 'weights'  # of what is written

    def __init__(self, model: CausalLM) -> None:
        self._model = model

    def weights(self) -> Dict[str, Tensor]:
        """Those that are sent, by name."""
        return dict(self._model.lm.named_parameters())  # a tied output matrix is among them once

    def arguments(self) -> List[str]:
        """Of a server that the run starts."""
        return []

    def save_base(self, folder: str) -> None:
        """Write the model that such a server begins with."""
        with no_bars():
            self._model.lm.save_pretrained(folder)

    def write(self, folder: str, version: str) -> str:
        """Write the weights of now in place of others, unless they are there already. Returns their path."""
        path = os.path.join(folder, f'{self._name}.{version}')
        for other in os.listdir(folder):
            old = os.path.join(folder, other)
            if other.startswith(f'{self._name}.') and old != path:
                shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
        if not os.path.exists(path):
            self._save(f'{path}.part')
            os.replace(f'{path}.part', path)
        return path

    def _save(self, path: str) -> None:
        save_file({name: w.detach().cpu().contiguous() for name, w in self.weights().items()}, path)

    def give(self, server: Server, path: str, version: str) -> None:
        """Have a server take what was written."""
        server.load(path, version)


class Adapters(WholeModel):
    """Each version is an adapter of its own for the server, so that nothing that it keeps is of another version."""
    _name = 'adapter'

    def __init__(self, model: CausalLM) -> None:
        super().__init__(model)
        self._rank = model.peft.active_peft_config.r
        if self._rank > RANKS[-1]:
            raise ConfigError(f'policy.model.lora.r = {self._rank}: must be at most {RANKS[-1]} with {KEY}.')

    def weights(self) -> Dict[str, Tensor]:
        return {name: w for name, w in super().weights().items() if w.requires_grad}

    def arguments(self) -> List[str]:
        rank = next(rank for rank in RANKS if rank >= self._rank)
        return ['--enable-lora', '--max-lora-rank', str(rank)]

    def save_base(self, folder: str) -> None:
        with no_bars():
            copy.deepcopy(self._model.peft).unload().save_pretrained(folder)

    def _save(self, path: str) -> None:
        self._model.peft.save_pretrained(path)

    def give(self, server: Server, path: str, version: str) -> None:
        server.load_adapter(path, version)
