from typing import Any, Tuple

import gymnasium


class PressFire(gymnasium.Wrapper):
    """Take the action FIRE at the start of a game, and after each lost life in the same step as the policy's action.
    Atari games such as Breakout begin a ball only then, and a greedy policy may never choose it. For
    ``env.gymnasium_wrappers``, around ``AtariPreprocessing``. ``max_episode_steps`` counts these actions. Where a game
    repeats the action before in place of FIRE, the policy has to choose it."""

    def __init__(self, env: gymnasium.Env) -> None:
        """
        Overview:
            Wrap a game.
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
        self._lives = self.unwrapped.ale.lives()
        obs, _, terminated, truncated, info = self.env.step(self._fire)
        if terminated or truncated:
            raise RuntimeError(
                f'the game ends with the first action FIRE (truncated={truncated}); raise max_episode_steps'
            )
        return obs, info

    def step(self, action: Any) -> Tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives, before = self.unwrapped.ale.lives(), self._lives
        self._lives = lives
        if lives < before and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(self._fire)
            reward += more
        return obs, reward, terminated, truncated, info
