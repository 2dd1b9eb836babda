"""Logits in tiles of some tokens by a part of the vocabulary, and how a product becomes logits."""
from functools import wraps
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import wide_type, widened

from .matrix_product import matrix_product, rounded_product
from .token_rules import CountedRules

# The logits in memory at a time: 8 MiB in float32. Much smaller tiles are slower to multiply, larger ones exceed the
# cache; this one is within 3 % of the best of 11 shapes tried.
TOKENS, VOCABULARY = 2048, 1024
# On a GPU larger ones, 128 MiB, so that there are few of them: each takes about ten launches. Chosen by count, not
# measured.
VOCABULARY_ON_GPU = 16384

Slope = Union[Tensor, float, None]  # a derivative, None if it is 1


class Head(NamedTuple):
    """Multiplies hidden states by an output matrix, and turns the product into logits."""
    scale: float
    softcap: Optional[float]
    temperature: float
    rounded: bool = False

    @property
    def product(self) -> Callable[[Tensor, Tensor], Tensor]:
        return rounded_product if self.rounded else matrix_product

    def factor(self, x: Tensor) -> Tensor:
        """A factor of a product that is computed in the type of the factor."""
        return x.to(torch.bfloat16).to(wide_type(x)) if self.rounded else x

    def logits(self, z: Tensor) -> Tensor:
        """Logits of the product z, computed in place if z is float32 or wider."""
        z = widened(z)
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


class Sampled(NamedTuple):
    """N sampled tokens, in the order of the M hidden states that predict them."""
    index: Tensor  # (N, )
    state: Optional[Tensor] = None  # (N, ), ascending; None if each has a state of its own
    first: Sequence[int] = ()  # (M + 1, ): number of tokens that lower states predict

    @classmethod
    def of(cls, index: Tensor, state: Optional[Tensor], states: int) -> 'Sampled':
        if state is None:
            return cls(index)
        return cls(index, state, torch.searchsorted(state, torch.arange(states + 1, device=state.device)).tolist())

    def tokens(self, rows: slice) -> slice:
        """The tokens that a range of states predicts."""
        return rows if self.state is None else slice(self.first[rows.start], self.first[rows.stop])

    def of_tokens(self, x: Tensor) -> Tensor:
        """Values of states, (M, ), for each token."""
        return x if self.state is None else x[self.state]

    def sum(self, x: Tensor, like: Tensor) -> Tensor:
        """Sums of the values of the tokens of each state, in the form of ``like``, (M, )."""
        return x if self.state is None else torch.zeros_like(like).index_add_(0, self.state, x)

    def find(self, rows: slice, columns: slice) -> Tuple[Tensor, Tensor]:
        """Whether the tile has each token of ``rows``, and its place in the flattened tile, arbitrary for others."""
        tokens, width = self.tokens(rows), columns.stop - columns.start
        column = self.index[tokens] - columns.start
        if self.state is None:
            row = torch.arange(len(column), device=column.device)
        else:
            row = self.state[tokens] - rows.start
        return (column >= 0) & (column < width), row * width + column.clamp(0, width - 1)


class Tile(NamedTuple):
    """The logits of some hidden states over a part of the vocabulary."""
    hidden: Tensor
    weight: Tensor
    bias: Optional[Tensor]
    head: Head
    rules: Optional[CountedRules] = None

    def logits(self, rows: slice, columns: slice) -> Tensor:
        return self.logits_and_slope(rows, columns, False)[0]

    def logits_and_slope(self, rows: slice, columns: slice, with_slope: bool = True) -> Tuple[Tensor, Slope]:
        z = self.head.product(self.hidden[rows], self.weight[columns])
        x = self.head.logits(z if self.bias is None else z.add_(self.bias[columns]))
        return x, with_rules(x, self.head, self.rules, rows, columns, with_slope)

    def backward(
            self,
            grad_of: Callable[[slice, slice], Tensor],
            needs: Sequence[bool],
            tokens: int,
    ) -> Tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]:
        """Gradients of hidden states, output matrix and bias, None where they are not needed. ``grad_of`` computes the
        gradient of the product of some rows and a part of the vocabulary; ``tokens`` rows are processed at a time."""
        hidden, weight, bias, product = self.hidden, self.weight, self.bias, self.head.product
        needs_hidden, needs_weight, needs_bias = needs
        wide = wide_type(hidden)
        turned = hidden.T.contiguous() if needs_weight else None  # (H, N)
        grad_hidden = torch.zeros(hidden.shape, dtype=wide, device=hidden.device) if needs_hidden else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = torch.empty_like(bias) if needs_bias else None
        for columns in vocabulary_slices(weight):
            w = weight[columns]
            sum_weight = None  # (H, tile)
            sum_bias = torch.zeros(len(w), dtype=wide, device=w.device) if needs_bias else None
            for rows in slices(len(hidden), tokens):
                grad = grad_of(rows, columns).to(hidden.dtype)  # (N, tile)
                if needs_hidden:
                    grad_hidden[rows] += product(grad, w.T)
                if needs_weight:
                    part = product(turned[:, rows], grad.T).to(wide)
                    sum_weight = part if sum_weight is None else sum_weight.add_(part)
                if needs_bias:
                    sum_bias += grad.sum(0)
            if needs_weight:
                grad_weight[columns] = 0 if sum_weight is None else sum_weight.T  # without tokens
            if needs_bias:
                grad_bias[columns] = sum_bias
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, grad_bias


def finite(x: Tensor) -> Tensor:
    """Replace -inf by 0, for products with a probability of 0."""
    return x.masked_fill(x == float('-inf'), 0)


def slices(length: int, size: int) -> Iterator[slice]:
    """The ranges of ``size`` numbers from 0 to ``length``."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def vocabulary_slices(weight: Tensor) -> Iterator[slice]:
    """The parts of the vocabulary of an output matrix (V, H) that are in memory at a time."""
    return slices(len(weight), tile_width(weight))


def tile_width(weight: Tensor) -> int:
    """The number of tokens of the vocabulary in a tile."""
    return VOCABULARY if weight.device.type == 'cpu' else VOCABULARY_ON_GPU
