"""A mini-batch in parts of so many tokens that memory is bounded, whatever the lengths."""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Set

import torch
from torch import Tensor

from ding_common import ConfigError

from .group import take_steps

_ROWS = ('action', 'logp_old', 'logp_ref', 'weight', 'adv', 'kept')


def split_rows(batch: Dict[str, Any], most: Optional[int], share: Optional[range] = None) -> List[Tensor]:
    """
    Overview:
        Divide the rows that count, in their order, so that each part reads at most so many tokens: those of its rows, \
        but the last of each, which is only predicted, and those of its prompts, each once. A row that is longer is a \
        part by itself.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``.
        - most (:obj:`Optional[int]`): Tokens of a part; None leaves the rows together.
        - share (:obj:`Optional[range]`): Of these rows only; None: of all.
    Returns:
        - rows (:obj:`List[torch.LongTensor]`): Their numbers, of each part one or more.
    """
    lengths = (batch['weight'] != 0).sum(1).tolist()
    chosen = [row for row in (range(len(lengths)) if share is None else share) if lengths[row] > 0]
    if most is None or 'prompts' not in batch:
        return [torch.tensor(chosen)] if chosen else []
    parts: List[List[int]] = []
    tokens = 0  # of the part that is being filled, and the prompts in it
    read: Set[int] = set()
    for row in chosen:
        length, prompt = lengths[row], batch['prompts'][row]
        cost = length - 1 + (0 if id(prompt) in read else len(prompt))
        if not parts or tokens + cost > most:
            parts.append([])
            read.clear()
            tokens, cost = 0, length - 1 + len(prompt)
        parts[-1].append(row)
        tokens += cost
        read.add(id(prompt))
    return [torch.tensor(part) for part in parts]


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
    for key in _ROWS:
        value = batch.get(key)
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
