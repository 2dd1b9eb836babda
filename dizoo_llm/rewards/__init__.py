from .answers import CHECKS, EXTRACTORS
from .tags import answer_reward, format_reward
