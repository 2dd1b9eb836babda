"""What torch offers for GPUs beside its operations, for a simulated one."""
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Callable, ContextManager, Dict, Iterator
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn.utils import clip_grad
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

NOTHING = 'set_rng_state', 'manual_seed', 'manual_seed_all', 'empty_cache', '_lazy_init'  # do nothing here


def faces(gpu: Any) -> Iterator[ContextManager]:
    """Contexts in which functions of torch speak of this GPU."""
    counts = gpu.counts
    properties = SimpleNamespace(uuid='simulated', name='simulated GPU', total_memory=80 * 2 ** 30, major=9, minor=0)
    of_cuda = dict(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: gpu.number,
        current_device=lambda: gpu.current,
        set_device=lambda device: setattr(gpu, 'current', device),
        get_device_name=lambda *device: properties.name,
        get_device_properties=lambda *device: properties,
        is_bf16_supported=lambda *args, **kwargs: True,
        synchronize=lambda *device: gpu.waits('synchronize'),
        memory_allocated=lambda *device: counts.live,
        max_memory_allocated=lambda *device: counts.peak,
        reset_peak_memory_stats=lambda *device: setattr(counts, 'peak', counts.live),
        get_rng_state=lambda *device: torch.zeros(16, dtype=torch.uint8),
        is_current_stream_capturing=lambda: gpu.recorded is not None,
        device=nullcontext,  # there is but one
        CUDAGraph=type('CUDAGraph', (_Graph, ), dict(gpu=gpu)),
        Event=type('Event', (_Event, ), dict(gpu=gpu)),
        graph=lambda graph, pool=None: graph.into(pool),
    )
    of_cuda.update(dict.fromkeys(NOTHING, lambda *args: None))
    for name, function in of_cuda.items():
        yield mock.patch.object(torch.cuda, name, function)
    yield mock.patch.object(torch.autograd, '_engine_run_backward', _backward(gpu))
    yield mock.patch.object(BackwardCFunction, 'apply', _apply(gpu))
    yield mock.patch.object(checkpoint, '_recomputation_hook', type('Again', (_Again, ), dict(gpu=gpu)))
    # tensors that are kept say where they lie only while functions have modes
    facts = dict(default=lambda x: (x.shape, x.dtype))
    yield mock.patch.dict(checkpoint._allowed_determinism_checks_to_fns, facts)
    yield mock.patch.object(torch, 'autocast', _Autocast)
    yield mock.patch.object(torch, 'Generator', _Generator)
    yield mock.patch.object(clip_grad, '_group_tensors_by_device_and_dtype', _grouped(gpu))
    for name in ('is_autocast_enabled', 'get_autocast_dtype'):
        yield mock.patch.object(torch, name, _of_cpu(getattr(torch, name)))


def _grouped(gpu: Any) -> Callable:
    """The groups of gradients that are clipped, which are found in C++, with the device that they say they are on."""
    found = clip_grad._group_tensors_by_device_and_dtype

    def grouped(*args: Any) -> Dict:
        return {(gpu.of(group[0][0][0]), dtype): group for (_, dtype), group in found(*args).items()}

    return grouped


def _backward(gpu: Any) -> Callable:
    run = torch.autograd._engine_run_backward

    def backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with gpu.calling(gpu.near(outputs)):
            return run(outputs, *args, **kwargs)

    return backward


def _apply(gpu: Any) -> Callable:
    """The backward pass of a function of Python, which torch runs without modes of functions."""
    run = BackwardCFunction.apply

    def apply(self: Any, *args: Any) -> Any:
        with gpu.functions:
            return run(self, *args)

    return apply


class _Again(checkpoint._recomputation_hook):
    """While activations are computed again, which torch does without modes of functions."""

    gpu: Any = None

    def __enter__(self) -> None:
        super().__enter__()
        self.gpu.functions.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.gpu.functions.__exit__(*error)
        super().__exit__(*error)


class _Generator(torch.Generator):

    def __new__(cls, device: Any = 'cpu') -> '_Generator':
        return super().__new__(cls, 'cpu')


class _Autocast(torch.autocast):

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__('cpu' if device_type == 'cuda' else device_type, *args, **kwargs)


def _of_cpu(function: Callable) -> Callable:
    return lambda *device: function(*('cpu' if kind == 'cuda' else kind for kind in device))


class _Event:
    gpu: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time = 0.0

    def record(self, *stream: Any) -> None:
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        self.gpu.waits('synchronize')

    def elapsed_time(self, end: '_Event') -> float:
        """In milliseconds."""
        return 1e3 * (end._time - self._time)


class _Graph:
    """Operations are recorded once, without a result, and run again on the same tensors."""

    gpu: Any = None

    def __init__(self) -> None:
        self._calls, self._pool, self._done = [], None, False

    def into(self, pool: Any) -> '_Graph':
        """Record into the memory of this pool, which must have a graph; None: of a new one."""
        if pool is not None and not any(graph() is not None for graph in pool.graphs):
            raise RuntimeError('use_count > 0: the pool has gone with its last graph')
        recordings = self.gpu.counts.recordings
        self._pool = SimpleNamespace(graphs=[], number=len(recordings)) if pool is None else pool
        self._pool.graphs.append(weakref.ref(self))
        recordings[self._pool.number] += 1
        return self

    def pool(self) -> Any:
        if not self._done:
            raise RuntimeError('nothing has been recorded')
        return self._pool

    def __enter__(self) -> None:
        self.gpu.recorded = self._calls

    def __exit__(self, *error: Any) -> None:
        self.gpu.recorded, self._done = None, True

    def replay(self) -> None:
        """One launch, whatever the number of operations."""
        if self._pool.graphs[-1]() is not self:
            raise RuntimeError('a later graph has taken the memory of this one')
        self.gpu.counts.launches['graph'] += 1
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            for func, args, kwargs, out in self._calls:
                for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs))):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
