"""Environments of gymnasium as DI-engine takes them."""
from .gymnasium_env import GymnasiumEnv
