from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value with arrays and scalars of NumPy as lists and numbers, because no safe loader accepts the former."""
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
