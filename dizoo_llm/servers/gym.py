"""The program that scores answers by ``reasoning-gym``, see ``Servers``."""
import functools
import json
from typing import Any, Dict

from reasoning_gym import create_dataset


def score(name: str, seed: int, config: str, given: str, entry: Dict[str, Any]) -> float:
    try:
        return float(_dataset(name, seed, config).score_answer(given, entry))
    except Exception:  # as many raise for text that they cannot parse
        return 0.0


@functools.lru_cache(maxsize=64)
def _dataset(name: str, seed: int, config: str) -> Any:
    return create_dataset(name, seed=seed, size=1, **json.loads(config))
