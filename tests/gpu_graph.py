"""What torch's graphs for GPUs do, on a CPU: operations are recorded once and run again on the same tensors."""
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ding_grpo.model import CausalLM
from ding_grpo.model.read import step_graph

aten = torch.ops.aten
# The CPU would wait for a number or a size from the GPU; with those of INDEXED, if an index is boolean.
WAITS = (aten._local_scalar_dense, aten.nonzero, aten._unique2, aten.masked_select)
INDEXED = (aten.index, aten.index_put, aten.index_put_)


class _Recorder(TorchDispatchMode):

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        indices = args[1] if func.overloadpacket in INDEXED else []
        if func.overloadpacket in WAITS or any(i is not None and i.dtype is torch.bool for i in indices):
            raise RuntimeError(f'operation not permitted when stream is capturing: {func}')
        out = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in tree_leaves(out)):
            raise RuntimeError(f'{func} makes a tensor on the default device, from which a GPU would copy')
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(function):
    recorder = _Recorder()
    with torch.device('meta'), recorder:
        result = function()
    with torch.no_grad():
        result.fill_(float('nan'))  # recording computes nothing

    def replay():
        with torch.no_grad():
            for func, args, kwargs, out in recorder.calls:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(out), tree_leaves(again)):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    return replay, result


def use(monkeypatch):
    """Models use graphs on a CPU. Returns a list with an entry for each record and each replay."""
    called = []

    def noted(function):
        called.append('record')
        replay, result = record(function)
        return lambda: called.append('replay') or replay(), result

    monkeypatch.setattr(step_graph, 'record', noted)
    monkeypatch.setattr(CausalLM, 'uses_cuda_graphs', property(lambda self: self._cuda_graphs))
    return called
