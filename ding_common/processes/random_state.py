"""The state of all random generators of a process."""
import random
from contextlib import contextmanager
from typing import Any, Dict, Iterator

import numpy as np
import torch


def random_state(cuda: bool) -> Dict[str, Any]:
    """Of Python, NumPy, torch and, with ``cuda``, the GPU in use: reading that of another one allocates memory."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = dict(
        python=random.getstate(),
        numpy=(kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(gauss)),
        torch=torch.get_rng_state(),
    )
    if cuda:
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Dict[str, Any]) -> None:
    random.setstate(state['python'])
    kind, keys, *rest = state['numpy']
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state['torch'])
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'])


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the state of all generators on exit."""
    state = random_state(torch.cuda.is_initialized())
    try:
        yield
    finally:
        set_random_state(state)
