"""Rewards of single tokens, such as those of a process reward model, which an environment adds to that of a row."""
from typing import Any, Dict

import torch


def with_token_rewards(transition: Dict[str, Any], info: Dict[str, Any]) -> Dict[str, Any]:
    """The transition with ``token_rewards`` of a step's info on their tokens, in place of their sum, which its reward
    contains; unchanged without them. What the reward has beside them stays on the last token."""
    if 'token_rewards' not in info:
        return transition
    own = torch.tensor(info['token_rewards'], dtype=torch.double)  # (S, )
    reward = own.clone()
    reward[-1] += transition['reward'].double().sum() - own.sum()
    return dict(transition, reward=reward.to(transition['reward'].dtype))
