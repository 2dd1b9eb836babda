"""
One update of GRPO, https://arxiv.org/abs/2402.03300. For each mini-batch of each epoch, one AdamW step reduces the loss

    L = mean over steps of  -min(r A, clip(r, 1 - c, 1 + c) A) + beta KL(pi, pi_ref) - w H(pi),    r = pi / pi_old,

where A is the advantage of ``Advantage`` and pi_old is the policy that sampled. ``policy.learn`` selects the
surrogate (here clip), the ratio and the mean (docs/losses.md).
"""
import math
from typing import Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ding_common import parallel
from ding_grpo.rl_utils import grpo_data, grpo_error, sequence_mean

from .actor import Actor
from .batch import Batch
from .diagnose import BadUpdates, diagnose
from .log_probs import first_log_probs, fresh_rows, read_log_probs
from .metrics import OUTCOMES, mean_of_steps, step_metrics


class Updater:
    """Trains the model of ``actor`` on batches with advantages; ``cfg`` is ``policy.learn``, ``batch_size`` groups."""

    def __init__(
            self, cfg: Dict, batch_size: int, loss_options: Dict, actor: Actor, model: nn.Module,
            optimizer: torch.optim.Optimizer
    ) -> None:
        self._cfg, self._batch_size, self._loss_options = cfg, batch_size, loss_options
        self._actor, self._model, self._optimizer = actor, model, optimizer
        self._trained: List[nn.Parameter] = [p for section in optimizer.param_groups for p in section['params']]
        self.optimizer_steps = 0  # number of steps so far
        self.bad_updates = BadUpdates(cfg.max_bad_updates)
        self.shuffle = torch.Generator().manual_seed(torch.initial_seed())

    def run(self, batch: Batch, update: int) -> Dict[str, float]:
        """Run all epochs, or fewer if ``target_kl`` or ``max_ratio`` stops them. Returns metrics (docs/metrics.md)."""
        steps: List[Dict[str, float]] = []
        empty = 0
        for mini_batch in self._mini_batches(batch):
            if not mini_batch.weight.any():  # all rows are truncated and masked, so there is nothing to measure
                empty += 1
                continue
            step = self.step(mini_batch)
            if step['skipped_steps'] and not any(s['skipped_steps'] for s in steps):
                self.bad_updates.add(update, step, lambda: diagnose(batch, self._model, lambda: self.read(batch)))
            steps.append(step)
            if not any(step[name] for name in OUTCOMES):
                break
        metrics = mean_of_steps(steps)
        metrics['empty_steps'] += empty
        if steps and not metrics['skipped_steps']:
            self.bad_updates.in_a_row = 0
        return metrics

    def _mini_batches(self, batch: Batch) -> Iterator[Batch]:
        """The mini-batches of all epochs; the first departure in ``grpo.py`` explains ``logp_first``."""
        cfg, size = self._cfg, self._batch_size
        if cfg.batch_steps is not None:
            batch, size = batch.steps(), cfg.batch_steps
        if self._actor.exact:
            for _ in range(cfg.epoch_per_collect):
                yield from batch.mini_batches(size, self.shuffle)
            return
        drawn = list(batch.mini_batches(size, self.shuffle))
        for mini_batch in drawn[1:]:
            if fresh_rows(mini_batch, self.optimizer_steps).any():
                mini_batch.logp_first = first_log_probs(mini_batch, self.read(mini_batch), self.optimizer_steps)
        yield from drawn
        for _ in range(1, cfg.epoch_per_collect):
            yield from (drawn[i] for i in torch.randperm(len(drawn), generator=self.shuffle).tolist())

    def step(self, mini_batch: Batch) -> Dict[str, float]:
        """Take one optimizer step, unless the outcome forbids it. Returns metrics and the outcome."""
        cfg, batch = self._cfg, mini_batch.to(self._trained[0].device)
        tokens = batch.weight.sum().item() if self._loss_options.get('reduction') == 'token' else None
        logp, entropy = (torch.zeros_like(batch.logp_old) for _ in range(2))  # (B, S)
        self._optimizer.zero_grad()
        for rows, part in batch.parts(cfg.micro_batch_tokens):
            share = len(rows) / len(batch)
            logp_part, entropy_part = self._actor.log_prob(self._model, part, cfg.entropy_weight > 0)  # (b, s)
            loss = self._loss(part, logp_part, tokens)[0] * (1 if tokens is not None else share)
            if cfg.entropy_weight > 0:
                loss = loss - cfg.entropy_weight * share * sequence_mean(entropy_part, part.weight)
            loss.backward()
            columns = logp_part.shape[1]
            logp[rows, :columns], entropy[rows, :columns] = logp_part.detach(), entropy_part.detach()
        for p in self._trained:
            if p.grad is None:  # no row of this process uses it
                p.grad = torch.zeros_like(p)
        parallel.all_reduce([*(p.grad for p in self._trained), logp, entropy])
        if not self._actor.exact and mini_batch.logp_first is None:
            mini_batch.logp_first = self._logp_old(batch, logp).cpu()  # for further epochs
        # clip_grad_norm_ in two steps, because it makes all gradients NaN if one is NaN or infinite
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._trained])
        with torch.no_grad():
            loss, info = self._loss(batch, logp)
            metrics = step_metrics(
                batch, loss, info, logp, self._logp_old(batch, logp), entropy, cfg.entropy_weight, norm,
                fresh_rows(batch, self.optimizer_steps)
            )
        outcome = self._outcome(metrics)
        if outcome == 'optimizer_steps':
            torch.nn.utils.clip_grads_with_norm_(self._trained, cfg.grad_clip_value, norm)
            self._optimizer.step()
            self.optimizer_steps += 1
        return dict(metrics, **{name: float(name == outcome) for name in OUTCOMES})

    def _outcome(self, metrics: Dict[str, float]) -> Optional[str]:
        """The outcome of a step; None if the policy has already exceeded a bound."""
        cfg = self._cfg
        if not (math.isfinite(metrics['total_loss']) and math.isfinite(metrics['grad_norm'])):
            return 'skipped_steps'
        bounds = ((metrics['kl_old'], cfg.target_kl), (metrics['ratio_max'], cfg.max_ratio))
        if any(bound is not None and value > bound for value, bound in bounds):
            return None
        # without a gradient, AdamW's momentum alone would move the weights
        return 'empty_steps' if metrics['grad_norm'] == 0 else 'optimizer_steps'

    def _loss(self, batch: Batch, logp: Tensor, tokens: Optional[float] = None) -> Tuple:
        """Loss and info of rows. With ``tokens``, the number of tokens in the mini-batch, their part of its loss."""
        data = grpo_data(logp, self._logp_old(batch, logp), batch.logp_ref, batch.adv, batch.weight)
        return grpo_error(data, max_length=self._actor.max_length, num_tokens=tokens, **self._loss_options)

    def _logp_old(self, batch: Batch, logp: Tensor) -> Tensor:
        """Log-probabilities (B, S) under pi_old, which the ratio is relative to."""
        if batch.logp_first is not None:
            return batch.logp_first
        return batch.logp_old if self._actor.exact else first_log_probs(batch, logp, self.optimizer_steps)

    def read(self, batch: Batch, model: Optional[nn.Module] = None) -> Tensor:
        """Log-probabilities (B, S) under a model (None: the trained one), without gradients."""
        return read_log_probs(self._actor, model or self._model, batch, self._batch_size, self._cfg.micro_batch_tokens)
