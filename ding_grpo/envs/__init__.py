"""Gymnasium environments for DI-engine."""
from .fire_on_reset import FireOnReset
from .gymnasium_env import GymnasiumEnv
from .vector_manager import VectorManager
