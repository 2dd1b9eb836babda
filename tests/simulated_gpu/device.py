"""
A GPU without a GPU. Its tensors lie in the memory of the CPU, and a mark of their storage says that they are the GPU's:
views share it, and a parameter gets it with its data. Operations run on the CPU, and the device counts what a GPU would
have to launch and to wait for. Tensors of two devices in one operation are an error, as they are there.
"""
import weakref
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from . import kernels
from .faces import faces

aten = torch.ops.aten
# The CPU waits for a number, or for the size of the result.
WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten._unique2, aten.unique_consecutive, aten.masked_select, aten.equal,
    aten.bincount, aten.histc
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # also by a mask
ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.lift_fresh}
COPIES = {aten.copy_, aten._to_copy}  # the last tensor of each is what is copied
MIXED = {*COPIES, *INDEXED}  # operations that take tensors of two devices
CUDA, CPU = torch.device('cuda', 0), torch.device('cpu')


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values in lists, tuples and dicts; torch's function takes several times as long."""
    for x in values:
        if isinstance(x, (list, tuple)):
            yield from leaves(x)
        elif isinstance(x, dict):
            yield from leaves(x.values())
        else:
            yield x


@dataclass
class Counts:
    """
    Launches are operations of aten, by name; views and allocations launch nothing. A library may launch several kernels
    for one of them, so they are a lower bound. Waits are operations after which the CPU needs a result of the GPU.
    Recordings are graphs, by their pool of memory.
    Copies to the GPU are from 'pinned' or 'pageable' memory, or 'blocking': the CPU waits until they have run.
    """
    launches: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    copies: Counter = field(default_factory=Counter)
    copied: Counter = field(default_factory=Counter)  # their bytes
    recordings: Counter = field(default_factory=Counter)
    live: int = 0  # bytes
    peak: int = 0

    def allocate(self, size: int) -> None:
        """Count memory that is taken, or with a negative size given back."""
        self.live += size
        self.peak = max(self.peak, self.live)

    def reset(self) -> None:
        """Count anew; the memory that is in use stays."""
        self.launches, self.waits, self.peak = Counter(), Counter(), self.live
        self.copies, self.copied, self.recordings = Counter(), Counter(), Counter()


