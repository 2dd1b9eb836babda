"""Sampled completions or dialogues for readers. The first row of an episode of several texts shows all of them."""
from typing import Any, Callable, Dict, List, Optional

from tabulate import tabulate
from torch import Tensor

from ding_common import printable
from ding_grpo.logs.screen import shorten

from .group import Collected

INFO = ('index', 'kind', 'prompt', 'completion', 'turns', 'truncated', 'failed')  # of a record
HEADER = ('prompt', 'completion', '', 'reward', 'advantage', 'parts')


def best_and_worst(group: Collected) -> List[int]:
    """These rows of a group, without those that could not be scored; one if they are the same."""
    number = len(group.infos)
    reward = group.sample['reward'].sum(1)[:number]  # (G, )
    scored = (group.sample['failed'][:number] == 0).nonzero().squeeze(1)
    if len(scored) == 0:
        return []
    return list(dict.fromkeys([int(scored[reward[scored].argmax()]), int(scored[reward[scored].argmin()])]))


def failed(group: Collected) -> List[int]:
    """The rows that could not be scored."""
    return group.sample['failed'][:len(group.infos)].nonzero().squeeze(1).tolist()


def records_of(train_iter: int, groups: List[Collected], advantages: List[Optional[Tensor]],
               rows: Callable) -> List[Dict[str, Any]]:
    """The rows that ``rows`` chooses of each group, untruncated; ``advantages``: of each group's rows (G, ), or None if
    they are not known yet."""
    records = []
    for group, adv in zip(groups, advantages):
        for row in rows(group):
            info, reward = group.infos[row], group.sample['reward'][row].sum().item()
            told = {key: info[key] for key in INFO if key in info}
            numbers = dict(reward_parts=info['reward_parts'], advantage=None if adv is None else adv[row].item())
            records.append(
                dict(train_iter=train_iter, group=group.sample['group_id'], **told, reward=reward, **numbers)
            )
    return records


def table(train_iter: int, records: List[Dict[str, Any]]) -> str:
    lines = []
    for r in records:
        parts = [f"{name} {'-' if x is None else f'{x:.2f}'}" for name, x in r['reward_parts'].items()]
        advantage = '' if r['advantage'] is None else f"{r['advantage']:+.2f}"
        text = shorten(r['prompt'], 34), shorten(r['completion'], 44)
        lines.append([*text, 'cut' if r['truncated'] else '', f"{r['reward']:.2f}", advantage, ' '.join(parts)])
    # names of parts may be unprintable
    return printable(f'completions at update {train_iter}\n' + tabulate(lines, HEADER, disable_numparse=True))
