"""What the commands and pipelines do with a config before DI-engine compiles it."""
from ding_common import shipped_config

from .complete import complete
from .run import run
