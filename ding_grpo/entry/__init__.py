"""What the commands and pipelines do with a config before DI-engine compiles it."""
from .complete import complete
from .run import run
