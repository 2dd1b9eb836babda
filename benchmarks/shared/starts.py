"""Greedy evaluations that are the same for every side. Imports gymnasium alone."""
from typing import Any, Callable, Sequence

import gymnasium
import numpy as np

EPISODES = 100  # of an evaluation
# Seed of the first of their starts. Training has others: DI-engine's environments have seeds below 200,000, and the
# groups of GRPO above 2^30.
FIRST_START = 500_000_000


class Starts:
    """
    Overview:
        The mean return over one episode from each of ``EPISODES`` fixed starts.
    """

    def __init__(self, env_id: str, act: Callable[[np.ndarray], Sequence[Any]]) -> None:
        """
        Arguments:
            - env_id (:obj:`str`): A gymnasium environment.
            - act (:obj:`Callable`): Gives the greedy actions for observations (B, *) in float32.
        """
        self.envs = [gymnasium.make(env_id) for _ in range(EPISODES)]
        self._act = act

    def __call__(self) -> float:
        obs = {i: env.reset(seed=FIRST_START + i)[0] for i, env in enumerate(self.envs)}
        total = 0.0
        while obs:
            for i, action in zip(list(obs), self._act(np.stack([*obs.values()]).astype(np.float32))):
                obs[i], reward, terminated, truncated, _ = self.envs[i].step(action)
                total += float(reward)
                if terminated or truncated:
                    del obs[i]
        return total / EPISODES
