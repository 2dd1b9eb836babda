"""Gymnasium environments for DI-engine."""
from .gymnasium_env import GymnasiumEnv
