"""Metrics of batches and of steps; docs/reference/metrics.md gives the formulas."""
import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.data.batch import Batch
from ding_grpo.rl_utils import grpo_info, kl_estimate, masked_mean, sequence_mean
from ding_grpo.rl_utils.tree_advantage import nodes

# Possible outcomes of a mini-batch.
OUTCOMES = ('optimizer_steps', 'skipped_steps', 'empty_steps')
# Metrics of an optimizer step. An update reports their mean, or the maximum for names that end in _max.
STEP_METRICS = (
    'total_loss', 'policy_loss', 'entropy', 'grad_norm', 'approx_kl', 'clipfrac', 'clipfrac_low', 'clipfrac_high',
    'kl_old', 'ratio_mean', 'ratio_max', 'effective_sample_size', 'sampler_gap_mean', 'sampler_gap_max', 'kl'
)
SHADOW = 'shadow/'  # names of further metrics of an optimizer step begin with it, see ``shadow.py``


def logged_metrics(length_name: str, rate_name: str, with_kl: bool) -> List[str]:
    """Names of the metrics that DI-engine's learner logs, given those of a row's length and of the steps per second."""
    of_steps = [name for name in STEP_METRICS if with_kl or name != 'kl']
    return [
        *of_steps, 'staleness_max', 'cur_lr', *OUTCOMES, 'reward_mean', 'reward_std', 'equal_groups', 'replaced_groups',
        'filtered_groups', 'truncated', 'failed', 'seconds_sampling', 'seconds_scoring', 'seconds_updating', rate_name,
        *(f'{length_name}_{n}' for n in ('mean', 'min', 'max'))
    ]


def batch_metrics(batch: Batch, length_name: str = 'completion_length') -> Dict[str, float]:
    """Metrics of the policy that sampled a batch of groups, without undefined ones."""
    metrics = dict(failed=batch.failed.float().mean(), **({} if batch.leader is None else tree_metrics(batch)))
    scored = ~batch.failed
    if scored.any():
        reward, length = batch.reward.sum(1)[scored], batch.weight.sum(1)[scored]  # (B, )
        groups, index = batch.group[scored].unique(return_inverse=True)
        equal, filtered = (
            torch.zeros(len(groups)).index_put((index, ), of_rows[scored].float())
            for of_rows in (batch.equal, batch.filtered)
        )  # (P, )
        metrics.update(
            reward_mean=reward.mean(),
            reward_std=reward.std(unbiased=False),
            equal_groups=equal.mean(),
            filtered_groups=filtered.mean(),
            truncated=batch.truncated[scored].float().mean(),
            **{f'{length_name}_{name}': getattr(length, name)()
               for name in ('mean', 'min', 'max')},
        )
        if batch.baseline is not None:
            metrics['baseline_mean'] = batch.baseline[scored].mean()
        if batch.prompts is not None:
            metrics['repetition'] = repetition(batch.action[scored], batch.weight[scored]).mean()
    for name, part in batch.reward_parts.items():
        part = part[scored & ~part.isnan()]
        if len(part) > 0:
            metrics[f'reward_{name}_mean'] = part.mean()
            metrics[f'reward_{name}_std'] = part.std(unbiased=False)
    return {name: float(value) for name, value in metrics.items()}


def tree_metrics(batch: Batch) -> Dict[str, Tensor]:
    """What the trees of a batch have: the share of the policy's tokens that were sampled, and the mean number of
    different rows in which a group has ended. Rows that could not be scored count too."""
    size = nodes(batch.reward.sum(1), batch.leader, batch.group).size.clamp(min=1)  # (B, S)
    last = size.gather(1, (batch.length - 1).clamp(min=0).unsqueeze(1))  # (B, 1)
    return dict(
        tree_sampled=masked_mean(1 / size, batch.weight), tree_rows=(1 / last).sum() / len(batch.group.unique())
    )


