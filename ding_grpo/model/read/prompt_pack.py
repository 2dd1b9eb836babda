"""The prompts of a batch in the order in which sampling reads them."""
from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from .prompts import PromptTree
from .row_tree import RowTree
from .whole import Whole


class PromptPack(NamedTuple):
    """The tokens of a ``PromptTree``. What begins several prompts after their common beginning, such as the first
    number of a sum, is read once as well: they are rows that continue it, see ``RowTree``."""
    ids: Tensor  # (M, ), the tokens
    position: Tensor  # (M, ), their positions in the prompts
    last: Tensor  # (P, ), place of each prompt's last token
    place: Optional[Tensor]  # (N, ), place of each token of the tree; None if these are the same tokens in order
    whole: Whole

    @classmethod
    def of(cls, tree: PromptTree, hidden: int) -> 'PromptPack':
        """``hidden`` is the size of the model's hidden states."""
        if not tree.common:
            return cls(tree.ids, tree.position, tree.last, None, Whole(tree))
        begin, device = sum(tree.common), tree.ids.device
        number, length = (torch.tensor(x, device=device) for x in (tree.beginning, tree.remaining))
        common = PromptTree([], tree.common, [0] * len(tree.common), tree.ids[:begin], tree.position[:begin], number)
        rest = pad_sequence(tree.ids[begin:].split(tree.remaining), batch_first=True)  # (P, L)
        branches = RowTree.of(common, F.pad(rest, (0, 1)), length, hidden)
        inside = torch.arange(rest.shape[1], device=device) < length.unsqueeze(1)
        place = torch.cat([torch.arange(begin, device=device), begin + branches.place[:, 1:][inside]])
        return cls(
            torch.cat([common.ids, branches.ids]),
            torch.cat([common.position, branches.position]),
            place[tree.last],
            None if len(branches.ids) == len(tree.ids) - begin else place,
            Whole(common, branches),
        )

    def of_tree(self, x: Tensor) -> Tensor:
        """Keys or values of the tree's tokens (K, N, D), from those of the tokens read (K, M, D)."""
        return x if self.place is None else x[:, self.place]
