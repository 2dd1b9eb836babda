from typing import Any, Tuple

import gymnasium


class FireOnReset(gymnasium.Wrapper):
    """Take the action FIRE at every reset. Games of Atari such as Breakout begin with it, and a greedy policy may never
    choose it. For ``env.gymnasium_wrappers``, around ``AtariPreprocessing``; DI-engine's own is for gym alone."""

    def __init__(self, env: gymnasium.Env) -> None:
        """
        Overview:
            Find the action.
        Arguments:
            - env (:obj:`gymnasium.Env`): A game of ALE.
        Raises:
            - ValueError: If it has no action FIRE.
        """
        super().__init__(env)
        meanings = env.unwrapped.get_action_meanings()
        if 'FIRE' not in meanings:
            raise ValueError(f'the game has no action FIRE; its actions are {", ".join(meanings)}')
        self._fire = meanings.index('FIRE')

    def reset(self, **kwargs: Any) -> Tuple:
        self.env.reset(**kwargs)
        obs, _, terminated, truncated, info = self.env.step(self._fire)
        if terminated or truncated:
            raise RuntimeError(f'{self.spec.id}: the game ended with the action FIRE after its start')
        return obs, info
