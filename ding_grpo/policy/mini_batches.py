"""What one step of the optimizer learns from."""
from typing import Any, Dict, Iterator, List, Optional

import torch

from .group import collate_groups, split_steps, take_steps


class MiniBatches:
    """
    Overview:
        The mini-batches of an update, of whole groups or of steps.
    Interfaces:
        ``epoch``
    """

    def __init__(
            self, groups: List[Dict[str, Any]], batch_size: int, batch_steps: Optional[int], generator: torch.Generator
    ) -> None:
        """
        Overview:
            Take the groups.
        Arguments:
            - groups (:obj:`List[Dict]`): As ``collate_groups`` takes them, with ``adv``.
            - batch_size (:obj:`int`): Groups in a mini-batch, if it is of whole groups.
            - batch_steps (:obj:`Optional[int]`): Steps in a mini-batch, if it is of steps.
            - generator (:obj:`torch.Generator`): Gives the order of each epoch.
        """
        self._groups, self._size, self._generator = groups, batch_size, generator
        self._steps = None
        if batch_steps is not None and groups:
            self._steps, self._size = split_steps(collate_groups(groups)), batch_steps

    def epoch(self) -> Iterator[Dict[str, Any]]:
        """
        Overview:
            All groups or steps once, in random order.
        Returns:
            - batches (:obj:`Iterator[Dict]`): From ``collate_groups``, or ``take_steps`` of ``split_steps``.
        """
        number = len(self._groups) if self._steps is None else len(self._steps['weight'])
        order = torch.randperm(number, generator=self._generator)
        for chosen in order.split(self._size) if number > 0 else ():
            if self._steps is None:
                yield collate_groups([self._groups[i] for i in chosen.tolist()])
            else:
                yield take_steps(self._steps, chosen)
