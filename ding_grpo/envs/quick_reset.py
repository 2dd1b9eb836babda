from typing import Any, Optional, Tuple

import gymnasium


class QuickReset(gymnasium.Wrapper):
    """Reset an Atari game with a seed without loading the game, which takes ale-py 0.1 s each time. The games are the
    same; only ``frame_number`` in the infos counts on. For ``env.gymnasium_wrappers``, before all others."""

    def __init__(self, env: gymnasium.Env) -> None:
        """
        Overview:
            Wrap a game.
        Arguments:
            - env (:obj:`gymnasium.Env`): A game of ALE, made with ``repeat_action_probability=0``. Others draw from \
                random numbers that are seeded by loading alone.
        Raises:
            - ValueError: If it repeats actions.
        """
        super().__init__(env)
        found = env.unwrapped.ale.getFloat('repeat_action_probability')
        if found != 0:
            raise ValueError(
                f'the game repeats actions with probability {found:g}, and only loading it seeds these; set '
                'env_kwargs.repeat_action_probability = 0, and use gymnasium.wrappers:StickyAction to repeat actions'
            )

    def reset(self, *, seed: Optional[int] = None, **kwargs: Any) -> Tuple:
        if seed is None:
            return self.env.reset(**kwargs)
        seeds = self.unwrapped.seed_game(seed)
        obs, info = self.env.reset(**kwargs)
        return obs, dict(info, seeds=seeds)
