"""What step models read of an environment's observations."""
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import torch
from ding.torch_utils import to_tensor
from torch import Tensor

from ding_grpo.data.batch import map_tensors
from ding_grpo.data.folding import collate

MASK = 'action_mask'  # key of a dict: 0 where a discrete action is not allowed


def as_tensors(obs: Any) -> Any:
    """An observation as tensors of float32; images in uint8 stay so, in a quarter of the memory."""
    if isinstance(obs, dict):
        return {name: as_tensors(o) for name, o in obs.items()}
    kept = getattr(obs, 'dtype', None) in (np.uint8, torch.uint8)
    return to_tensor(obs, dtype=torch.uint8 if kept else torch.float32)


def batch_of(observations: Sequence[Any], shape: Any) -> Any:
    """A batch of observations as tensors; ``shape`` is that of one, as ``policy.model`` has it."""
    first = observations[0]
    if isinstance(first, np.ndarray) and all(getattr(o, 'shape', None) == first.shape for o in observations):
        return as_tensors(np.stack(observations))  # one conversion for all of them
    return collate([single(as_tensors(o), shape) for o in observations])


def rows_of(batch: Any) -> List[Any]:
    """The observations of a batch."""
    return _divide(batch, lambda x: x.unbind(0))


def split(batch: Any, counts: List[int]) -> List[Any]:
    """Split a batch into parts with ``counts`` rows."""
    return _divide(batch, lambda x: x.split(counts))


def _divide(batch: Any, function: Callable[[Tensor], Sequence[Tensor]]) -> List[Any]:
    if isinstance(batch, Tensor):
        return list(function(batch))
    by_name = {name: _divide(part, function) for name, part in batch.items()}
    return [dict(zip(by_name, parts)) for parts in zip(*by_name.values())]


def single(obs: Any, shape: Any) -> Any:
    """One observation, which ``single_env_forward_wrapper`` of DI-engine hands on as a batch of one."""
    if isinstance(obs, dict):
        return {name: single(o, shape.get(name) if isinstance(shape, dict) else None) for name, o in obs.items()}
    is_batch = shape is not None and obs.dim() == np.size(shape) + 1 and len(obs) == 1
    return obs[0] if is_batch else obs


def inputs_of(obs: Any) -> Tuple[Any, Optional[Tensor]]:
    """What the model reads of a batch of observations, and the mask of actions (B, N), None without one. What is left
    of a dict without the mask goes to the model as it is, unless it is one entry."""
    mask = None
    if isinstance(obs, dict) and MASK in obs:
        mask, obs = obs[MASK], {name: o for name, o in obs.items() if name != MASK}
        if len(obs) == 1:
            obs, = obs.values()
    return map_tensors(lambda x: x.float() if getattr(x, 'dtype', None) is torch.uint8 else x, obs), mask