def group_metrics(data: List[Dict[str, Any]], with_dropped: bool) -> Dict[str, float]:
    """Metrics of how groups were collected; ``with_dropped`` if rows may have been dropped (``extra_rows``)."""
    metrics = dict(staleness_max=float(max(group.get('staleness', 0) for group in data)))
    for name in ('replaced_groups', 'seconds_sampling', 'seconds_scoring'):  # absent without a collector
        metrics[name] = float(sum(group.get(name, 0) for group in data))
    if with_dropped:  # absent in groups of older versions
        metrics['dropped_tokens'] = float(sum(group.get('dropped_tokens', 0) for group in data))
    for name in ('memory_mib_sampling', 'memory_mib_scoring'):
        if all(name in group for group in data):  # absent in groups of older versions
            metrics[name] = max(group[name] for group in data)
    return metrics


def repetition(action: Tensor, weight: Tensor, n: int = 4) -> Tensor:
    """Share of a row's n-grams that occur earlier in the row: tokens and weights (B, S) -> (B, ). It is 0 if all
    n-grams differ or the row is shorter than one, and approaches 1 if one n-gram repeats throughout the row. Only
    n-grams within a turn of the policy count."""
    shares = []
    whole = (weight != 0).unfold(1, n, 1).all(-1).tolist() if weight.shape[1] >= n else [[]] * len(weight)
    for row, starts in zip(action.tolist(), whole):
        grams = [tuple(row[i:i + n]) for i, inside in enumerate(starts) if inside]
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.)
    return torch.tensor(shares)


def step_metrics(
        batch: Batch, loss: Tensor, info: grpo_info, logp: Tensor, logp_old: Tensor, entropy: Tensor,
        entropy_weight: float, norm: Tensor, fresh: Tensor
) -> Dict[str, float]:
    """Metrics of one mini-batch, from its loss without the entropy bonus, what the model computes (B, S), the
    gradient's norm, and the rows (B, 1) that the current weights sampled."""
    weight, of_loss = batch.weight, info.metrics()
    if batch.logp_ref is None:
        del of_loss['kl']
    compared, gap, largest = sampler_gap(batch, logp, fresh)
    found = dict(
        kl_old=masked_mean(kl_estimate(logp_old, logp, 'k3'), weight),
        total_loss=loss - entropy_weight * sequence_mean(entropy, weight),
        policy_loss=loss,
        entropy=masked_mean(entropy, weight),
        grad_norm=norm,
        sampler_gap_mean=gap,
        sampler_gap_max=largest,
    )
    numbers = torch.stack([x.double() for x in (compared, *found.values())]).tolist()  # the only wait for a GPU
    metrics = dict(zip(found, numbers[1:]), **of_loss)
    if not numbers[0]:
        del metrics['sampler_gap_mean'], metrics['sampler_gap_max']
    return metrics


def sampler_gap(batch: Batch, logp: Tensor, fresh: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Whether there are steps with a weight of ``fresh`` rows, and over these the mean and the maximum, in nats, of the
    absolute difference between the log-probabilities (B, S) of the sampler and of the learner with the same weights."""
    steps = fresh & (batch.weight != 0)
    gap = (logp - batch.logp_old).abs().masked_fill(~steps, 0)
    return steps.any(), masked_mean(gap, steps.to(gap.dtype)), gap.max()


def outcome_of(metrics: Dict[str, float], target_kl: Optional[float], max_ratio: Optional[float]) -> Optional[str]:
    """One of ``OUTCOMES``; None if ``kl_old`` or ``ratio_max`` already exceeds its bound."""
    if not (math.isfinite(metrics['total_loss']) and math.isfinite(metrics['grad_norm'])):
        return 'skipped_steps'
    bounds = ((metrics['kl_old'], target_kl), (metrics['ratio_max'], max_ratio))
    if any(bound is not None and value > bound for value, bound in bounds):
        return None
    # without a gradient, AdamW's momentum alone would move the weights
    return 'empty_steps' if metrics['grad_norm'] == 0 else 'optimizer_steps'


def mean_of_steps(steps: List[Dict[str, float]]) -> Dict[str, float]:
    """The number of each outcome, and means over the steps that were not skipped; maxima for names that end in _max."""
    metrics = {name: float(sum(step[name] for step in steps)) for name in OUTCOMES}
    steps = [step for step in steps if not step['skipped_steps']]
    names = dict.fromkeys([*STEP_METRICS, *(name for step in steps for name in step)])
    for name in (name for name in names if name not in OUTCOMES):
        values = [step[name] for step in steps if name in step]
        if values:
            metrics[name] = max(values) if name.endswith('_max') else sum(values) / len(values)
    return metrics
