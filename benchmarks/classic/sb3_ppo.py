"""Stable-Baselines3's PPO with the settings of RL Baselines3 Zoo: ``python -m benchmarks.classic.sb3_ppo JOB.json``."""
from typing import Any, Dict

import gymnasium
import numpy
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.classic.peer import Record, run
from benchmarks.shared.starts import Starts

# hyperparams/ppo.yml of RL Baselines3 Zoo. "lin": falls to 0 over the run, for which the zoo has ``steps``.
SETTINGS: Dict[str, Dict[str, Any]] = {
    'CartPole-v1': dict(
        steps=100_000,
        envs=8,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate='lin_0.001',
        clip_range='lin_0.2',
    ),
    'LunarLander-v3': dict(
        steps=1_000_000,
        envs=16,
        n_steps=1024,
        batch_size=64,
        gae_lambda=0.98,
        gamma=0.999,
        n_epochs=4,
        ent_coef=0.01,
    ),
}


def linear(value: Any) -> Any:
    """A value of the zoo as Stable-Baselines3 takes it: a function of the share of the run that is left."""
    if not isinstance(value, str):
        return value
    first = float(value.removeprefix('lin_'))
    return lambda left: left * first


class Watch(BaseCallback):
    """Tells the record of collects and updates."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record, self._goes_on = record, True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 0:
            self._goes_on = self._record.updated(self.num_timesteps)

    def _on_step(self) -> bool:
        return self._goes_on

    def _on_training_end(self) -> None:
        if self._goes_on:
            self._record.updated(self.num_timesteps)

    def _on_rollout_end(self) -> None:
        self._record.collected()


def train(job: Dict[str, Any]) -> Record:
    settings = {name: linear(value) for name, value in SETTINGS[job['env_id']].items()}
    steps = settings.pop('steps')
    envs = make_vec_env(job['env_id'], settings.pop('envs'), seed=job['seed'])
    model = PPO('MlpPolicy', envs, seed=job['seed'], device='cpu', **settings)
    record = Record(job, Starts(job, lambda obs: model.predict(obs, deterministic=True)[0]))
    model.learn(max(steps, job['budget'] + 1), callback=Watch(record))
    return record


if __name__ == '__main__':
    run(
        train, {
            'stable-baselines3': stable_baselines3.__version__,
            'gymnasium': gymnasium.__version__,
            'numpy': numpy.__version__,
            'torch': torch.__version__.split('+')[0]
        }
    )
