"""
One update of GRPO, https://arxiv.org/abs/2402.03300. For each mini-batch of each epoch, one AdamW step reduces the loss

    L = mean over steps of  -min(r A, clip(r, 1 - c, 1 + c) A) + beta KL(pi, pi_ref) - w H(pi),    r = pi / pi_old,

where A is the advantage of ``Advantage`` and pi_old is the policy that sampled. ``policy.learn`` selects the surrogate
(here clip), the ratio and the mean (docs/reference/losses.md). A critic, a teacher and demonstrations each add a term
(``extra_loss.py``). Observers see each step and change nothing (``observer.py``).
"""
from dataclasses import replace
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_common import parallel
from ding_grpo.act.actor import Actor, Wanted
from ding_grpo.data.batch import Batch
from ding_grpo.data.diagnose import BadUpdates, diagnose
from ding_grpo.model.sharding import gradient_norm, is_sharded
from ding_grpo.rl_utils import LossConfig, grpo_data, grpo_error, sequence_mean
from ding_grpo.rl_utils.on_device import on_device

from .extra_loss import ExtraLoss
from .log_probs import first_log_probs, fresh_rows
from .metrics import OUTCOMES, mean_of_steps, outcome_of, step_metrics
from .observer import Observers


class Updater:
    """Trains the model of ``actor`` on batches with advantages; ``cfg`` is ``policy.learn``, ``batch_size`` groups."""

    def __init__(
            self,
            cfg: Dict,
            batch_size: int,
            loss_config: LossConfig,
            actor: Actor,
            model: nn.Module,
            optimizer: torch.optim.Optimizer,
            terms: Sequence[ExtraLoss] = (),
    ) -> None:
        self._cfg, self._batch_size, self.loss_config = cfg, batch_size, loss_config
        self._actor, self._model, self.optimizer, self._terms = actor, model, optimizer, terms
        # tokens that are read at a time, see ``tokens_at_once``
        self.at_once = None if any(term.undivided for term in terms) else cfg.micro_batch_tokens
        self.observers = Observers()
        self._device = self.trained[0].device
        self._sharded = is_sharded(model)  # by FSDP2, which sums gradients itself
        self.optimizer_steps = 0  # number of steps so far
        self.beta, self.entropy_weight = loss_config.beta, cfg.entropy.weight
        self.bad_updates = BadUpdates(cfg.max_bad_updates)
        self.shuffle = torch.Generator().manual_seed(actor.seed)

    @property
    def trained(self) -> List[nn.Parameter]:
        return [p for section in self.optimizer.param_groups for p in section['params']]

    def run(self, batch: Batch, update: int) -> Dict[str, float]:
        """Run all epochs, or fewer if ``target_kl`` or ``max_ratio`` stops them. See docs/reference/metrics.md."""
        steps: List[Dict[str, float]] = []
        empty = 0
        for term in self._terms:
            term.begin(update)
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
        if self._actor.exact or batch.logp_first is not None:
            for _ in range(cfg.epoch_per_collect):
                yield from batch.mini_batches(size, self.shuffle)
            return
        drawn = list(batch.mini_batches(size, self.shuffle))
        for mini_batch in drawn[1:]:
            if fresh_rows(mini_batch, self.optimizer_steps).any():
                with self._actor.aside():
                    mini_batch.logp_first = first_log_probs(mini_batch, self.read(mini_batch), self.optimizer_steps)
        yield from drawn
        for _ in range(1, cfg.epoch_per_collect):
            yield from (drawn[i] for i in torch.randperm(len(drawn), generator=self.shuffle).tolist())

    def step(self, mini_batch: Batch) -> Dict[str, float]:
        """Take one optimizer step, unless the outcome forbids it. Returns metrics and the outcome."""
        cfg, batch = self._cfg, mini_batch.to(self._device)
        self.optimizer.zero_grad()
        tokens = mini_batch.weight.sum().item() if self.loss_config.reduction == 'token' else None
        # in several parts, such a surrogate would choose among the tokens of each part
        of_whole = self.loss_config.traits.of_batch and batch.is_divided(self.at_once)
        read = self._learn_rows(batch, tokens, self._slope(mini_batch) if of_whole else None)
        more = [term.learn_more(len(batch), self.step_seed, self._learn_batch) for term in self._terms]
        trained = self.trained
        for term in self._terms:
            trained = term.trained(trained)
        for p in trained:
            if p.grad is None:  # no row of this process uses it
                p.grad = torch.zeros_like(p)
        gradients = [] if self._sharded else [p.grad for p in trained]
        parallel.all_reduce([*gradients, *read.values(), *(logp for logp in more if logp is not None)])
        if not self._actor.exact and mini_batch.logp_first is None:
            mini_batch.logp_first = self.logp_old(batch, read['logp']).cpu()  # for further epochs
        # clip_grad_norm_ in two steps, because it makes all gradients NaN if one is NaN or infinite
        norm = gradient_norm([p.grad for p in trained])
        metrics = self._metrics(batch, read, norm)
        outcome = outcome_of(metrics, cfg.target_kl, cfg.max_ratio)
        if outcome != 'skipped_steps':
            metrics.update(self.observers.step(batch, read['logp']))
        if outcome == 'optimizer_steps':
            torch.nn.utils.clip_grads_with_norm_(trained, cfg.grad_clip_value, norm)
            self.optimizer.step()
            self.optimizer_steps += 1
        return dict(metrics, **{name: float(name == outcome) for name in OUTCOMES})

    def _learn_rows(self, batch: Batch, tokens: Optional[float], slope: Optional[Tensor]) -> Dict[str, Tensor]:
        """Add the gradients of a mini-batch, by its parts. ``tokens``: over how many the loss is a mean, None for a
        mean over rows. ``slope`` (B, S), the gradient of the policy's loss with respect to log-probabilities, replaces
        this loss. Returns what was read, (B, S) by name."""
        given = {name: head for term in self._terms for name, head in term.heads().items()}
        names = ['logp', 'entropy', *(name for term in self._terms for name in term.reads)]
        read = {name: torch.zeros_like(batch.logp_old) for name in names}
        for rows, part in batch.parts(self.at_once, self._sharded):
            found = self._actor.read(self._model, part, Wanted(self.entropy_weight > 0, **given))  # (b, s) each
            share = len(rows) / batch.episodes  # of the part in a mean over rows; those of an episode count as one
            of_loss = share if tokens is None else 1
            if slope is None:
                loss = self.loss(part, found.logp, tokens, with_info=False)[0] * of_loss
            else:
                loss = (found.logp[:len(rows)] * slope[on_device(rows, self._device), :found.logp.shape[1]]).sum()
            if self.entropy_weight > 0:
                loss = loss - self.entropy_weight * share * sequence_mean(found.entropy, part.weight)
            for term in self._terms:
                loss = term.add(loss, part, found, tokens, of_loss)
            loss.backward()
            for name, whole in read.items():
                of_part = getattr(found, name).detach()[:len(rows)]
                whole[on_device(rows, self._device), :of_part.shape[1]] = of_part
        return read

    @torch.no_grad()
    def _metrics(self, batch: Batch, read: Dict[str, Tensor], norm: Tensor) -> Dict[str, float]:
        """Metrics of a step, from what was read of its rows, and the gradient's norm."""
        logp = read['logp']
        loss, info = self.loss(batch, logp)
        loss = loss * self._rows_of_episode(batch)
        metrics = step_metrics(
            batch, loss, info, logp, self.logp_old(batch, logp), read['entropy'], self.entropy_weight, norm,
            fresh_rows(batch, self.optimizer_steps)
        )
        for term in self._terms:
            metrics.update(term.metrics(metrics['total_loss'], batch, read))
        return metrics

    def _learn_batch(self, batch: Batch, loss: Callable[[Tensor, Batch], Tensor],
                     mean_of_rows: bool) -> Tuple[Batch, Tensor]:
        """Add the gradients of a batch with a loss of its own, see ``ExtraLoss.learn_more``."""
        batch = batch.to(self._device)
        logp = torch.zeros_like(batch.logp_old)
        for at, part in batch.parts(self.at_once):
            found = self._actor.read(self._model, part).logp
            (loss(found, part) * (len(at) / len(batch) if mean_of_rows else 1)).backward()
            logp[at, :found.shape[1]] = found.detach()
        return batch, logp

    @property
    def step_seed(self) -> int:
        """Of the random numbers of an optimizer step, independent of those of other steps, runs and purposes."""
        sequence = np.random.SeedSequence(self._actor.seed, spawn_key=(self.optimizer_steps, ))
        return int(sequence.generate_state(1, np.uint64)[0])

    def loss(
            self,
            batch: Batch,
            logp: Tensor,
            tokens: Optional[float] = None,
            config: Optional[LossConfig] = None,
            with_info: bool = True
    ) -> Tuple:
        """Loss and info of rows, or their part of the loss of a mini-batch of so many ``tokens``; by ``config``,
        another loss."""
        data = grpo_data(logp, self.logp_old(batch, logp), batch.logp_ref, batch.adv, batch.weight, batch.group)
        config = replace(config or self.loss_config, beta=self.beta, max_length=self._actor.max_length)
        if config.draws:  # the same in the loss and in its metrics, and in a resumed run
            config = config.drawing_from(torch.Generator().manual_seed(self.step_seed))
        return grpo_error(data, config, num_tokens=tokens, with_info=with_info)

    def _slope(self, mini_batch: Batch) -> Tensor:
        """Gradient (B, S) of the loss with respect to log-probabilities, from all rows, which are read once more."""
        batch, logp = mini_batch.to(self._device), self.read(mini_batch).to(self._device).requires_grad_()
        return torch.autograd.grad(self.loss(batch, logp)[0] * self._rows_of_episode(batch), logp)[0]

    def _rows_of_episode(self, batch: Batch) -> float:
        """Turns a mean over rows into one over episodes, since a number of rows that depends on what was sampled would
        bias it."""
        return 1 if self.loss_config.reduction == 'token' else len(batch) / batch.episodes

    def parts(self, batch: Batch) -> List[Tuple[Tensor, Batch]]:
        """The rows of a batch that this process reads, in parts, with their indices."""
        return list(batch.parts(self.at_once))

    def read_with_gradient(self, part: Batch) -> Tensor:
        return self._actor.read(self._model, part.to(self._device)).logp

    def logp_old(self, batch: Batch, logp: Tensor) -> Tensor:
        """Log-probabilities (B, S) under pi_old, which the ratio is relative to."""
        if batch.logp_first is not None:
            return batch.logp_first
        return batch.logp_old if self._actor.exact else first_log_probs(batch, logp, self.optimizer_steps)

    def read(self, batch: Batch, model: Optional[nn.Module] = None) -> Tensor:
        """Log-probabilities (B, S) under a model (None: the trained one), without gradients."""
        return self.read_rows(lambda part: self._actor.read(model or self._model, part).logp, batch)

    def read_with_entropy(self, batch: Batch) -> Tuple[Tensor, Tensor]:

        def of_part(part: Batch) -> Tensor:
            found = self._actor.read(self._model, part)
            return torch.stack([found.logp, found.entropy], dim=-1)

        return self.read_rows(of_part, batch, (2, )).unbind(-1)

    def score_norm(self, batch: Batch) -> Tensor:
        """The field (B, S) of a batch that ``token_advantage`` explains, under the trained model."""

        def of_part(part: Batch) -> Tensor:
            found = self._actor.read(self._model, part, Wanted(squares=True))
            return 1 - 2 * found.logp.exp() + found.squares

        return self.read_rows(of_part, batch)

    @torch.no_grad()
    def read_rows(self, read: Callable[[Batch], Tensor], batch: Batch, each: Tuple[int, ...] = ()) -> Tensor:
        """Compute a number for each step of a batch, or several, in the same parts as learning.

        ``read`` maps a part of the rows to the numbers of their steps, (b, s, *each). The result (B, S, *each) is on
        the CPU, 0 in rows without a weight."""
        numbers = batch.logp_old.new_zeros((*batch.logp_old.shape, *each), device=self._device)
        for rows in batch.divide(self._batch_size):
            for of_chunk, part in batch.take(rows).to(self._device).parts(self.at_once, self._sharded):
                found = read(part)[:len(of_chunk)]
                numbers[on_device(rows[of_chunk], self._device), :found.shape[1]] = found
        parallel.all_reduce([numbers])
        return numbers.cpu()
