"""A run as one Python object."""
from .agent import GRPO

GRPOAgent = GRPO  # a name as those of ``ding.bonus``
