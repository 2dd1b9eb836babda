"""Episodes whose tokens are not one text: an agent may begin a conversation anew, or have several at once."""
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor

Episode = List[Dict[str, Any]]  # transitions, see ``fold_group``


def divide_trajectories(episodes: List[Episode]) -> Tuple[List[Episode], List[int]]:
    """The trajectories of episodes as episodes of their own, each with the whole reward of its episode on its last
    token, and the number of the episode of each. The first trajectories of all episodes come before all others."""
    found: List[Tuple[int, int, Episode]] = []
    for number, episode in enumerate(episodes):
        parts: Dict[int, Episode] = {}
        for step in episode:
            parts.setdefault(step['trajectory'], []).append(step)
        whole, end = sum(step['reward'].sum() for step in episode), episode[-1]
        for place, part in enumerate(parts.values()):
            found.append((place > 0, number, [_without_reward(step) for step in part]))
            last = found[-1][-1][-1]
            last['reward'][-1] = whole
            for name in ('reward_parts', 'truncated', 'failed', 'done', 'baseline'):
                if name in end:
                    last[name] = end[name]
    found.sort(key=lambda each: each[0])  # stable
    return [part for _, _, part in found], [number for _, number, _ in found]


def _without_reward(step: Dict[str, Any]) -> Dict[str, Any]:
    return dict(step, reward=torch.zeros_like(step['reward']))


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
