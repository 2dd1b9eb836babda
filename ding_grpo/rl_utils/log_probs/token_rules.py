"""What a sampler does to the logits of single tokens before it draws one, for ``linear_log_prob``."""
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor


class TokenRules(NamedTuple):
    """Changes of a model's logits, in this order: a bias is added; the logits of tokens that the row contains are
    divided by a penalty if they are positive, and multiplied by it if not; only the kept tokens stay. ``first_seen`` is
    the first position at whose prediction a row contains the token, 0 for a token of its prompt; larger than any
    position for a token that it never has. In ``kept_bits`` bit i % 8 of byte i // 8 is set if token i was kept."""
    bias: Optional[Tensor] = None  # (V, )
    penalty: float = 1.0
    first_seen: Optional[Tensor] = None  # (B, V) int32
    kept_bits: Optional[Tensor] = None  # (B, S, W) uint8 with 8 W of at least V

    def of(self, counted: Tensor, temperature: float) -> 'CountedRules':
        """The rules of the N tokens of ``counted`` (B, S), for logits that are already divided by the temperature."""
        row, position = counted.nonzero(as_tuple=True)
        return CountedRules(
            None if self.bias is None else self.bias / temperature, self.penalty, self.first_seen, row, position,
            None if self.kept_bits is None else self.kept_bits[counted]
        )


class CountedRules(NamedTuple):
    """``TokenRules`` of N tokens, with the row and the position of each."""
    bias: Optional[Tensor]
    penalty: float
    first_seen: Optional[Tensor]
    row: Tensor
    position: Tensor
    kept_bits: Optional[Tensor]

    @property
    def same_for_all(self) -> bool:
        """Whether the rules are the same for all tokens."""
        return self.first_seen is None and self.kept_bits is None

    def apply_(self, logit: Tensor, tokens: slice, ids: Union[slice, Tensor]) -> Optional[Tensor]:
        """Change logits (n, K) in place, which are divided by the temperature and predict ``tokens`` of the N. ``ids``
        are the vocabulary entries: a range, or (n, K). Returns the derivative of the new logits with respect to the old
        ones; None if it is 1."""
        slope = None
        if self.bias is not None:
            logit.add_(self.bias[ids])
        if self.first_seen is not None:
            row, position = self.row[tokens], self.position[tokens].unsqueeze(1)
            of_range = isinstance(ids, slice)
            first = self.first_seen[:, ids].index_select(0, row) if of_range else self.first_seen[row[:, None], ids]
            factor = torch.where(logit < 0, logit.new_tensor(self.penalty), 1 / self.penalty)
            slope = torch.where(first <= position, factor, 1)  # (n, K)
            logit.mul_(slope)
        if self.kept_bits is not None:
            logit.masked_fill_(~unpack_bits(self.kept_bits[tokens], ids), float('-inf'))
        return slope


def unpack_bits(bits: Tensor, ids: slice) -> Tensor:
    """A range of bits as booleans, ``(*, W) -> (*, stop - start)``, see ``TokenRules.kept_bits``."""
    at = torch.arange(ids.start, ids.stop, device=bits.device)
    return (bits.index_select(-1, at // 8) >> (at % 8).to(torch.uint8)) & 1 != 0