class SimulatedGPU:
    """
    A context in which torch has one GPU. ``counts`` holds what it has done. With a larger ``number`` torch says that it
    has so many, and tensors lie on the first one.
    """

    def __init__(self, number: int = 1) -> None:
        self.number, self.current = number, 0
        self.counts = Counts()
        self.recorded: Optional[List[Tuple]] = None  # operations of a graph that is recorded
        self._wanted: Optional[torch.device] = None  # of the results of the function that is called
        self._near = CPU  # where the function that is called has tensors

    def __enter__(self) -> 'SimulatedGPU':
        self._stack = ExitStack()
        for face in faces(self):
            self._stack.enter_context(face)
        self.functions = self._stack.enter_context(_Functions(self))
        self._stack.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def has(self, x: Tensor) -> bool:
        return getattr(x.untyped_storage(), 'of_gpu', False)

    def of(self, x: Tensor) -> torch.device:
        return x.device if x.device.type == 'meta' else CUDA if self.has(x) else CPU

    def near(self, *args: Any) -> torch.device:
        """Where arguments lie: on the GPU if one of them does."""
        return CUDA if any(isinstance(x, Tensor) and self.has(x) for x in leaves(args)) else CPU

    def take(self, x: Tensor) -> Tensor:
        """Mark a tensor as one of the GPU."""
        storage = x.untyped_storage()
        if not getattr(storage, 'of_gpu', False) and x.device.type == 'cpu':
            storage.of_gpu = True
            self.counts.allocate(storage.nbytes())
            weakref.finalize(storage, self.counts.allocate, -storage.nbytes())
        return x

    @contextmanager
    def calling(self, near: torch.device, wanted: Optional[torch.device] = None) -> Iterator[None]:
        """Results lie where it is wanted, else where an operation's tensors lie, else near the function's."""
        before, (self._near, self._wanted) = (self._near, self._wanted), (near, wanted)
        try:
            yield
        finally:
            self._near, self._wanted = before

    def copied(self, x: Tensor, to: torch.device, asynchronous: bool = False) -> None:
        """Count a copy of a tensor from one device to another."""
        if to.type == 'cuda':
            pinned = getattr(x.untyped_storage(), 'pinned', False)
            kind = 'blocking' if not asynchronous else 'pinned' if pinned else 'pageable'
            self.counts.copies[kind] += 1
            self.counts.copied[kind] += x.nbytes
        elif not asynchronous:
            self.waits('copy from the GPU')

    @contextmanager
    def one_launch(self, name: str) -> Iterator[None]:
        """All operations within are one kernel of the GPU."""
        before, self.counts.launches = self.counts.launches, Counter()
        try:
            yield
        finally:
            self.counts.launches = before
            self.counts.launches[name] += 1

    def waits(self, name: str) -> None:
        if self.recorded is not None:
            raise RuntimeError(f'operation not permitted when stream is capturing: {name}')
        self.counts.waits[name] += 1

    def run(self, func: Any, args: Tuple, kwargs: Dict) -> Any:
        """Run an operation of aten, which counts if tensors of the GPU take part."""
        packet = func.overloadpacket
        tensors = [x for x in leaves((args, kwargs)) if isinstance(x, Tensor)]
        mine = [x for x in tensors if self.has(x)]
        others = [x for x in tensors if not self.has(x) and x.dim() > 0 and x.device.type == 'cpu']
        if mine and others and packet not in MIXED:
            raise RuntimeError(f'Expected all tensors to be on the same device, but {func} got cuda:0 and cpu')
        on_gpu = bool(mine) if tensors else self._near is CUDA
        if self._wanted is not None:
            on_gpu = self._wanted.type == 'cuda'
        if mine and others and packet is aten.copy_:
            self.copied(
                args[1], self.of(args[0]), bool(kwargs.get('non_blocking', args[2] if len(args) > 2 else False))
            )
        for x in others if mine and packet in INDEXED else ():
            self.copied(x, CUDA)
        if mine and self._must_wait(packet, args, kwargs):
            self.waits(str(packet))
        compute = kernels.OF_GPU.get(func, func) if mine else func
        result = compute(*args, **kwargs)
        made = [x for x in leaves((result, )) if isinstance(x, Tensor)]
        storages = [x.untyped_storage() for x in tensors]  # kept, so that no new one gets the id of one of them
        known = set(map(id, storages))
        is_view = bool(made) and not func._schema.is_mutable and all(id(x.untyped_storage()) in known for x in made)
        if on_gpu:
            for x in made:
                if id(x.untyped_storage()) not in known:  # a copy to the CPU stays there
                    self.take(x)
        sent = packet in COPIES and not self.has(tensors[-1])  # counted in ``copied``
        if (on_gpu or mine) and not (is_view or sent or packet in ALLOCATIONS or packet in WAITS):
            self.counts.launches[str(packet).replace('aten.', '')] += 1
        if self.recorded is not None and (on_gpu or mine):
            self.recorded.append((compute, args, kwargs, result))
        return result

    def _must_wait(self, packet: Any, args: Tuple, kwargs: Dict) -> bool:
        if packet is aten.repeat_interleave:
            return kwargs.get('output_size') is None
        masks = [i for i in args[1] if i is not None and i.dtype is torch.bool] if packet in INDEXED else []
        return packet in WAITS or bool(masks)


