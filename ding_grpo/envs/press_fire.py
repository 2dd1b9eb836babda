from typing import Any, Tuple

import gymnasium


class PressFire(gymnasium.Wrapper):
    """Take the action FIRE at the start of a game and after each lost life, beside the steps of the policy. Games of
    Atari such as Breakout go on only then, and a greedy policy may never choose it. For ``env.gymnasium_wrappers``,
    around ``AtariPreprocessing``; DI-engine's own is for gym, and for starts alone."""

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
        obs, _, _, _, info = self.env.step(self._fire)
        self._lives = self.unwrapped.ale.lives()
        return obs, info

    def step(self, action: Any) -> Tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self.unwrapped.ale.lives()
        if lives < self._lives and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(self._fire)
            reward += more
        self._lives = lives
        return obs, reward, terminated, truncated, info
