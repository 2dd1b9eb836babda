"""What the two ways of ``linear_log_prob`` share: from products of hidden states and output matrix to logits."""
from functools import wraps
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import torch
from torch import Tensor

from .token_rules import CountedRules

Slope = Union[Tensor, float, None]  # a derivative, None if it is 1


class Head(NamedTuple):
    """Turns the product of hidden states and output matrix into logits."""
    scale: float
    softcap: Optional[float]
    temperature: float

    def logits(self, z: Tensor) -> Tensor:
        """Logits of the product z, computed in place if z is float32 or wider."""
        z = z.to(wide_type(z))
        if self.scale != 1:
            z.mul_(self.scale)
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z if self.temperature == 1 else z.div_(self.temperature)

    def slope(self, x: Tensor) -> Slope:
        """Derivative of the logits x with respect to the product; None if it is 1."""
        slope = self.scale / self.temperature
        if self.softcap is None:
            return None if slope == 1 else slope
        return (1 - (finite(x) * (self.temperature / self.softcap)) ** 2) * slope


def with_rules(
        x: Tensor, head: Head, rules: Optional[CountedRules], rows: slice, ids: Union[slice, Tensor], with_slope: bool
) -> Slope:
    """Apply rules to the logits x in place. Returns their derivative with respect to the product, if asked for."""
    slope = head.slope(x) if with_slope else None
    of_rules = None if rules is None else rules.apply_(x, rows, ids)
    return slope if of_rules is None else of_rules if slope is None else of_rules * slope


def without_autocast(function: Callable) -> Callable:
    """Disable autocast. It would affect only the forward, whose products then had another type than in the backward."""

    @wraps(function)
    def run(ctx: Any, *args) -> Any:
        given = [x for x in args if isinstance(x, Tensor)]
        device = (given or ctx.saved_tensors)[0].device
        with torch.autocast(device.type, enabled=False):
            return function(ctx, *args)

    return run


def finite(x: Tensor) -> Tensor:
    """Replace -inf by 0, for products with a probability of 0."""
    return x.masked_fill(x == float('-inf'), 0)


def wide_type(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def slices(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
