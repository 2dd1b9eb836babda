"""Attention in pieces that are joined by the logarithms of their normalisers."""
import math
from functools import cached_property
from typing import Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import widened
from ding_grpo.rl_utils.log_probs.matrix_product import multiplies_bfloat16

# Numbers of query-key pairs that take as long as one more call of the attention, and as one more token in a grid. That
# of a GPU is calculated and not measured: a call is about ten launches of 5 us, the time of 2**20 pairs of heads of 64
# numbers at 5 TFLOP/s.
CALL, CALL_ON_GPU, TOKEN = 4096, 2 ** 20, 32
# of torch.nn.functional.scaled_dot_product_attention, here because they also return normalisers
of_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
of_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
of_gpu = torch.ops.aten._scaled_dot_product_efficient_attention
of_gpu_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
NEEDED = [True, True, True, False]  # of the gradients of q, k, v and mask
BIAS, NORMALISER = 16, 32  # of_gpu: a row of the mask, and normalisers of a head, lie at multiples of these numbers


class Options(NamedTuple):
    """Arguments that a layer passes to its attention."""
    scale: float
    window: Optional[int] = None
    softcap: Optional[float] = None

    def within(self, tokens: int) -> 'Options':
        """The options without the window if rows of at most ``tokens`` tokens fit into it."""
        return self if self.window is None or self.window < tokens else self._replace(window=None)


def is_fast(q: Tensor, v: Tensor, options: Options) -> bool:
    """Whether ``flash`` supports it."""
    if options.window is not None or options.softcap is not None or q.shape[-1] != v.shape[-1]:
        return False
    if not q.is_cuda:
        return q.device.type == 'cpu'
    if q.dtype is torch.double or q.shape[-1] % 8:
        return False
    return q.dtype is not torch.bfloat16 or multiplies_bfloat16('cuda')


def call_time(device: torch.device) -> int:
    """Of one more call of the attention on a device, in query-key pairs."""
    return CALL_ON_GPU if device.type == 'cuda' else CALL


def kept_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which rows that are read token by token keep keys and values: float32 in place of half types on a
    processor. Attention of few queries was measured there to take 0.9 to 5 times as long in bfloat16 as in float32, and
    3 to 10 times in float16."""
    return torch.promote_types(dtype, torch.float32) if device.type == 'cpu' else dtype


def flash(q: Tensor,
          k: Tensor,
          v: Tensor,
          scale: float,
          mask: Optional[Tensor] = None,
          causal: bool = False) -> Tuple[Tensor, Tensor]:
    """Attention without storing scores, without a gradient: q (n, H, M, D), k and v (n, H, L, D) -> (n, H, M, D).
    ``mask`` is added to the scores; it broadcasts to (n, H, M, L). The second result are logarithms of the normalisers,
    (n, H, M), in float32 or wider."""
    if q.is_cuda:
        out, lse, *_ = of_gpu(q, k, v, _of_gpu(mask, q, k), True, 0.0, causal, scale=scale)
        return out, lse[..., :q.shape[2]]
    return of_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


def flash_backward(
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        mask: Optional[Tensor] = None,
        causal: bool = False
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``flash`` with respect to q, k and v, given the gradient of ``out``. With the result and the
    normalisers of an attention to more keys, these keys' part of its gradients. On a CPU it takes up to 15 times as
    long in bfloat16 as in float32 for short segments, and no less for long ones."""
    if q.is_cuda:
        tokens, none = q.shape[2], torch.zeros((), dtype=torch.long, device=q.device)  # no dropout, no random state
        lse = torch.nn.functional.pad(lse, (0, -tokens % NORMALISER), value=math.inf)
        out = out.transpose(1, 2).contiguous().transpose(1, 2)  # its kernels for half types assume this layout
        found = of_gpu_backward(
            grad, q, k, v, _of_gpu(mask, q, k), out, lse, none, none, 0.0, NEEDED, causal, scale=scale
        )
        return found[:3]
    grad, out = grad.contiguous(), out.contiguous()
    return of_cpu_backward(grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)


def _of_gpu(mask: Optional[Tensor], q: Tensor, k: Tensor) -> Optional[Tensor]:
    """The mask in the shape that ``of_gpu`` needs."""
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2])


class Seen:
    """Which keys each query sees; broadcasts to (n, H, M, L). Layers share it."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self._added: Dict[torch.dtype, Tensor] = {}

    @cached_property
    def hidden(self) -> Tensor:
        """Which keys each query does not see."""
        return self.keys.logical_not()

    def added(self, dtype: torch.dtype) -> Tensor:
        """A mask of a type that is added to the scores, with rows in the places that ``of_gpu`` needs."""
        if dtype not in self._added:
            n = self.keys.shape[-1]
            columns = n + -n % BIAS if self.keys.is_cuda else n
            mask = torch.zeros(*self.keys.shape[:-1], columns, dtype=dtype, device=self.keys.device)[..., :n]
            self._added[dtype] = mask.masked_fill_(self.hidden, float('-inf'))
        return self._added[dtype]


def added(seen: Optional[Seen], like: Tensor) -> Optional[Tensor]:
    """``Seen.added`` in the type of a tensor; None if all keys are seen."""
    return None if seen is None else seen.added(like.dtype)


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Optional[Seen], options: Options) -> Tuple[Tensor, Tensor]:
    """Like ``plain``, but by flash attention, without a gradient, if that supports it."""
    if is_fast(q, v, options):
        return flash(q, k, v, options.scale, added(seen, q))
    return plain(q, k, v, seen, options)


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Optional[Seen], options: Options) -> Tuple[Tensor, Tensor]:
    """Attention by plain operations, in float32 or wider: q (n, H, M, D), k (n, H, L, D), v (n, H, L, E) -> (n, H, M,
    E), and logarithms of the normalisers, (n, H, M). The result is 0 in the limit for a query that sees no key."""
    score = (q * options.scale) @ k.transpose(-1, -2)  # in float16 the bare product could overflow
    if options.softcap is not None:
        score = torch.tanh(score / options.softcap) * options.softcap
    score = widened(score)
    if seen is not None:  # not minus infinity, because a query may see no key of its prompt
        score = score.masked_fill(seen.hidden, torch.finfo(score.dtype).min / 2)
    lse = score.logsumexp(-1)
    weight = (score - lse.unsqueeze(-1)).exp()
    return (weight.to(v.dtype) @ v).to(weight.dtype), lse
