"""Read the weights of a model one after another, so that some can be made smaller before the next one is read."""
import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set

from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PreTrainedModel

_ONE_THREAD = 'HF_DEACTIVATE_ASYNC_LOAD'  # others would read far ahead of the weight that is made smaller


@contextmanager
def weight_by_weight(
        layers_of: Callable[[PreTrainedModel], Iterable[nn.Module]], smaller: Callable[[nn.Parameter], nn.Parameter]
) -> Iterator[None]:
    """Context in which ``from_pretrained`` reads the weights of a model one by one. What ``smaller`` returns takes the
    place of each weight of the layers ``layers_of(model)`` as soon as it is read. Names are checked as without it.
    Models that are stored in few bits are read as without it."""
    layers: Set[nn.Module] = set()
    load, before = PreTrainedModel._load_pretrained_model, os.environ.get(_ONE_THREAD)

    def read(model: PreTrainedModel, state: Optional[dict], files: List[str], config: Any, *more: Any) -> Any:
        if config.hf_quantizer is None:
            layers.update(layers_of(model))
            if files[0].endswith('.safetensors'):
                state = _unmapped(files)
        return load(model, state, files, config, *more)

    def register(layer: nn.Module, name: str, weight: Optional[nn.Parameter]) -> Optional[nn.Parameter]:
        if layer not in layers or name != 'weight' or not getattr(weight, '_is_hf_initialized', False):
            return None  # not read from a file
        found = smaller(weight)
        found._is_hf_initialized = True
        return found

    handle = register_module_parameter_registration_hook(register)
    PreTrainedModel._load_pretrained_model, os.environ[_ONE_THREAD] = staticmethod(read), '1'
    try:
        yield
    finally:
        handle.remove()
        PreTrainedModel._load_pretrained_model = staticmethod(load)
        del os.environ[_ONE_THREAD]
        if before is not None:
            os.environ[_ONE_THREAD] = before


def _unmapped(files: List[str]) -> Dict[str, Any]:
    """The tensors of safetensors files by name, each of which is read when it is asked for. What is read of a file that
    is mapped into memory stays there until the file is closed."""
    opened = [safe_open(path, 'pt', backend='pread') for path in files]
    return {name: tensors.get_slice(name) for tensors in opened for name in tensors.keys()}
