"""The matrix products of an update: written down while it runs, and made again by themselves."""
import time
from typing import Any, Dict, List, Set, Tuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Per operator, the places of its two factors among the arguments, and whether the second one is transposed.
FACTORS = {
    'mkldnn._linear_pointwise': (0, 1, True),
    'aten.linear': (0, 1, True),
    'aten.mm': (0, 1, False),
    'aten.bmm': (0, 1, False),
    'aten.addmm': (1, 2, False),
    'aten.baddbmm': (1, 2, False),
}
ATTENTION = {  # number of products
    'aten._scaled_dot_product_flash_attention_for_cpu': 2,
    'aten._scaled_dot_product_flash_attention_for_cpu_backward': 5,
}


class Recorder(TorchDispatchMode):
    """
    Overview:
        Writes down the products that run while it is entered. ``calls`` has, for each, the operator, the shapes,
        strides and types of both factors, and which weight the second one is, or None. ``attention`` counts the
        operations of attention. The caller sets ``sampling``. ``found`` has both.
    """

    def __init__(self, weights: Set[int]) -> None:
        super().__init__()
        self._numbers = {pointer: number for number, pointer in enumerate(sorted(weights))}
        self.calls: List[Dict[str, Any]] = []
        self.attention = dict(sampling=0, learning=0)
        self.sampling = False
        self.found = dict(calls=self.calls, attention=self.attention)

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple = (), kwargs: Any = None) -> Any:
        name = str(func).rpartition('.')[0]
        part = 'sampling' if self.sampling else 'learning'
        if name in FACTORS:
            a, b = (args[i] for i in FACTORS[name][:2])
            weight = self._numbers.get(b.data_ptr())
            if weight is None and b.dtype == torch.bfloat16:  # perhaps autocast's copy of a weight
                weight = f'copy at {b.data_ptr()}'
            self.calls.append(dict(operator=name, part=part, a=_form(a), b=_form(b), weight=weight))
        elif name in ATTENTION:
            q, k = args[1:3] if name.endswith('backward') else args[:2]
            self.attention[part] += ATTENTION[name] * 2 * q.numel() * k.shape[-2]
        return func(*args, **(kwargs or {}))


def _form(x: Tensor) -> Tuple[List[int], List[int], str]:
    return list(x.shape), list(x.stride()), str(x.dtype).rpartition('.')[2]


class Replay:
    """
    Overview:
        Makes the recorded products by themselves: same operators, shapes, strides, types and order, and as many
        different weights.
    """

    def __init__(self, calls: List[Dict[str, Any]]) -> None:
        self._tensors: Dict[str, Tensor] = {}
        self._calls = [(call, self._tensor(call['a'], 'a'), self._tensor(call['b'], call['weight'])) for call in calls]

    def _tensor(self, form: Tuple[List[int], List[int], str], which: Any) -> Tensor:
        key = repr((form, which))
        if key not in self._tensors:
            shape, stride, dtype = form
            size = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
            self._tensors[key] = torch.randn(size, dtype=getattr(torch, dtype)).as_strided(shape, stride)
        return self._tensors[key]

    def seconds(self) -> Dict[str, float]:
        """Of the products of sampling and of learning."""
        found = dict(sampling=0.0, learning=0.0)
        for call, a, b in self._calls:
            start = time.perf_counter()
            if call['operator'] == 'mkldnn._linear_pointwise':
                torch.ops.mkldnn._linear_pointwise(a, b, None, 'none', [], '')
            elif FACTORS[call['operator']][2]:
                torch.nn.functional.linear(a, b)
            else:
                a @ b
            found[call['part']] += time.perf_counter() - start
        return found

    def operations(self) -> float:
        """Floating-point operations, a multiplication and an addition each."""
        return float(
            sum(2 * a.numel() * b.shape[-2 if FACTORS[call['operator']][2] else -1] for call, a, b in self._calls)
        )
