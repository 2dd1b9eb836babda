"""Episodes whose tokens are not one text: an agent may begin a conversation anew, or have several at once."""
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor

Episode = List[Dict[str, Any]]  # transitions, see ``fold_group``


def divide_trajectories(episodes: List[Episode]) -> Tuple[List[Episode], List[int]]:
    """The trajectories of episodes as episodes of their own, and the number of the episode of each. A step gets all
    rewards of its episode from it up to the next step of its trajectory, so that the return from it on is that of the
    episode. The first trajectories of all episodes come before all others."""
    found: List[Tuple[int, int, Episode]] = []
    for number, episode in enumerate(episodes):
        parts: Dict[int, Episode] = {}
        rewards = episode[-1].get('rewards') or [step['reward'].sum() for step in episode]
        for step, reward in zip(episode, rewards):
            parts.setdefault(step['trajectory'], []).append(dict(step, reward=torch.zeros_like(step['reward'])))
            for part in parts.values():
                part[-1]['reward'][-1] += reward
        for place, part in enumerate(parts.values()):
            found.append((place > 0, number, part))
            for name in ('reward_parts', 'truncated', 'failed', 'done', 'baseline'):
                if name in episode[-1]:
                    part[-1][name] = episode[-1][name]
    found.sort(key=lambda each: each[0])  # stable
    return [part for _, _, part in found], [number for _, number, _ in found]


def first_rows(group: Tensor, episode: Tensor) -> Tuple[Tensor, Tensor]:
    """The row that stands for each episode, its first (N, ), in the order of the rows; and for each row the place of
    its episode among them, (B, )."""
    places: Dict[Tuple[int, int], int] = {}
    first, of_row = [], []
    for row, key in enumerate(zip(group.tolist(), episode.tolist())):
        if key not in places:
            places[key] = len(first)
            first.append(row)
        of_row.append(places[key])
    return torch.tensor(first, dtype=torch.long), torch.tensor(of_row, dtype=torch.long)
