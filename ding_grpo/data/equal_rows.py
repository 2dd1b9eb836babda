"""Equal rows are read once. Short completions of a group are often equal, above all of a policy that has learned."""
from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .batch import Batch


def merge_equal_rows(batch: Batch) -> Tuple[Batch, Optional[Tensor]]:
    """Keep one of the rows that have the same prompt, context, tokens, turns and kept tokens. A language model computes
    the same for all of them. Returns the different rows, in the order of the batch, and the index among them of each
    row, (B, ); the batch itself and None if all differ. ``spread`` gives each row what was computed for it; gradients
    of equal rows are summed."""
    keys = _keys(batch)
    first: Dict[Tuple, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    if len(first) == len(batch):
        return batch, None
    number = {key: i for i, key in enumerate(first)}
    kind = torch.tensor([number[key] for key in keys], device=batch.action.device)
    return batch.take(torch.tensor(list(first.values()))), kind


def spread(found: Optional[Tensor], kind: Tensor, steps: int) -> Optional[Tensor]:
    """What was computed for different rows, (D, s), for each row, padded to ``steps`` columns; None for None."""
    if found is None:
        return None
    return torch.nn.functional.pad(found[kind], (0, steps - found.shape[1]))


def _keys(batch: Batch) -> List[Tuple]:
    """For each row what a model reads of it."""
    step = torch.arange(batch.action.shape[1], device=batch.action.device)
    counted = step < batch.length.unsqueeze(1)  # (B, S)
    parts = [batch.length.unsqueeze(1), batch.action * counted, batch.turn * counted, (batch.weight != 0) * counted]
    if batch.kept is not None:
        parts.append((batch.kept * counted.unsqueeze(-1)).flatten(1))
    if batch.kept_width is not None:
        parts.append(batch.kept_width * counted)
    tokens = [row.tobytes() for row in torch.cat([part.long() for part in parts], dim=1).cpu().numpy()]
    words = [b''] * len(batch)
    if batch.kept_words is not None:
        sets = batch.kept_words.cpu().split(batch.kept_width.sum(1).tolist())
        words = [row.numpy().tobytes() for row in sets]
    contexts = [b'' if c is None else c.numpy().tobytes() for c in batch.context or [None] * len(batch)]
    return [(p.numpy().tobytes(), *own) for p, *own in zip(batch.prompts, tokens, words, contexts)]
