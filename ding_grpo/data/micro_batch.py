"""Divides the rows of a mini-batch into parts that fit into memory, and among several processes."""
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

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


def tokens_at_once(batch: 'Batch', most: Union[int, str, None]) -> Optional[int]:  # noqa
    """The largest number of tokens of a part, None for one part: ``most``, or with 'auto' ``AT_ONCE``, doubled as long
    as the parts read more than ``AGAIN`` times the tokens of the whole. Each part reads its prompts again, and what
    begins several of them. 'auto' does not divide the batches of other models."""
    return most if most != 'auto' else _automatic(batch, _costs(batch))


def _automatic(batch: 'Batch', costs: Dict[int, _Cost]) -> Optional[int]:  # noqa
    most = AT_ONCE_ON_GPU if batch.weight.is_cuda else AT_ONCE
    if batch.prompts is None or len(_fill(costs, most, True)) < 2:
        return None
    row_of = {cost.prompt: row for row, cost in costs.items()}
    prompts = _Prompts({number: batch.prompts[row].tolist() for number, row in row_of.items()})
    whole = prompts.tokens(costs.values())
    while parts := _fill(costs, most, True):
        if sum(prompts.tokens([costs[row] for row in rows]) for rows in parts) <= AGAIN * whole:
            return most
        most *= 2


class _Prompts:
    """Counts the tokens of prompts, what begins several of them once."""

    def __init__(self, ids: Dict[int, List[int]]) -> None:
        order = sorted(ids, key=ids.__getitem__)
        self._rank = {number: i for i, number in enumerate(order)}
        arrays = [np.array(ids[number]) for number in order]
        self._common = np.array([_common(a, b) for a, b in zip(arrays, arrays[1:])])

    def tokens(self, costs: Iterable[_Cost]) -> int:
        """What rows with these costs read together."""
        of_prompts = {self._rank[cost.prompt]: cost.of_prompt for cost in costs}
        ranks = sorted(of_prompts)
        common = sum(int(self._common[a:b].min()) for a, b in zip(ranks, ranks[1:]))
        return sum(cost.tokens for cost in costs) + sum(of_prompts.values()) - common


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """The number of tokens with which both begin."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def split_rows(
        batch: 'Batch',  # noqa
        most: Union[int, str, None],
        share: Optional[Sequence[int]] = None
) -> List[Tensor]:
    """Divide the rows that have a weight, or those of ``share``, in their order, into parts of at most ``most`` tokens,
    see ``tokens_at_once``. A part reads each of its prompts once and the tokens of its rows, except the last token of a
    row, which is only predicted. Rows of a prompt that follow one another stay together if they fit into a part. A row
    with more tokens is a separate part."""
    costs = _costs(batch)
    most = _automatic(batch, costs) if most == 'auto' else most
    if share is not None:
        costs = {row: costs[row] for row in share if row in costs}
    return [torch.tensor(part) for part in _fill(costs, most, True)]


def share_rows(batch: 'Batch') -> Sequence[int]:  # noqa
    """The rows that this process reads. With several processes each has the whole batch and reads a block of it, in the
    order of the ranks. The largest block has few tokens (without prompts: steps), and the fewest that are possible
    where the rows of a prompt follow one another. Every process computes the same division. It is empty if there are
    fewer rows than processes."""
    if parallel.world_size() == 1:
        return range(len(batch))
    blocks = _blocks(_costs(batch), parallel.world_size())
    return blocks[parallel.rank()] if parallel.rank() < len(blocks) else []


def most_parts(batch: 'Batch', most: Union[int, str, None]) -> int:  # noqa
    """The largest number of parts that a process has, of ``split_rows`` with its own ``share_rows``."""
    costs = _costs(batch)
    most = _automatic(batch, costs) if most == 'auto' else most
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
    longest = max(cost.tokens + cost.of_prompt for cost in costs.values())
    low = high = max(_tokens(costs.values()) // processes, longest)
    while len(_fill(costs, high)) > processes:  # at the latest one block has all
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(costs, middle)) <= processes else (middle + 1, high)
    return _fill(costs, high)


def _tokens(costs: Iterable[_Cost]) -> int:
    """What rows with these costs read, each prompt once."""
    return sum(cost.tokens for cost in costs) + sum({cost.prompt: cost.of_prompt for cost in costs}.values())


def _costs(batch: 'Batch') -> Dict[int, _Cost]:  # noqa
    """The cost of each row that has a weight."""
    counts = (batch.weight != 0).any(1)
    facts = enumerate(torch.stack([counts, batch.length, batch.group]).T.tolist())  # waits for a GPU once
    if batch.prompts is None:
        return {row: _Cost(length, 0, 0) for row, (counted, length, _) in facts if counted}
    number: Dict[Tuple, int] = {}  # of a prompt, which several rows of a group have
    return {
        row: _Cost(length - 1, number.setdefault((group, id(prompt)), len(number)), len(prompt))
        for (row, (counted, length, group)), prompt in zip(facts, batch.prompts) if counted
    }


def _fill(costs: Dict[int, _Cost], most: Optional[int], together: bool = False) -> List[List[int]]:
    """Parts of at most ``most`` tokens, each filled before the next one starts. ``together``: rows of a prompt that
    follow one another stay together if they fit into a part."""
    of_rows: Dict[int, int] = {}  # tokens of all rows of a prompt
    for cost in costs.values():
        of_rows[cost.prompt] = of_rows.get(cost.prompt, 0) + cost.tokens
    parts: List[List[int]] = []
    tokens, read = 0, set()  # number of tokens of the current part, and its prompts
    for row, cost in costs.items():
        added = cost.tokens + (0 if cost.prompt in read else cost.of_prompt)
        needed, of_all = added, cost.of_prompt + of_rows[cost.prompt]
        if together and most is not None and cost.prompt not in read and of_all <= most:
            needed = of_all
        if not parts or most is not None and tokens + needed > most:
            parts.append([])
            tokens, read, added = 0, set(), cost.tokens + cost.of_prompt
        parts[-1].append(row)
        tokens += added
        read.add(cost.prompt)
    return parts
