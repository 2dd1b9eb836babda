from typing import Dict, Iterable, List, Optional, Tuple

import numpy as np

RowKey = Tuple[int, ...]  # collect, group, row; of a group that was started again, also the number of its restarts


class RowGenerators:
    """Random numbers of rows. Each row has one generator, seeded by (seed, collect, group, row), so that its numbers do
    not depend on other rows."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: Dict[int, Tuple[RowKey, np.random.Generator]] = {}

    def of(self, env_id: int, key: RowKey) -> np.random.Generator:
        """The generator of the row that an environment runs, the same for all its steps."""
        if env_id not in self._generators or self._generators[env_id][0] != key:
            self._generators[env_id] = (key, np.random.default_rng([self._seed, *key]))
        return self._generators[env_id][1]

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """Drop the generators of environments whose episode has ended; None for all."""
        for i in list(self._generators) if env_ids is None else env_ids:
            self._generators.pop(i, None)


class EpisodeKeys:
    """Keys of rows that no collector has numbered: the optimizer steps before the episode, and its number after the
    last of them. They have two numbers, so that they are the key of no collector's row."""

    def __init__(self) -> None:
        self._keys: Dict[int, RowKey] = {}  # of the running episodes, by environment
        self._steps, self._begun = 0, 0

    def of(self, env_ids: Iterable[int], optimizer_steps: int) -> Dict[int, RowKey]:
        """The keys of the episodes that these environments run."""
        if optimizer_steps != self._steps:
            self._steps, self._begun = optimizer_steps, 0
        for i in env_ids:
            if i not in self._keys:
                self._keys[i] = (optimizer_steps, self._begun)
                self._begun += 1
        return {i: self._keys[i] for i in env_ids}

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """See ``RowGenerators.forget``."""
        for i in list(self._keys) if env_ids is None else env_ids:
            self._keys.pop(i, None)
