"""Gymnasium environments for DI-engine."""
from .gymnasium_env import GymnasiumEnv
from .press_fire import PressFire
from .quick_reset import QuickReset
from .vector_manager import VectorManager
