"""A GPU without a GPU, that counts what it does."""
from .device import SimulatedGPU
