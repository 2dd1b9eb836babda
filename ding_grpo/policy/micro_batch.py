"""A mini-batch in parts: of so many tokens that memory is bounded, and as many for each of several processes."""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError, parallel

from .group import take_steps

_ROWS = {'action', 'logp_old', 'logp_first', 'logp_ref', 'weight', 'adv', 'kept', 'sampled_after'}


def split_rows(batch: Dict[str, Any], most: Optional[int], share: Optional[Sequence[int]] = None) -> List[Tensor]:
    """
    Overview:
        Divide the rows that count, in their order, so that each part reads at most so many tokens: those of its rows, \
        but the last of each, which is only predicted, and those of its prompts, each once. A row that is longer is a \
        part by itself.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``.
        - most (:obj:`Optional[int]`): Tokens of a part; None leaves the rows together.
        - share (:obj:`Optional[Sequence[int]]`): Of these rows only; None: of all.
    Returns:
        - rows (:obj:`List[torch.LongTensor]`): Their numbers, of each part one or more.
    """
    costs = _costs(batch)
    if share is not None:
        costs = {row: costs[row] for row in share if row in costs}
    if most is None or 'prompts' not in batch:
        return [torch.tensor(list(costs))] if costs else []
    return [torch.tensor(part) for part in _fill(costs, most)]


def share_rows(batch: Dict[str, Any]) -> Sequence[int]:
    """
    Overview:
        The rows that count which this process reads: of several processes each has the whole batch, and reads a block \
        of it. Blocks are in the order of the processes, and of all such divisions this is one whose largest block has \
        the fewest tokens (steps, of other models). Each process finds the same by itself.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups`` or ``split_steps``.
    Returns:
        - rows (:obj:`Sequence[int]`): Their numbers, perhaps none.
    """
    processes = parallel.size()
    if processes == 1:
        return range(len(batch['weight']))
    costs = _costs(batch)
    if not costs:
        return []
    prompts = {group: prompt for _, group, prompt in costs.values()}
    even = (sum(length for length, _, _ in costs.values()) + sum(prompts.values())) // processes
    longest = max(length + prompt for length, _, prompt in costs.values())
    # The upper bound is enough: a full block has more than it without one row, and reads at most one prompt again.
    low, high = max(even, longest), even + longest + max(prompts.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_fill(costs, middle)) <= processes else (middle + 1, high)
    blocks = _fill(costs, high)
    return blocks[parallel.rank()] if parallel.rank() < len(blocks) else []


def _costs(batch: Dict[str, Any]) -> Dict[int, Tuple[int, int, int]]:
    """Of each row that counts: its tokens that are read, its prompt's number, and the tokens of that."""
    lengths = (batch['weight'] != 0).sum(1).tolist()
    if 'prompts' not in batch:
        return {row: (length, 0, 0) for row, length in enumerate(lengths) if length > 0}
    groups = batch['group'].tolist()
    return {
        row: (length - 1, groups[row], len(batch['prompts'][row]))
        for row, length in enumerate(lengths) if length > 0
    }


def _fill(costs: Dict[int, Tuple[int, int, int]], most: int) -> List[List[int]]:
    """Parts of so many tokens at most, prompts included, each as full as it goes; a longer row is a part by itself."""
    parts: List[List[int]] = []
    tokens, read = 0, set()  # of the part that is being filled, and the prompts in it
    for row, (length, prompt, prompt_length) in costs.items():
        cost = length + (0 if prompt in read else prompt_length)
        if not parts or tokens + cost > most:
            parts.append([])
            tokens, read, cost = 0, set(), length + prompt_length
        parts[-1].append(row)
        tokens += cost
        read.add(prompt)
    return parts


def take_rows(batch: Dict[str, Any], rows: Tensor) -> Dict[str, Any]:
    """
    Overview:
        What learning needs of some rows, no longer than the longest of them.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``.
        - rows (:obj:`torch.LongTensor`): Their numbers.
    """
    if len(rows) == len(batch['weight']):
        return batch
    longest = max(int((batch['weight'][rows] != 0).sum(1).max()), 1)
    part: Dict[str, Any] = {}
    if 'prompts' in batch:
        part['prompts'] = [batch['prompts'][row] for row in rows.tolist()]
    else:
        taken = torch.zeros(len(batch['weight']), dtype=torch.bool).index_fill(0, rows, True)
        steps = (batch['weight'] != 0).sum(1).cpu()
        part['obs'] = take_steps(batch['obs'], taken.repeat_interleave(steps).nonzero().squeeze(1))
    for key in batch.keys() & _ROWS:
        value = batch[key]
        part[key] = value if value is None else value[rows] if value.dim() == 1 else value[rows, :longest]
    return part


@contextmanager
def memory_advice(what: str, advice: str) -> Iterator[None]:
    """
    Overview:
        Where memory ends, tell what can be done.
    Arguments:
        - what (:obj:`str`): What was being done.
        - advice (:obj:`str`): What needs less.
    Raises:
        - ConfigError: In place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        # torch.OutOfMemoryError is a GPU's; on a processor it is a plain RuntimeError of the allocator
        if not isinstance(error, torch.OutOfMemoryError) and "you tried to allocate" not in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f'memory ended while {what} ({reason}). {advice}') from error
