"""
One training sample: the episodes of a group, folded into one. It is a plain dict of tensors, because DI-engine's replay
buffers write their own keys into it. It is also part of checkpoints, which load plain data only.
"""
from typing import Any, Dict, List

import torch
from ding.utils.data import default_collate
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_common import ConfigError


def fold_group(episodes: List[List[Dict[str, Any]]], shared_start: bool = True) -> Dict[str, Any]:
    """
    Overview:
        Fold the G finished episodes of a group into one sample, so that neither a replay buffer nor different lengths \
        can separate the group.
    Arguments:
        - episodes (:obj:`List[List[Dict]]`): The transitions of each episode, from ``Actor.transition``: ``action``, \
            ``logp``, ``reward`` of the step and, in the last one, ``truncated``. For tokens also ``prompt``, ``kept`` \
            and, in the last one, ``reward_parts``; for steps also ``obs`` and, in the last one, ``final_obs``.
        - shared_start (:obj:`bool`): Whether the episodes must have the same start.
    Returns:
        - sample (:obj:`Dict`): See shapes; ``kept`` only if the sampling restricts the vocabulary.
    Shapes:
        - prompt (:obj:`torch.LongTensor`): :math:`(L, )`
        - obs (:obj:`torch.FloatTensor`): :math:`(M, *)` or a dict of such tensors, for the M steps of all rows, row \
            by row
        - final_obs (:obj:`torch.FloatTensor`): :math:`(G, *)` or a dict, the observation after each row's last step
        - action (:obj:`torch.LongTensor`): :math:`(G, S)`, 0 after a row's end; floats of :math:`(G, S, N)` for \
            continuous actions
        - logp_old (:obj:`torch.FloatTensor`): :math:`(G, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(G, S)`, 1 on tokens, 0 after a row's end
        - kept (:obj:`torch.LongTensor`): :math:`(G, S, K)`, -1 after a row's end
        - reward (:obj:`torch.FloatTensor`): :math:`(G, S)`, the reward of each token
        - reward_parts (:obj:`Dict[str, torch.FloatTensor]`): :math:`(G, )` each, NaN where a part does not apply
        - truncated (:obj:`torch.FloatTensor`): :math:`(G, )`
        - failed (:obj:`torch.FloatTensor`): :math:`(G, )`, 1 on rows that could not be scored
    Raises:
        - ConfigError: If the episodes must have the same start and do not.
    """
    start = 'prompt' if 'prompt' in episodes[0][0] else 'obs'
    for episode in episodes if shared_start else ():
        if not _equal(episode[0][start], episodes[0][0][start]):
            raise ConfigError(
                'policy.collect.shared_start = True: the episodes of a group start differently with the same seed. The '
                "environment's reset must depend on its seed only; or set shared_start to False, to compare episodes "
                'from different starts.'
            )
    rows = [{key: torch.cat([t[key] for t in episode]) for key in ('action', 'logp', 'reward')} for episode in episodes]
    last = [episode[-1] for episode in episodes]

    def padded(tensors: List[Tensor], value: float = 0) -> Tensor:
        return pad_sequence(tensors, batch_first=True, padding_value=value)

    sample = dict(
        action=padded([row['action'] for row in rows]),
        logp_old=padded([row['logp'] for row in rows]),
        weight=padded([torch.ones_like(row['logp']) for row in rows]),
        reward=padded([row['reward'] for row in rows]),
        reward_parts={
            name:
            torch.tensor([float('nan') if t['reward_parts'][name] is None else t['reward_parts'][name] for t in last])
            for name in last[0].get('reward_parts', {})
        },
        truncated=torch.tensor([float(t['truncated']) for t in last]),
        failed=torch.tensor([float(t['failed']) for t in last]),
    )
    if 'prompt' in episodes[0][0]:
        sample['prompt'] = episodes[0][0]['prompt']
    else:
        sample['obs'] = default_collate([t['obs'] for episode in episodes for t in episode])
        if 'final_obs' in last[0]:
            sample['final_obs'] = default_collate([t['final_obs'] for t in last])
    if episodes[0][0].get('kept') is not None:
        sample['kept'] = padded([torch.cat([t['kept'] for t in episode]) for episode in episodes], -1)
    return sample


def _equal(a: Any, b: Any) -> bool:
    return all(_equal(a[k], b[k]) for k in a) if isinstance(a, dict) else torch.equal(a, b)
