from typing import List, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class KeptSets(NamedTuple):
    """The vocabulary entries that sampling kept at each position, in sets of any size. A set is stored in 32-bit words:
    its ids, or, if these would be more words, one bit for each entry of the vocabulary. So a set of K entries needs the
    smaller of 4 K and V / 8 bytes. A position without a set, where nothing was sampled, has width 0."""
    words: Tensor  # (M, ) int32, the sets of all positions, row by row
    width: Tensor  # (*, ), number of words of each position; V / 32, rounded up, for bits

    @classmethod
    def of(cls, kept: Tensor) -> 'KeptSets':
        """Store sets, from whether each entry is in each set, (N, V)."""
        most = _bit_words(kept.shape[-1])
        count = kept.sum(-1)
        width = count.clamp(max=most)
        row, ids = kept.nonzero(as_tuple=True)
        words = ids.to(torch.int32)
        if (count >= most).any():
            as_bits = count >= most
            words = torch.empty(int(width.sum()), dtype=torch.int32, device=kept.device)
            of_bits = as_bits.repeat_interleave(width)
            words[~of_bits] = ids[~as_bits[row]].to(torch.int32)
            words[of_bits] = _pack(kept[as_bits]).flatten()
        return cls(words, width)

    @classmethod
    def join(cls, steps: List['KeptSets'], rows: List[Tensor], number: int) -> List['KeptSets']:
        """Collect the sets of successive steps by row, on the CPU. ``rows`` are the rows of each step's sets,
        ``number`` the number of rows."""
        row, width = torch.cat(rows).cpu(), torch.cat([step.width for step in steps]).cpu()
        words = torch.cat([step.words for step in steps]).cpu()
        by_row = row.argsort(stable=True)
        words = words[row.repeat_interleave(width).argsort(stable=True)]
        number_of = torch.bincount(row, minlength=number).tolist()
        words_of = torch.zeros(number, dtype=torch.long).index_add(0, row, width).tolist()
        return [cls(*parts) for parts in zip(words.split(words_of), width[by_row].split(number_of))]

    def first(self, number: int) -> 'KeptSets':
        """The sets of the first positions of one row."""
        width = self.width[:number]
        return KeptSets(self.words[:int(width.sum())], width)

    def bits(self, vocabulary: int) -> Tensor:
        """One bit for each entry of the vocabulary, (*, 4 W) with W = V / 32, rounded up: bit i % 8 of byte i // 8 is
        set if entry i is in the set. All bits are set at positions of width 0."""
        most, width = _bit_words(vocabulary), self.width.flatten()
        bits = torch.zeros(len(width), 4 * most, dtype=torch.uint8, device=width.device)
        bits[width == 0] = 255
        as_bits = width == most
        of_bits = as_bits.repeat_interleave(width)
        bits[as_bits] = self.words[of_bits].view(torch.uint8).view(-1, 4 * most)
        ids = self.words[~of_bits].long()
        at = torch.arange(len(width), device=width.device).repeat_interleave(width)[~of_bits] * 4 * most + ids // 8
        flat = bits.view(-1)
        flat.index_add_(0, at, (1 << ids % 8).to(torch.uint8))  # ids of a set are distinct, so a sum is a union
        return bits.view(*self.width.shape, 4 * most)


def _bit_words(vocabulary: int) -> int:
    return -(-vocabulary // 32)


def _pack(kept: Tensor) -> Tensor:
    """Booleans (N, V) as bits in 32-bit words, (N, W)."""
    padded = F.pad(kept, (0, -kept.shape[-1] % 32)).unflatten(-1, (-1, 8))  # (N, 4 W, 8)
    powers = (1 << torch.arange(8, device=kept.device)).to(torch.uint8)
    return (padded * powers).sum(-1, dtype=torch.uint8).view(torch.int32)
