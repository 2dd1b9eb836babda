"""Common beginnings of the rows that continue a prompt, such as the first digit, as branches of a packed row."""
from itertools import groupby
from typing import List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device

from .prompts import PromptTree

# Number of query-key pairs that take as long as reading one more token: of the smallest models, and of others in
# relation to the size of their hidden states.
TOKEN, OF_HIDDEN = 512, 5


class RowTree(NamedTuple):
    """
    The tokens that B rows add to their prompts. Tokens that begin several rows of a prompt are read once: rows that
    begin with the same token form a branch. Every other row is a branch of its own, and so is each row of a branch
    whose attention would take longer than what it saves. The tokens of a branch are in depth-first order:

        rows       a b c | a b d e | f g      (all of one prompt)
        branches   a b c d e | f g            (d follows b, and does not see c)
    """
    prompt: List[int]  # the prompt of each branch, ascending
    length: List[int]  # number of tokens of each branch
    seen: List[Optional[np.ndarray]]  # (n, n): which of its tokens each token of a branch sees; None: those before it
    ids: Tensor  # (N, ), the tokens of all branches, those of the first prompt first
    position: Tensor  # (N, ), their positions in the rows
    # (B, S), which of the N tokens is the last that is read before each token of a row: -1 for the first token, and the
    # row's last one that is read beyond it
    place: Tensor
    end: int  # 1 + the largest position

    @classmethod
    def of(cls, tree: PromptTree, completion: Tensor, given: Tensor, hidden: int) -> 'RowTree':
        """Find the branches of rows, ``completion`` (B, S), of which ``given`` (B, ) tokens are read, fewer than S.
        ``hidden`` is the size of the model's hidden states."""
        facts = torch.cat([tree.row.unsqueeze(1), given.unsqueeze(1), completion], dim=1).cpu().numpy()  # waits once
        row, tokens = facts[:, 0].tolist(), [x[2:2 + x[1]] for x in facts]
        of_prompts, step = tree.length, np.arange(completion.shape[1])
        place = np.full(completion.shape, -1)
        prompt, length, seen, ids, position, total = [], [], [], [], [], 0
        # by bytes, which are compared as fast as they are copied, and have the order of the numbers
        written = [(n, x.astype('>i8').tobytes()) for n, x in zip(row, tokens)]
        order = sorted((i for i in range(len(tokens)) if len(tokens[i])), key=written.__getitem__)
        for (number, _), members in groupby(order, key=lambda i: (row[i], tokens[i][0])):
            for branch, paths in _divided(list(members), tokens, hidden):
                size = 1 + paths[-1][-1]
                of_branch, at = np.empty((2, size), dtype=int)
                for i, path in zip(branch, paths):
                    of_branch[path], at[path] = tokens[i], step[:len(path)]
                    place[i, 1:1 + len(path)] = total + path
                    place[i, 1 + len(path):] = total + path[-1]
                prompt.append(number)
                length.append(int(size))
                seen.append(None if max(map(len, paths)) == size else _seen(paths, size))
                ids.append(of_branch)
                position.append(of_prompts[number] + at)
                total += size
        joined = [np.concatenate(x) if x else np.empty(0, dtype=int) for x in (ids, position)]
        tensors = (on_device(x, completion.device) for x in (*joined, place))
        return cls(prompt, length, seen, *tensors, 1 + int(joined[1].max(initial=-1)))


_Branch = Tuple[List[int], List[np.ndarray]]  # its rows, and their paths


def _divided(members: List[int], tokens: List[np.ndarray], hidden: int) -> List[_Branch]:
    """Sorted rows as one branch; as a branch each if that takes less time, because attention to a branch computes the
    pairs of tokens of which neither sees the other."""
    paths = _paths([tokens[i] for i in members])
    lengths, size = np.array([len(path) for path in paths]), 1 + paths[-1][-1]
    saved, pairs = lengths.sum() - size, size ** 2 - (lengths ** 2).sum() / 2
    if saved * max(TOKEN, OF_HIDDEN * hidden) >= pairs:
        return [(members, paths)]
    return [([i], [np.arange(n)]) for i, n in zip(members, lengths)]


def _paths(rows: List[np.ndarray]) -> List[np.ndarray]:
    """The places of the tokens of sorted rows in their branch."""
    paths, before, size = [], np.empty(0, dtype=int), 0
    for tokens in rows:
        n = min(len(before), len(tokens))
        differ = before[:n] != tokens[:n]
        common = int(differ.argmax()) if differ.any() else n
        new = np.arange(size, size + len(tokens) - common)
        paths.append(np.concatenate([paths[-1][:common], new]) if common else new)
        before, size = tokens, size + len(new)
    return paths


def _seen(paths: List[np.ndarray], size: int) -> np.ndarray:
    seen = np.zeros((size, size), dtype=bool)
    for path in paths:
        seen[np.ix_(path, path)] |= np.tri(len(path), dtype=bool)
    return seen
