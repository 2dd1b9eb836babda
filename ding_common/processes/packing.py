"""Objects as bytes, for messages between processes: tensors and plain objects only, without names of code."""
import io
import pickle
from collections import OrderedDict
from typing import Any, List, Optional

import torch
from torch import Tensor


def pack(thing: Any, tensors: Optional[List[Tensor]] = None) -> Tensor:
    """An object as bytes. Of its tensors only shape and type with ``tensors``, to which they are appended."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.tensors = tensors
    pickler.dump(thing)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(data: Tensor, tensors: Optional[List[Tensor]] = None) -> Any:
    """The object of ``pack``. Its tensors are empty with ``tensors``, to which they are appended."""
    unpickler = _Unpickler(io.BytesIO(data.numpy().tobytes()))
    unpickler.tensors = tensors
    return unpickler.load()


def as_bytes(tensor: Tensor) -> Tensor:
    """Gloo sends neither bool nor complex."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


class _Pickler(pickle.Pickler):
    """Writes no names of classes or functions, so that ``_Unpickler`` need not read any."""

    tensors: Optional[List[Tensor]] = None

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return None
        kind = str(thing.dtype).removeprefix('torch.'), tuple(thing.shape)
        if self.tensors is None:
            return *kind, as_bytes(thing).numpy().tobytes()
        self.tensors.append(thing)
        return kind

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is OrderedDict or thing is OrderedDict:  # of a model's state
            return NotImplemented
        raise TypeError(f'processes exchange tensors and plain objects, not {type(thing).__name__}: {thing!r:.80}')


class _Unpickler(pickle.Unpickler):
    """Reads tensors and plain objects. Creates empty tensors if it gets a list, to which it appends them."""

    tensors: Optional[List[Tensor]] = None

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ('collections', 'OrderedDict'):
            return OrderedDict
        raise pickle.UnpicklingError(f'{module}.{name}: processes exchange tensors and plain objects only')

    def persistent_load(self, found: Any) -> Tensor:
        name, shape, *data = found
        dtype = getattr(torch, name)
        if self.tensors is None:  # a copy, because kernels may depend on how memory is aligned
            flat = torch.frombuffer(bytearray(data[0]), dtype=dtype) if data[0] else torch.empty(0, dtype=dtype)
            return flat.clone().view(shape)
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]
