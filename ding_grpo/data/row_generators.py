from typing import Dict, List, Optional, Tuple

import numpy as np

RowKey = Tuple[int, ...]  # collect, group, row; of a group that was started again, also the number of its restarts


class RowGenerators:
    """Random numbers of rows. Each row has one generator, seeded by (seed, collect, group, row), so that its numbers do
    not depend on other rows."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: Dict[int, Tuple[RowKey, np.random.Generator]] = {}

    def of(self, env_id: int, key: RowKey) -> np.random.Generator:
        """The generator of the row that an environment runs, by the row's key. All steps of the row use the same
        generator."""
        if env_id not in self._generators or self._generators[env_id][0] != key:
            self._generators[env_id] = (key, np.random.default_rng([self._seed, *key]))
        return self._generators[env_id][1]

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """Drop the generators of environments whose episode has ended; None for all."""
        for i in list(self._generators) if env_ids is None else env_ids:
            self._generators.pop(i, None)
