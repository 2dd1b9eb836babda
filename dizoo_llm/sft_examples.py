"""What the warm start trains on: right completions and dialogues as token ids."""
from typing import Dict, List, Optional

import torch
from torch.utils.data import Dataset

from .envs import Demonstrations, TokenEnv


class Examples(Dataset):
    """
    Overview:
        ``number`` demonstrations from problem ``first`` on. The labels mask the prompt, so that only the completion
        contributes to the loss.
    """

    def __init__(self, env: TokenEnv, first: int, number: int, answers: Optional[str] = None) -> None:
        self._of_problem = Demonstrations(env, answers, 'main_config.')
        self._first, self._number = first, number
        self._of_problem.check(first % len(self._of_problem))

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> Dict[str, List[int]]:
        return self._of_problem[(self._first + index) % len(self._of_problem)]


def collate(rows: List[Dict[str, List[int]]]) -> Dict[str, torch.Tensor]:
    """Pad rows on the right: ids and attention mask with 0, labels with -100."""
    longest = max(len(row['input_ids']) for row in rows)

    def padded(values: List[int], fill: int) -> List[int]:
        return values + [fill] * (longest - len(values))

    return dict(
        input_ids=torch.tensor([padded(row['input_ids'], 0) for row in rows]),
        attention_mask=torch.tensor([padded([1] * len(row['input_ids']), 0) for row in rows]),
        labels=torch.tensor([padded(row['labels'], -100) for row in rows]),
    )
