from typing import Any, Optional, Tuple

import gymnasium


class QuickReset(gymnasium.Wrapper):
    """Reset an Atari game with a seed without loading it again, which takes ale-py most of the time of a reset. For
    ``env.gymnasium_wrappers``, before all others. The start depends on the seed alone. Where a start depends on how a
    game was loaded (Assault, not Breakout or Pong), all starts are of one loading, and vary less than in ale-py."""

    def __init__(self, env: gymnasium.Env) -> None:
        """
        Overview:
            Wrap a game.
        Arguments:
            - env (:obj:`gymnasium.Env`): A game of ale-py, made with ``repeat_action_probability=0``: ALE seeds the \
                repetitions only when it loads a game.
        Raises:
            - ValueError: If the environment is no game of ale-py, if its ``repeat_action_probability`` is above 0, or \
                if it has ``sound_obs``.
        """
        super().__init__(env)
        game = env.unwrapped
        if not hasattr(game, 'ale'):
            raise ValueError(f'QuickReset is for games of ale-py, and not for {game!r}')
        found = game.ale.getFloat('repeat_action_probability')
        if found != 0:
            raise ValueError(
                f'repeat_action_probability = {found:g}: must be 0 with QuickReset, because ALE seeds the repetitions '
                'only when it loads the game. Set it to 0 in env.env_kwargs, and use gymnasium.wrappers:StickyAction.'
            )
        if game.sound_obs:
            raise ValueError('sound_obs = True: must be False with QuickReset, because a reset does not repeat sound.')
        game.seed_game(0)
        game.load_game()
        self._loaded = game.clone_state(include_rng=True)
        game.seed_game()  # for a first reset without a seed

    def reset(self, *, seed: Optional[int] = None, **kwargs: Any) -> Tuple:
        if seed is None:
            return self.env.reset(**kwargs)
        seeds = self.unwrapped.seed_game(seed)
        self.unwrapped.restore_state(self._loaded)
        obs, info = self.env.reset(**kwargs)
        return obs, dict(info, seeds=seeds)
