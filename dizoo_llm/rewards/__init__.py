from .answers import CHECKS, EXTRACTORS, WRITTEN
from .tags import answer_reward, format_reward, is_formatted