class _Operations(TorchDispatchMode):

    def __init__(self, gpu: SimulatedGPU) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict] = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._gpu.run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Calls of torch with the CPU in place of the GPU."""

    def __init__(self, gpu: SimulatedGPU) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict] = None) -> Any:
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != 'pin_memory'}  # needs a true GPU
        special = SPECIAL.get(func)
        if special is not None:
            return special(self._gpu, func, *args, **kwargs)
        wanted = next((torch.device(x) for x in leaves((args, kwargs)) if _is_device(x)), None)
        near = self._gpu.near(args, kwargs)
        if wanted is not None:
            args, kwargs = tree_map(_without_gpu, (args, kwargs))
        with self._gpu.calling(near, wanted):
            return func(*args, **kwargs)


def _is_device(x: Any) -> bool:
    return isinstance(x, torch.device) or isinstance(x, str) and x.split(':')[0] in ('cuda', 'cpu', 'meta')


def _without_gpu(x: Any) -> Any:
    return CPU if _is_device(x) and torch.device(x).type == 'cuda' else x


def _as_it_is(gpu: SimulatedGPU, func: Callable, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _to(gpu: SimulatedGPU, func: Callable, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    given = [*args, *kwargs.values()]
    like = next((v for v in given if isinstance(v, Tensor)), None)
    device = next((torch.device(v) for v in given if _is_device(v)), None if like is None else gpu.of(like))
    if device is None or device.type not in ('cuda', 'cpu') or device.type == gpu.of(x).type:
        return func(x, *map(_without_gpu, args), **{name: _without_gpu(v) for name, v in kwargs.items()})
    dtype = next((v for v in given if isinstance(v, torch.dtype)), x.dtype if like is None else like.dtype)
    flags = [v for v in args if isinstance(v, bool)]
    gpu.copied(x, device, kwargs.get('non_blocking', flags[0] if flags else False))
    with gpu.calling(device, device):
        return func(x, device=CPU, dtype=dtype, copy=True)


def _cuda(gpu: SimulatedGPU, func: Callable, x: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    return _to(gpu, torch.Tensor.to, x, CUDA, non_blocking=non_blocking)


def _tensor(gpu: SimulatedGPU, func: Callable, data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    if isinstance(data, Tensor) and func is torch.as_tensor:
        return _to(gpu, torch.Tensor.to, data, gpu.of(data) if device is None else device, **kwargs)
    on_gpu = device is not None and torch.device(device).type == 'cuda'
    made = func(data, *args, device=CPU if on_gpu else device, **kwargs)
    if on_gpu:
        gpu.copied(made, CUDA)
    return gpu.take(made) if on_gpu else made


def _new_tensor(gpu: SimulatedGPU, func: Callable, x: Tensor, data: Any, dtype: Any = None) -> Tensor:
    return _tensor(gpu, torch.tensor, data, dtype=dtype or x.dtype, device=gpu.of(x))


def _pinned(gpu: SimulatedGPU, func: Callable, x: Tensor) -> Tensor:
    found = x.clone()
    found.untyped_storage().pinned = True
    return found


def _list(gpu: SimulatedGPU, func: Callable, x: Tensor) -> Any:
    if gpu.has(x):
        gpu.waits('tolist')
    return func(x)


def _array(gpu: SimulatedGPU, func: Callable, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    if gpu.has(x):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
    return func(x, *args, **kwargs)


def _deepcopy(gpu: SimulatedGPU, func: Callable, x: Tensor, memo: Dict) -> Tensor:
    found = func(x, memo)
    return gpu.take(found) if gpu.has(x) else found


def _rms_norm(gpu: SimulatedGPU, func: Callable, x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
    return kernels.Norm.apply(gpu, x, weight, eps) if gpu.has(x) else func(x, shape, weight, eps)


SPECIAL = {
    torch.nn.functional.rms_norm: _rms_norm,
    torch.device: _as_it_is,
    torch._C._nn._parse_to: _as_it_is,
    torch.Tensor.device.__get__: lambda gpu, func, x: gpu.of(x),
    torch.Tensor.is_cuda.__get__: lambda gpu, func, x: gpu.has(x),
    torch.Tensor.is_cpu.__get__: lambda gpu, func, x: gpu.of(x).type == 'cpu',
    torch.Tensor.get_device: lambda gpu, func, x: 0 if gpu.has(x) else -1,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.pin_memory: _pinned,
    torch.Tensor.cpu: lambda gpu, func, x: _to(gpu, torch.Tensor.to, x, CPU),
    torch.tensor: _tensor,
    torch.as_tensor: _tensor,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.tolist: _list,
    torch.Tensor.numpy: _array,
    torch.Tensor.__array__: _array,
    torch.Tensor.__deepcopy__: _deepcopy,
}
