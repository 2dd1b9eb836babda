"""What one training sample is: a whole group, folded from its episodes; and how samples become a batch."""
from typing import Any, Dict, List

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_grpo.rl_utils import equal_groups


def fold_group(episodes: List[List[Dict[str, Any]]]) -> Dict[str, Any]:
    """
    Overview:
        Fold the G finished episodes of a group into one sample, so that neither a replay buffer nor uneven lengths \
        can tear the group.
    Arguments:
        - episodes (:obj:`List[List[Dict]]`): Per episode its transitions, as ``GRPOPolicy`` makes them: ``prompt``, \
            ``action``, ``logp``, ``kept``, ``reward`` of the step, and in the last one ``reward_parts`` and \
            ``truncated``.
    Returns:
        - sample (:obj:`Dict`): See shapes; ``kept`` only if the sampling restricts the vocabulary.
    Shapes:
        - prompt (:obj:`torch.LongTensor`): :math:`(L, )`
        - action (:obj:`torch.LongTensor`): :math:`(G, S)`, 0 behind a row's end
        - logp_old (:obj:`torch.FloatTensor`): :math:`(G, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(G, S)`, 1 on tokens, 0 behind a row's end
        - kept (:obj:`torch.LongTensor`): :math:`(G, S, K)`, -1 behind a row's end
        - reward (:obj:`torch.FloatTensor`): :math:`(G, S)`, the reward that came with each token
        - reward_parts (:obj:`Dict[str, torch.FloatTensor]`): :math:`(G, )` each
        - truncated (:obj:`torch.FloatTensor`): :math:`(G, )`
    Raises:
        - ValueError: If the episodes do not have one start.
    """
    for episode in episodes:
        if not torch.equal(episode[0]['prompt'], episodes[0][0]['prompt']):
            raise ValueError(
                'the episodes of a group start differently: the environment must start the same for the same seed'
            )
    rows = [{key: torch.cat([t[key] for t in episode]) for key in ('action', 'logp', 'reward')} for episode in episodes]
    last = [episode[-1] for episode in episodes]

    def padded(tensors: List[Tensor], value: float = 0) -> Tensor:
        return pad_sequence(tensors, batch_first=True, padding_value=value)

    sample = dict(
        prompt=episodes[0][0]['prompt'],
        action=padded([row['action'] for row in rows]),
        logp_old=padded([row['logp'] for row in rows]),
        weight=padded([torch.ones_like(row['logp']) for row in rows]),
        reward=padded([row['reward'] for row in rows]),
        reward_parts={name: torch.tensor([t['reward_parts'][name] for t in last])
                      for name in last[0]['reward_parts']},
        truncated=torch.tensor([float(t['truncated']) for t in last]),
    )
    if episodes[0][0]['kept'] is not None:
        sample['kept'] = padded([torch.cat([t['kept'] for t in episode]) for episode in episodes], -1)
    return sample


def collate_groups(samples: List[Dict[str, Any]]) -> Dict[str, Any]:
    """
    Overview:
        Put groups together as rows of one batch, padded to the longest.
    Arguments:
        - samples (:obj:`List[Dict]`): P groups from ``fold_group``.
    Returns:
        - batch (:obj:`Dict`): ``prompts`` a list of B prompts, one a row; ``group`` :math:`(B, )` the number of \
            each row's group; the others as in ``fold_group`` with :math:`B` in place of :math:`G`.
    """
    longest = max(s['action'].shape[1] for s in samples)

    def cat(key: str, value: float = 0) -> Tensor:
        return torch.cat(
            [
                torch.nn.functional.pad(
                    s[key], (0, 0) * (s[key].dim() - 2) + (0, longest - s[key].shape[1]), value=value
                ) for s in samples
            ]
        )

    sizes = torch.tensor([len(s['action']) for s in samples])
    batch = {key: cat(key) for key in ('action', 'logp_old', 'logp_ref', 'weight', 'reward') if key in samples[0]}
    batch['kept'] = None
    if 'kept' in samples[0]:
        batch['kept'] = cat('kept', -1)
        # Behind a row's end nothing is kept, which would be a distribution over no token: keep what fills the action.
        batch['kept'][..., 0] = torch.where(batch['weight'] == 0, 0, batch['kept'][..., 0])
    batch['prompts'] = [s['prompt'] for s, size in zip(samples, sizes.tolist()) for _ in range(size)]
    batch['group'] = torch.arange(len(samples)).repeat_interleave(sizes)
    batch['reward_parts'] = {
        name: torch.cat([s['reward_parts'][name] for s in samples])
        for name in samples[0]['reward_parts']
    }
    batch['truncated'] = torch.cat([s['truncated'] for s in samples])
    return batch


def batch_metrics(batch: Dict[str, Any]) -> Dict[str, float]:
    """
    Overview:
        What a batch of groups says about the policy that sampled it; docs/metrics.md gives the formulas.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``.
    Returns:
        - metrics (:obj:`Dict[str, float]`): By name.
    """
    reward = batch['reward'].sum(1)  # (B, )
    length = batch['weight'].sum(1)  # (B, )
    metrics = dict(
        reward_mean=reward.mean(),
        reward_std=reward.std(unbiased=False),
        equal_groups=equal_groups(reward, batch['group']).float().mean(),
        completion_length_mean=length.mean(),
        completion_length_min=length.min(),
        completion_length_max=length.max(),
        truncated=batch['truncated'].mean(),
    )
    for name, part in batch['reward_parts'].items():
        metrics[f'reward_{name}_mean'] = part.mean()
        metrics[f'reward_{name}_std'] = part.std(unbiased=False)
    return {name: float(value) for name, value in metrics.items()}
