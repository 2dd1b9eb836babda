"""Attention in pieces that are joined by the logarithms of their normalisers."""
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

# Numbers of query-key pairs that take as long as one more call of the attention, and as one more token in a grid.
CALL, TOKEN = 4096, 32
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Options(NamedTuple):
    """
    Overview:
        Arguments that a layer passes to its attention.
    """
    scale: float
    window: Optional[int] = None
    softcap: Optional[float] = None

    def within(self, tokens: int) -> 'Options':
        """The options without the window if rows of at most ``tokens`` tokens fit into it."""
        return self if self.window is None or self.window < tokens else self._replace(window=None)


def is_fast(q: Tensor, v: Tensor, options: Options) -> bool:
    """Whether the flash attention for CPUs supports it."""
    return (
        q.device.type == 'cpu' and options.window is None and options.softcap is None and q.shape[-1] == v.shape[-1]
    )


def attended(q: Tensor, k: Tensor, v: Tensor, seen: Optional[Tensor], options: Options) -> Tuple[Tensor, Tensor]:
    """Like ``plain``, but without a gradient, and by flash attention if that supports it."""
    if is_fast(q, v, options):
        return flash(q, k, v, attn_mask=None if seen is None else added(seen, q), scale=options.scale)
    return plain(q, k, v, seen, options)


def added(seen: Tensor, like: Tensor) -> Tensor:
    """A mask that is added to the scores."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill_(~seen, float('-inf'))


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Optional[Tensor], options: Options) -> Tuple[Tensor, Tensor]:
    """
    Overview:
        Attention by plain operations, in float32 or wider.
    Shapes:
        - q (:obj:`torch.Tensor`): :math:`(n, H, M, D)`
        - k (:obj:`torch.Tensor`): :math:`(n, H, L, D)`
        - v (:obj:`torch.Tensor`): :math:`(n, H, L, E)`
        - seen (:obj:`torch.BoolTensor`): Which keys each query sees; it broadcasts to :math:`(n, H, M, L)`.
        - out (:obj:`torch.Tensor`): :math:`(n, H, M, E)`, 0 in the limit for a query that sees no key
        - lse (:obj:`torch.Tensor`): :math:`(n, H, M)`
    """
    score = q @ k.transpose(-1, -2) * options.scale
    if options.softcap is not None:
        score = torch.tanh(score / options.softcap) * options.softcap
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if seen is not None:  # not minus infinity, because a query may see no key of its prompt
        score = score.masked_fill(~seen, torch.finfo(score.dtype).min / 2)
    lse = score.logsumexp(-1)
    weight = (score - lse.unsqueeze(-1)).exp()
    return (weight.to(v.dtype) @ v).to(weight.dtype), lse
