"""Gymnasium environments for DI-engine."""
from .gymnasium_env import GymnasiumEnv
from .vector_manager import VectorManager
