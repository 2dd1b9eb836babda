"""Videos of episodes of gymnasium."""
from typing import Any, Tuple

import gymnasium
from gymnasium.wrappers import RecordVideo


class Video(RecordVideo):
    """A video of each episode, ``seed_{SEED}-episode-{NUMBER}.mp4``, so that environments may share a folder. An
    episode that is reset before its first step, as a manager does, has none."""

    def __init__(self, env: gymnasium.Env, folder: str) -> None:
        super().__init__(env, folder, episode_trigger=lambda number: True)

    def reset(self, **kwargs: Any) -> Tuple[Any, dict]:
        seed = kwargs.get('seed')
        if seed is not None:
            self.name_prefix, self.episode_id = f'seed_{seed}', -1
        return super().reset(**kwargs)

    def stop_recording(self) -> None:
        if len(self.recorded_frames) > 1:
            super().stop_recording()
        self.recorded_frames, self.recording = [], False
