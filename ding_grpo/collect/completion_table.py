import os
from typing import Any, Dict, List, Optional

from tabulate import tabulate
from torch import Tensor

from ding_common import append_json, printable
from ding_grpo.logs.screen import shorten


class CompletionTable:
    """Writes sampled completions, or dialogues of several turns, for a human reader. The best and the worst of each
    group go into a small table and a file of JSON lines. Completions that could not be scored go into the same file.
    Of an episode of several texts the first row is written, whose info has all of them."""

    def __init__(self, path: str, rows: int) -> None:
        """Tables of at most ``rows`` rows are appended to PATH.txt, completions to PATH.jsonl."""
        self._path = path
        self._rows = rows

    def write(
            self, train_iter: int, infos: List[List[Dict[str, Any]]], samples: List[Dict[str, Any]],
            advantages: List[Tensor]
    ) -> str:
        """Append a table to the text file, and the untruncated best and worst completion of every group to the file of
        JSON lines. For each group, ``infos`` has the info of the last step of each row, ``advantages`` those of its
        rows (G, ), or None if they are not known yet. Returns the table."""
        records, lines = [], []
        for group, sample, adv in zip(infos, samples, advantages):
            reward = sample['reward'].sum(1)[:len(group)]  # (G, )
            scored = (sample['failed'][:len(group)] == 0).nonzero().squeeze(1)
            if len(scored) == 0:
                continue
            best, worst = scored[reward[scored].argmax()], scored[reward[scored].argmin()]
            for row in dict.fromkeys([int(best), int(worst)]):
                info = group[row]
                records.append(_record(train_iter, sample, row, info, adv))
                parts = ' '.join(
                    f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in info['reward_parts'].items()
                )
                lines.append(
                    [
                        shorten(info['prompt'], 34),
                        shorten(info['completion'], 44), 'cut' if info['truncated'] else '', f'{reward[row]:.2f}',
                        '' if adv is None else f'{adv[row]:+.2f}', parts
                    ]
                )
        header = ['prompt', 'completion', '', 'reward', 'advantage', 'parts']
        text = f'completions at update {train_iter}\n' + tabulate(lines[:self._rows], header, disable_numparse=True)
        text = printable(text)  # names of parts
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with open(f'{self._path}.txt', 'a', encoding='utf-8') as f:
            f.write(text + '\n\n')
        for record in records:
            append_json(f'{self._path}.jsonl', record)
        return text

    def write_failed(
            self, train_iter: int, infos: List[List[Dict[str, Any]]], samples: List[Dict[str, Any]],
            advantages: List[Tensor]
    ) -> None:
        """Append every completion that could not be scored, untruncated, to the file of JSON lines."""
        for group, sample, adv in zip(infos, samples, advantages):
            for row in sample['failed'][:len(group)].nonzero().squeeze(1).tolist():
                append_json(f'{self._path}.jsonl', _record(train_iter, sample, row, group[row], adv))


def _record(train_iter: int, sample: Dict[str, Any], row: int, info: Dict[str, Any],
            adv: Optional[Tensor]) -> Dict[str, Any]:
    return dict(
        train_iter=train_iter,
        group=sample['group_id'],
        **{
            key: info[key]
            for key in ('index', 'kind', 'prompt', 'completion', 'turns', 'truncated', 'failed') if key in info
        },
        reward=sample['reward'][row].sum().item(),
        reward_parts=info['reward_parts'],
        advantage=None if adv is None else adv[row].item(),
    )
