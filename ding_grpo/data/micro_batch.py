"""Divides the rows of a mini-batch into parts that fit into memory, and among several processes."""
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ding_common import parallel


def split_rows(batch: 'Batch', most: Optional[int], share: Optional[Sequence[int]] = None) -> List[Tensor]:  # noqa
    """Divide the rows that have a weight, or those of ``share``, in their order, into parts of at most ``most`` tokens.
    A part reads each of its prompts once and the tokens of its rows, except the last token of a row, which is only
    predicted. A row with more tokens is a separate part. None: one part."""
    costs = _costs(batch)
    if share is not None:
        costs = {row: costs[row] for row in share if row in costs}
    return [torch.tensor(part) for part in _fill(costs, most)]


def share_rows(batch: 'Batch') -> Sequence[int]:  # noqa
    """The rows that this process reads. With several processes each has the whole batch and reads a block of it, in the
    order of the ranks. The division minimises the number of tokens (without prompts: of steps) in the largest block.
    Every process computes the same division. It is empty if there are fewer rows than processes."""
    if parallel.world_size() == 1:
        return range(len(batch))
    blocks = _blocks(_costs(batch), parallel.world_size())
    return blocks[parallel.rank()] if parallel.rank() < len(blocks) else []


def most_parts(batch: 'Batch', most: Optional[int]) -> int:  # noqa
    """The largest number of parts that a process has, of ``split_rows`` with its own ``share_rows``."""
    costs = _costs(batch)
    blocks = _blocks(costs, parallel.world_size())
    return max((len(_fill({row: costs[row] for row in block}, most)) for block in blocks), default=0)


def cheapest_row(batch: 'Batch') -> int:  # noqa
    """The index of a row that has a weight and the fewest tokens to read."""
    costs = _costs(batch)
    return min(costs, key=lambda row: costs[row][0] + costs[row][2])


def _blocks(costs: Dict[int, Tuple[int, int, int]], processes: int) -> List[List[int]]:
    """The rows of each process, see ``share_rows``; fewer blocks than processes if there are few rows."""
    if not costs:
        return []
    prompts = {group: prompt for _, group, prompt in costs.values()}
    even = (sum(length for length, _, _ in costs.values()) + sum(prompts.values())) // processes
    longest = max(length + prompt for length, _, prompt in costs.values())
    # The upper bound suffices: a full block has more than the bound minus one row, and reads at most one prompt again.
    low, high = max(even, longest), even + longest + max(prompts.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(costs, middle)) <= processes else (middle + 1, high)
    return _fill(costs, high)


def _costs(batch: 'Batch') -> Dict[int, Tuple[int, int, int]]:  # noqa
    """For each row that has a weight: number of tokens to read, index of its prompt, number of the prompt's tokens."""
    counts = (batch.weight != 0).any(1)
    facts = enumerate(torch.stack([counts, batch.length, batch.group]).T.tolist())  # waits for a GPU once
    if batch.prompts is None:
        return {row: (length, 0, 0) for row, (counted, length, _) in facts if counted}
    number: Dict[Tuple, int] = {}  # of a prompt, which several rows of a group have
    return {
        row: (length - 1, number.setdefault((group, id(prompt)), len(number)), len(prompt))
        for (row, (counted, length, group)), prompt in zip(facts, batch.prompts) if counted
    }


def _fill(costs: Dict[int, Tuple[int, int, int]], most: Optional[int]) -> List[List[int]]:
    """Parts of at most ``most`` tokens, see ``split_rows``, each filled before the next one starts."""
    parts: List[List[int]] = []
    tokens, read = 0, set()  # number of tokens of the current part, and its prompts
    for row, (length, prompt, prompt_length) in costs.items():
        cost = length + (0 if prompt in read else prompt_length)
        if not parts or most is not None and tokens + cost > most:
            parts.append([])
            tokens, read, cost = 0, set(), length + prompt_length
        parts[-1].append(row)
        tokens += cost
        read.add(prompt)
    return parts
