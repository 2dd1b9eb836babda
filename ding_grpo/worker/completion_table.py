import os
from typing import Any, Dict, List

from tabulate import tabulate

from .screen import shorten


class CompletionTable:
    """
    Overview:
        A small table of sampled completions: of each group its best and its worst, until the rows are used up.
    """

    def __init__(self, path: str, rows: int) -> None:
        """
        Overview:
            Remember where to write.
        Arguments:
            - path (:obj:`str`): Text file that the tables are appended to.
            - rows (:obj:`int`): Most rows of a table.
        """
        self._path = path
        self._rows = rows

    def write(self, train_iter: int, infos: List[List[Dict[str, Any]]], samples: List[Dict[str, Any]]) -> str:
        """
        Overview:
            Append a table to the file.
        Arguments:
            - train_iter (:obj:`int`): Updates so far.
            - infos (:obj:`List[List[Dict]]`): Per group and row the last step's info of a token environment.
            - samples (:obj:`List[Dict]`): Per group its sample.
        Returns:
            - text (:obj:`str`): The table.
        """
        lines = []
        for group, sample in zip(infos, samples):
            reward = sample['reward'].sum(1)  # (G, )
            for row in dict.fromkeys([int(reward.argmax()), int(reward.argmin())]):
                info = group[row]
                parts = ' '.join(f'{name} {value:.2f}' for name, value in info['reward_parts'].items())
                end = 'cut' if info['truncated'] else ''
                lines.append(
                    [shorten(info['prompt'], 34),
                     shorten(info['completion'], 44), end, f'{reward[row]:.2f}', parts]
                )
        header = ['prompt', 'completion', '', 'reward', 'parts']
        text = f'completions at update {train_iter}\n' + tabulate(lines[:self._rows], header, disable_numparse=True)
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(self._path, 'a', encoding='utf-8') as f:
            f.write(text + '\n\n')
        return text
