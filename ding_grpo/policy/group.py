"""What one training sample is: a whole group, folded from its episodes; and how samples become a batch."""
from typing import Any, Dict, List

import torch
from ding.utils.data import default_collate
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_common import ConfigError

_NOT_ROWS = ('prompt', 'obs')  # tensors of a sample that do not go by its rows; where there are ``obs``, none fails


def fold_group(episodes: List[List[Dict[str, Any]]], shared_start: bool = True) -> Dict[str, Any]:
    """
    Overview:
        Fold the G finished episodes of a group into one sample, so that neither a replay buffer nor uneven lengths \
        can tear the group.
    Arguments:
        - episodes (:obj:`List[List[Dict]]`): Per episode its transitions, as a face makes them: ``action``, ``logp``, \
            ``reward`` of the step, ``truncated`` in the last one, and what else that face has: for tokens \
            ``prompt``, ``kept``, ``reward_parts`` in the last one, for steps ``obs``.
        - shared_start (:obj:`bool`): Whether the episodes must have one start.
    Returns:
        - sample (:obj:`Dict`): See shapes; ``kept`` only if the sampling restricts the vocabulary.
    Shapes:
        - prompt (:obj:`torch.LongTensor`): :math:`(L, )`
        - obs (:obj:`torch.FloatTensor`): :math:`(M, *)`, or a dict of such, for the M steps of all rows, row by row
        - action (:obj:`torch.LongTensor`): :math:`(G, S)`, 0 behind a row's end; floats of :math:`(G, S, N)` for \
            continuous actions
        - logp_old (:obj:`torch.FloatTensor`): :math:`(G, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(G, S)`, 1 on tokens, 0 behind a row's end
        - kept (:obj:`torch.LongTensor`): :math:`(G, S, K)`, -1 behind a row's end
        - reward (:obj:`torch.FloatTensor`): :math:`(G, S)`, the reward that came with each token
        - reward_parts (:obj:`Dict[str, torch.FloatTensor]`): :math:`(G, )` each, NaN where one does not apply
        - truncated (:obj:`torch.FloatTensor`): :math:`(G, )`
        - failed (:obj:`torch.FloatTensor`): :math:`(G, )`, 1 on rows that could not be scored
    Raises:
        - ConfigError: If the episodes do not have one start.
    """
    start = 'prompt' if 'prompt' in episodes[0][0] else 'obs'
    for episode in episodes if shared_start else ():
        if not _equal(episode[0][start], episodes[0][0][start]):
            raise ConfigError(
                'policy.collect.shared_start = True: the episodes of a group start differently after one seed; the '
                "environment's reset must follow its seed, or set it to False to compare episodes from other starts."
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
    if episodes[0][0].get('kept') is not None:
        sample['kept'] = padded([torch.cat([t['kept'] for t in episode]) for episode in episodes], -1)
    return sample


def _equal(a: Any, b: Any) -> bool:
    return all(_equal(a[k], b[k]) for k in a) if isinstance(a, dict) else torch.equal(a, b)


def _cat(parts: List[Any]) -> Any:
    """Tensors, or dicts of them."""
    return {k: _cat([p[k] for p in parts]) for k in parts[0]} if isinstance(parts[0], dict) else torch.cat(parts)


def collate_groups(samples: List[Dict[str, Any]]) -> Dict[str, Any]:
    """
    Overview:
        Put groups together as rows of one batch, padded to the longest.
    Arguments:
        - samples (:obj:`List[Dict]`): P groups from ``fold_group``.
    Returns:
        - batch (:obj:`Dict`): ``prompts`` a list of B prompts, one a row, or ``obs``; ``group`` :math:`(B, )` the \
            number of each row's group; ``sampled_after`` :math:`(B, )` the steps of the optimizer before it was \
            sampled; ``equal`` :math:`(P, )`, see ``Advantage.equal``; the others as in ``fold_group`` with \
            :math:`B` in place of :math:`G`.
    """
    longest = max(s['action'].shape[1] for s in samples)

    def cat(key: str, value: float = 0) -> Tensor:
        return torch.cat(
            [
                s[key] if s[key].dim() == 1 else torch.nn.functional.
                pad(s[key], (0, 0) * (s[key].dim() - 2) + (0, longest - s[key].shape[1]), value=value) for s in samples
            ]
        )

    sizes = torch.tensor([len(s['action']) for s in samples])
    padded = ('action', 'logp_old', 'logp_ref', 'weight', 'reward', 'adv')
    batch = {key: cat(key) for key in padded if key in samples[0]}
    batch['kept'] = None
    if 'kept' in samples[0]:
        batch['kept'] = cat('kept', -1)
        # Behind a row's end nothing is kept, which would be a distribution over no token: keep what fills the action.
        batch['kept'][..., 0] = torch.where(batch['weight'] == 0, 0, batch['kept'][..., 0])
    if 'prompt' in samples[0]:
        batch['prompts'] = [s['prompt'] for s, size in zip(samples, sizes.tolist()) for _ in range(size)]
    else:
        batch['obs'] = _cat([s['obs'] for s in samples])
    batch['group'] = torch.arange(len(samples)).repeat_interleave(sizes)
    # -1, which no weights have made: not known, as of a group that a policy did not fold
    batch['sampled_after'] = torch.tensor([s.get('sampled_after', -1) for s in samples]).repeat_interleave(sizes)
    batch['reward_parts'] = {
        name: torch.cat([s['reward_parts'][name] for s in samples])
        for name in samples[0]['reward_parts']
    }
    for key in ('truncated', 'failed'):
        batch[key] = torch.cat([s[key] for s in samples])
    if 'equal' in samples[0]:
        batch['equal'] = torch.tensor([s['equal'] for s in samples])
    return batch


def without_failed(samples: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """
    Overview:
        Groups without the rows that could not be scored; a group that has no other is left out.
    Arguments:
        - samples (:obj:`List[Dict]`): The groups.
    """
    kept = []
    for sample in samples:
        scored = sample['failed'] == 0  # (G, )
        if scored.all():
            kept.append(sample)
        elif scored.any():
            rows = {
                key: value[scored]
                for key, value in sample.items() if torch.is_tensor(value) and key not in _NOT_ROWS
            }
            parts = {name: part[scored] for name, part in sample['reward_parts'].items()}
            kept.append(dict(sample, reward_parts=parts, **rows))
    return kept


def with_rows(samples: List[Dict[str, Any]], **values: Tensor) -> List[Dict[str, Any]]:
    """
    Overview:
        Groups with something more.
    Arguments:
        - samples (:obj:`List[Dict]`): The groups.
        - values (:obj:`torch.Tensor`): By name, :math:`(B, )` or :math:`(B, S)` for the batch of all groups.
    Returns:
        - samples (:obj:`List[Dict]`): Copies, each with its rows.
    """
    samples = [dict(s) for s in samples]
    for name, value in values.items():
        for s, part in zip(samples, value.split([len(s['action']) for s in samples])):
            s[name] = part if part.dim() == 1 else part[:, :s['action'].shape[1]]
    return samples


def split_steps(batch: Dict[str, Any]) -> Dict[str, Any]:
    """
    Overview:
        The steps of a batch as rows of one step each, so that mini-batches can be drawn of them.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``, of groups with ``obs``.
    Returns:
        - steps (:obj:`Dict`): What learning needs, :math:`(M, 1)` for the M steps that count.
    """
    counted = batch['weight'] != 0  # (B, S)
    steps = dict(obs=batch['obs'])  # (M, *) already
    for key in ('action', 'logp_old', 'logp_ref', 'weight', 'adv', 'sampled_after'):
        if key in batch:
            value = batch[key].unsqueeze(1).expand_as(counted) if batch[key].dim() == 1 else batch[key]
            steps[key] = value[counted].unsqueeze(1)
    return steps


def take_steps(steps: Any, chosen: Tensor) -> Any:
    """
    Overview:
        Some rows of ``split_steps``.
    Arguments:
        - steps (:obj:`Any`): Tensors, or dicts of them.
        - chosen (:obj:`torch.LongTensor`): Their numbers, :math:`(N, )`.
    """
    return {k: take_steps(v, chosen) for k, v in steps.items()} if isinstance(steps, dict) else steps[chosen]


def repetition(action: Tensor, weight: Tensor, n: int = 4) -> Tensor:
    """
    Overview:
        Share of a row's n-grams that have occurred in it before: 0 where all differ or there is none, towards 1 where \
        one is repeated on and on.
    Arguments:
        - action (:obj:`torch.LongTensor`): Tokens.
        - weight (:obj:`torch.FloatTensor`): 1 on tokens, 0 behind a row's end.
        - n (:obj:`int`): Tokens of an n-gram.
    Returns:
        - share (:obj:`torch.FloatTensor`): One a row.
    Shapes:
        - action (:obj:`torch.LongTensor`): :math:`(B, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - share (:obj:`torch.FloatTensor`): :math:`(B, )`
    """
    shares = []
    for row, length in zip(action.tolist(), weight.sum(1).long().tolist()):
        grams = list(zip(*(row[i:length] for i in range(n))))
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.)
    return torch.tensor(shares)


def batch_metrics(batch: Dict[str, Any], length_name: str = 'completion_length') -> Dict[str, float]:
    """
    Overview:
        What a batch of groups says about the policy that sampled it; docs/metrics.md gives the formulas.
    Arguments:
        - batch (:obj:`Dict`): From ``collate_groups``.
        - length_name (:obj:`str`): What a row's length is called.
    Returns:
        - metrics (:obj:`Dict[str, float]`): By name; what has no value is left out.
    """
    metrics = dict(failed=batch['failed'].mean())
    scored = batch['failed'] == 0
    if scored.any():
        reward, length = batch['reward'].sum(1)[scored], batch['weight'].sum(1)[scored]  # (B, )
        metrics.update(
            reward_mean=reward.mean(),
            reward_std=reward.std(unbiased=False),
            equal_groups=batch['equal'][batch['group'][scored].unique()].float().mean(),
            truncated=batch['truncated'][scored].mean(),
            **{f'{length_name}_{name}': getattr(length, name)()
               for name in ('mean', 'min', 'max')},
        )
        if 'prompts' in batch:
            metrics['repetition'] = repetition(batch['action'][scored], batch['weight'][scored]).mean()
    for name, part in batch['reward_parts'].items():
        part = part[scored & ~part.isnan()]
        if len(part) > 0:
            metrics[f'reward_{name}_mean'] = part.mean()
            metrics[f'reward_{name}_std'] = part.std(unbiased=False)
    return {name: float(value) for name, value in metrics.items()}
