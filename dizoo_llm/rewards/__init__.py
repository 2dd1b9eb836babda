from .tags import answer_reward, format_reward
