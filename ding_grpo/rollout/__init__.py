from .generate import Rollout, generate
from .sampling import Sampling, draw
