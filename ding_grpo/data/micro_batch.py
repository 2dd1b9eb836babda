"""Divides the rows of a mini-batch into parts that fit into memory, and among several processes."""
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from ding_common import parallel

# Tokens of a part by 'auto'. On processors larger parts took longer: their activations do not fit into a cache.
AT_ONCE, AT_ONCE_ON_GPU = 2 ** 12, 2 ** 13
AGAIN = 1.1  # by how much 'auto' lets parts raise the number of tokens that are read


class _Cost(NamedTuple):
    """The tokens that a row lets a part read."""
    tokens: int  # without the prompt
    prompt: int  # its number, the same for the rows that have it
    of_prompt: int
    further: int  # of the prompt, after its common beginning with the prompt before


def tokens_at_once(batch: 'Batch', most: Union[int, str, None]) -> Optional[int]:  # noqa
    """The number of tokens of a part, ``most``, or by 'auto' ``AT_ONCE``, doubled as long as parts read more than
    ``AGAIN`` times the tokens of the whole, since each reads its prompts and their common beginning again. Steps of
    other models are not divided by 'auto'."""
    if most != 'auto':
        return most
    if batch.prompts is None:
        return None
    costs = _costs(batch)
    most, whole = AT_ONCE_ON_GPU if batch.weight.is_cuda else AT_ONCE, _tokens(costs, list(costs))
    while most < whole and sum(_tokens(costs, rows) for rows in _fill(costs, most, True)) > AGAIN * whole:
        most *= 2
    return most


def split_rows(batch: 'Batch', most: Optional[int], share: Optional[Sequence[int]] = None) -> List[Tensor]:  # noqa
    """Divide the rows that have a weight, or those of ``share``, in their order, into parts of at most ``most`` tokens.
    A part reads each of its prompts once, of a prompt after the first only what follows its common beginning with the
    one before, and the tokens of its rows, except the last token of a row, which is only predicted. The rows of a
    prompt are divided only if they do not fit into a part, and a row with more tokens is a separate part. None: one
    part."""
    costs = _costs(batch)
    if share is not None:
        costs = {row: costs[row] for row in share if row in costs}
    return [torch.tensor(part) for part in _fill(costs, most, True)]


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
    return max((len(_fill({row: costs[row] for row in block}, most, True)) for block in blocks), default=0)


def cheapest_row(batch: 'Batch') -> int:  # noqa
    """The index of a row that has a weight and the fewest tokens to read."""
    costs = _costs(batch)
    return min(costs, key=lambda row: costs[row].tokens + costs[row].of_prompt)


def _blocks(costs: Dict[int, _Cost], processes: int) -> List[List[int]]:
    """The rows of each process, see ``share_rows``; fewer blocks than processes if there are few rows."""
    if not costs:
        return []
    even, longest = _tokens(costs, list(costs)) // processes, max(
        cost.tokens + cost.of_prompt for cost in costs.values()
    )
    # The upper bound suffices: a full block has more than the bound minus one row, and reads at most one prompt again.
    low, high = max(even, longest), even + longest + max(cost.of_prompt for cost in costs.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(costs, middle)) <= processes else (middle + 1, high)
    return _fill(costs, high)


def _costs(batch: 'Batch') -> Dict[int, _Cost]:  # noqa
    """The cost of each row that has a weight."""
    counts = (batch.weight != 0).any(1)
    facts = enumerate(torch.stack([counts, batch.length, batch.group]).T.tolist())  # waits for a GPU once
    if batch.prompts is None:
        return {row: _Cost(length, 0, 0, 0) for row, (counted, length, _) in facts if counted}
    of_prompts: Dict[Tuple, Tuple[int, int, int]] = {}
    costs, before = {}, ()
    for (row, (counted, length, group)), prompt in zip(facts, batch.prompts):
        if not counted:
            continue
        if (group, id(prompt)) not in of_prompts:  # which several rows of a group have
            ids = prompt.numpy()
            of_prompts[group, id(prompt)] = len(of_prompts), len(ids), len(ids) - _common(before, ids)
            before = ids
        costs[row] = _Cost(length - 1, *of_prompts[group, id(prompt)])
    return costs


def _common(a: Sequence[int], b: np.ndarray) -> int:
    """The number of tokens with which both begin."""
    n = min(len(a), len(b))
    differ = np.nonzero(a[:n] != b[:n])[0] if n else ()
    return int(differ[0]) if len(differ) else n


def _tokens(costs: Dict[int, _Cost], rows: Sequence[int]) -> int:
    """What a part of these rows reads."""
    total, read = 0, set()
    for row in rows:
        total += _added(costs[row], read)
        read.add(costs[row].prompt)
    return total


def _added(cost: _Cost, read: Set[int]) -> int:
    """What a row adds to a part that reads these prompts."""
    return cost.tokens + (0 if cost.prompt in read else cost.further if read else cost.of_prompt)


def _fill(costs: Dict[int, _Cost], most: Optional[int], whole_groups: bool = False) -> List[List[int]]:
    """Parts of at most ``most`` tokens, each filled before the next one starts. ``whole_groups`` as in
    ``split_rows``."""
    of_group: Dict[int, int] = {}  # tokens of all rows of a prompt
    for cost in costs.values() if whole_groups else ():
        of_group[cost.prompt] = of_group.get(cost.prompt, 0) + cost.tokens
    parts: List[List[int]] = []
    tokens, read = 0, set()  # number of tokens of the current part, and its prompts
    for row, cost in costs.items():
        needed = _added(cost, read)
        if whole_groups and most is not None and cost.prompt not in read:
            of_rows = of_group[cost.prompt]
            if cost.of_prompt + of_rows <= most:
                needed += of_rows - cost.tokens
        if not parts or most is not None and tokens + needed > most:
            parts.append([])
            tokens, read = 0, set()
        tokens += _added(cost, read)
        parts[-1].append(row)
        read.add(cost.prompt)
    return parts
