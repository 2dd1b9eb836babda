"""Rewards of single tokens, such as those of a process reward model, which an environment adds to that of a row."""
from typing import Any, Dict, Optional, Sequence

import torch


def with_token_rewards(transition: Dict[str, Any], rewards: Optional[Sequence[float]]) -> Dict[str, Any]:
    """The transition with ``rewards`` on their tokens, in place of their sum, which its reward contains; unchanged for
    None. What the reward has beside them stays on the last token."""
    if rewards is None:
        return transition
    own = torch.tensor(rewards, dtype=torch.double)  # (S, )
    reward = own.clone()
    reward[-1] += transition['reward'].double().sum() - own.sum()
    return dict(transition, reward=reward.to(transition['reward'].dtype))
