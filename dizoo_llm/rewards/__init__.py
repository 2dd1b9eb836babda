from .answers import CHECKS, CHECKS_OF_MANY, EXTRACTORS, WRITTEN
from .tags import answer_reward, format_reward, is_formatted
