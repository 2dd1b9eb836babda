"""Greedy evaluations that are the same for every side. Imports gymnasium alone."""
import importlib
from typing import Any, Callable, Dict, Sequence

import gymnasium
import numpy as np

EPISODES = 100  # of an evaluation
# Seed of the first of their starts. Training has others: DI-engine's environments have seeds below 200,000, and the
# groups of GRPO above 2^30.
FIRST_START = 500_000_000


def made(env: Dict[str, Any]) -> gymnasium.Env:
    """The environment of a config: its ``env_id``, ``env_kwargs`` and ``gymnasium_wrappers``."""
    if env['env_id'].startswith('ALE/'):
        importlib.import_module('ale_py')  # registers it
    found = gymnasium.make(env['env_id'], **env.get('env_kwargs', {}))
    for wrapper in env.get('gymnasium_wrappers', []):
        wrapper = dict(type=wrapper) if isinstance(wrapper, str) else wrapper
        module, name = wrapper['type'].split(':')
        found = getattr(importlib.import_module(module), name)(found, **wrapper.get('kwargs', {}))
    return found


class Starts:
    """
    Overview:
        The mean return over one episode from each of some fixed starts.
    """

    def __init__(
            self, env: Dict[str, Any], act: Callable[[np.ndarray], Sequence[Any]], episodes: int = EPISODES
    ) -> None:
        """
        Arguments:
            - env (:obj:`Dict[str, Any]`): See ``made``.
            - act (:obj:`Callable`): Gives the greedy actions for observations (B, *) in float32.
            - episodes (:obj:`int`): How many starts.
        """
        self.envs = [made(env) for _ in range(episodes)]
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
        return total / len(self.envs)
