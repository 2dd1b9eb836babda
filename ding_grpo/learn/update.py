"""
One update of GRPO, https://arxiv.org/abs/2402.03300. For each mini-batch of each epoch, one AdamW step reduces the loss

    L = mean over steps of  -min(r A, clip(r, 1 - c, 1 + c) A) + beta KL(pi, pi_ref) - w H(pi),    r = pi / pi_old,

where A is the advantage of ``Advantage`` and pi_old is the policy that sampled. ``policy.learn`` selects the
surrogate (here clip), the ratio and the mean (docs/losses.md). With a critic (``advantage='gae'``), the same mean of
value_weight (V - R)^2 / 2 is added, where R is the return that V has to predict. With a teacher (``policy.teacher``),
the same mean of weight D(pi, pi_teacher) is added, see ``teacher.py``. With ``demonstrations``, the same mean of
-weight log pi over demonstrated tokens is added, see ``demonstrations.py``.
"""
from dataclasses import replace
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_common import parallel
from ding_grpo.act.actor import Actor
from ding_grpo.data.batch import Batch
from ding_grpo.data.diagnose import BadUpdates, diagnose
from ding_grpo.extras.demonstrations import Demonstrations
from ding_grpo.extras.teacher import Teacher
from ding_grpo.instruments.noise_scale import noise_of_table, noise_of_weights
from ding_grpo.instruments.shadow import Shadow
from ding_grpo.model.sharding import gradient_norm, is_sharded
from ding_grpo.rl_utils import LossConfig, grpo_data, grpo_error, sequence_mean

from .log_probs import first_log_probs, fresh_rows, read_rows
from .metrics import OF_TEACHER, OUTCOMES, mean_of_steps, outcome_of, step_metrics
from .value_learning import ValueLearning


class Extras(NamedTuple):
    """
    Overview:
        What an update has besides the policy's loss, None where the config does not ask for it: a critic, a teacher, \
        demonstrations, and losses that are only measured.
    """
    values: Optional[ValueLearning] = None
    teacher: Optional[Teacher] = None
    demonstrations: Optional[Demonstrations] = None
    shadow: Optional[Shadow] = None


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
            extras: Extras = Extras(),
    ) -> None:
        self._cfg, self._batch_size, self.loss_config = cfg, batch_size, loss_config
        self._actor, self._model, self.optimizer, self._extras = actor, model, optimizer, extras
        self._device = self._trained[0].device
        self._sharded = is_sharded(model)  # by FSDP2, which sums gradients itself
        # in several parts, such a surrogate would choose among the tokens of each part
        divided = cfg.micro_batch_tokens is not None or parallel.world_size() > 1
        self._loss_of_whole = divided and loss_config.traits.of_batch
        self.optimizer_steps = 0  # number of steps so far
        self.beta, self.entropy_weight = loss_config.beta, cfg.entropy_weight
        self.bad_updates = BadUpdates(cfg.max_bad_updates)
        self.shuffle = torch.Generator().manual_seed(actor.seed)

    @property
    def _trained(self) -> List[nn.Parameter]:
        return [p for section in self.optimizer.param_groups for p in section['params']]

    def run(self, batch: Batch, update: int) -> Dict[str, float]:
        """Run all epochs, or fewer if ``target_kl`` or ``max_ratio`` stops them. Returns metrics (docs/metrics.md)."""
        steps: List[Dict[str, float]] = []
        with self._actor.aside():
            empty, noise = 0, self._noise(batch, update)
        if self._extras.values is not None:
            self._extras.values.begin(update)
        if self._extras.shadow is not None:
            self._extras.shadow.begin(update)
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
        metrics = dict(mean_of_steps(steps), **noise)
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
        cfg, batch, extras = self._cfg, mini_batch.to(self._device), self._extras
        self.optimizer.zero_grad()
        read = self._learn_rows(batch, self._slope(mini_batch) if self._loss_of_whole else None)
        shown = None if extras.demonstrations is None else self._learn_demonstrations(len(batch))
        trained = self._trained if extras.values is None else extras.values.trained(self._trained)
        for p in trained:
            if p.grad is None:  # no row of this process uses it
                p.grad = torch.zeros_like(p)
        gradients = [] if self._sharded else [p.grad for p in trained]
        parallel.all_reduce([*gradients, *read.values(), *([] if shown is None else [shown[0]])])
        if not self._actor.exact and mini_batch.logp_first is None:
            mini_batch.logp_first = self._logp_old(batch, read['logp']).cpu()  # for further epochs
        # clip_grad_norm_ in two steps, because it makes all gradients NaN if one is NaN or infinite
        norm = gradient_norm([p.grad for p in trained])
        metrics = self._metrics(batch, read, shown, norm)
        outcome = outcome_of(metrics, cfg.target_kl, cfg.max_ratio)
        if extras.shadow is not None and outcome != 'skipped_steps':
            with self._actor.aside():
                metrics.update(self._shadow_metrics(batch, read['logp']))
        if outcome == 'optimizer_steps':
            torch.nn.utils.clip_grads_with_norm_(trained, cfg.grad_clip_value, norm)
            self.optimizer.step()
            self.optimizer_steps += 1
        return dict(metrics, **{name: float(name == outcome) for name in OUTCOMES})

    def _learn_rows(self, batch: Batch, slope: Optional[Tensor]) -> Dict[str, Tensor]:
        """Add the gradients of a mini-batch, by its parts. ``slope`` (B, S), the gradient of the policy's loss with
        respect to log-probabilities, replaces this loss. Returns what was read, (B, S) by name."""
        values, teacher = self._extras.values, self._extras.teacher
        given = dict(critic=values and values.critic, teacher=teacher)
        names = ['logp', 'entropy', *(['value'] if values else []), *(OF_TEACHER if teacher else [])]
        read = {name: torch.zeros_like(batch.logp_old) for name in names}
        tokens = batch.weight.sum().item() if self.loss_config.reduction == 'token' else None
        for rows, part in batch.parts(self._cfg.micro_batch_tokens, self._sharded):
            found = self._actor.read(self._model, part, self.entropy_weight > 0, **given)  # (b, s) each
            share = len(rows) / len(batch)  # of the part in a mean over rows
            of_loss = share if tokens is None else 1
            if slope is None:
                loss = self._loss(part, found.logp, tokens)[0] * of_loss
            else:
                loss = (found.logp[:len(rows)] * slope[rows, :found.logp.shape[1]]).sum()
            if self.entropy_weight > 0:
                loss = loss - self.entropy_weight * share * sequence_mean(found.entropy, part.weight)
            if teacher is not None:
                loss = loss + self._of_teacher(part, found.divergence, found.teacher_kl, tokens)[0] * of_loss
            if values is not None:
                loss = values.add(loss, part, found.value, tokens, of_loss)
            loss.backward()
            for name, whole in read.items():
                of_part = getattr(found, name).detach()[:len(rows)]
                whole[rows, :of_part.shape[1]] = of_part
        return read

    @torch.no_grad()
    def _metrics(self, batch: Batch, read: Dict[str, Tensor], shown: Optional[Tuple[Tensor, Tensor]],
                 norm: Tensor) -> Dict[str, float]:
        """Metrics of a step, from what was read of its rows and of its demonstrations, and the gradient's norm."""
        logp, extras = read['logp'], self._extras
        loss, info = self._loss(batch, logp)
        metrics = step_metrics(
            batch, loss, info, logp, self._logp_old(batch, logp), read['entropy'], self.entropy_weight, norm,
            fresh_rows(batch, self.optimizer_steps)
        )
        if extras.teacher is not None:
            loss, of_teacher = self._of_teacher(batch, *(read[name] for name in OF_TEACHER))
            metrics.update(of_teacher, total_loss=metrics['total_loss'] + loss.item())
        if shown is not None:
            loss, of_shown = extras.demonstrations.loss(*shown, self._actor.max_length)
            metrics.update(of_shown, total_loss=metrics['total_loss'] + loss.item())
        if extras.values is not None:
            metrics.update(extras.values.metrics(metrics['total_loss'], batch, read['value']))
        return metrics

    def _learn_demonstrations(self, rows: int) -> Tuple[Tensor, Tensor]:
        """Add the gradients of demonstrations to those of ``rows`` rows; their log-probabilities and weights."""
        batch = self._extras.demonstrations.draw(rows, self._step_seed).to(self._device)
        logp, tokens = torch.zeros_like(batch.logp_old), self._extras.demonstrations.num_tokens(batch)  # (b, s)
        for at, part in batch.parts(self._cfg.micro_batch_tokens):
            found = self._actor.read(self._model, part).logp
            loss, _ = self._extras.demonstrations.loss(found, part.weight, self._actor.max_length, tokens)
            (loss * (1 if tokens is not None else len(at) / len(batch))).backward()
            logp[at, :found.shape[1]] = found.detach()
        return logp, batch.weight

    @property
    def _step_seed(self) -> int:
        """Of the random numbers of an optimizer step, independent of those of other steps, runs and purposes."""
        sequence = np.random.SeedSequence(self._actor.seed, spawn_key=(self.optimizer_steps, ))
        return int(sequence.generate_state(1, np.uint64)[0])

    def _loss(
            self,
            batch: Batch,
            logp: Tensor,
            tokens: Optional[float] = None,
            config: Optional[LossConfig] = None,
            with_info: bool = True
    ) -> Tuple:
        """Loss and info of rows. With ``tokens``, the number of tokens in the mini-batch, their part of its loss. With
        ``config``, another loss."""
        data = grpo_data(logp, self._logp_old(batch, logp), batch.logp_ref, batch.adv, batch.weight)
        config = replace(config or self.loss_config, beta=self.beta, max_length=self._actor.max_length)
        # the same draws in the loss and in its metrics, and in a resumed run
        config = config.drawing_from(torch.Generator().manual_seed(self._step_seed))
        return grpo_error(data, config, num_tokens=tokens, with_info=with_info)

    def _shadow_metrics(self, batch: Batch, logp: Tensor) -> Dict[str, float]:
        """What ``Shadow`` measures on a mini-batch. Neither weights nor their ``grad`` change."""
        metrics, slopes = self._extras.shadow.measure(
            batch, logp, lambda batch, logp, config: self._loss(batch, logp, None, config, with_info=False)[0]
        )
        if self._extras.shadow.weights_due:
            parts = self._parts(batch)
            metrics.update(self._extras.shadow.measure_weights(slopes, parts, self._read_with_gradient, self._trained))
        return metrics

    def _of_teacher(self, batch: Batch, divergence: Tensor, kl: Tensor, tokens: Optional[float] = None) -> Tuple:
        """Loss and metrics of the teacher; ``tokens`` as in ``_loss``."""
        return self._extras.teacher.loss(divergence, kl, batch.weight, self._actor.max_length, tokens)

    def _slope(self, mini_batch: Batch) -> Tensor:
        """Gradient (B, S) of the loss with respect to log-probabilities, from all rows, which are read once more."""
        batch, logp = mini_batch.to(self._device), self.read(mini_batch).to(self._device).requires_grad_()
        return torch.autograd.grad(self._loss(batch, logp)[0], logp)[0]

    def _noise(self, batch: Batch, update: int) -> Dict[str, float]:
        """The noise scales of the groups of an update, for the loss before the first step, when all ratios are 1."""
        every = self._cfg.noise_every
        if len(batch.group.unique()) < 2:
            return {}
        logp = self._logp_old(batch, batch.logp_old).detach().clone().requires_grad_()
        slope, = torch.autograd.grad(self._loss(batch, logp, with_info=False)[0], logp)  # (B, S)
        found = {} if batch.action.is_floating_point() else noise_of_table(batch, slope)
        if every > 0 and update % every == 0:
            found.update(noise_of_weights(batch, slope, self._parts, self._read_with_gradient, self._trained))
        return found

    def _parts(self, batch: Batch) -> List[Tuple[Tensor, Batch]]:
        return list(batch.parts(self._cfg.micro_batch_tokens))

    def _read_with_gradient(self, part: Batch) -> Tensor:
        return self._actor.read(self._model, part.to(self._device)).logp

    def _logp_old(self, batch: Batch, logp: Tensor) -> Tensor:
        """Log-probabilities (B, S) under pi_old, which the ratio is relative to."""
        if batch.logp_first is not None:
            return batch.logp_first
        return batch.logp_old if self._actor.exact else first_log_probs(batch, logp, self.optimizer_steps)

    def read(self, batch: Batch, model: Optional[nn.Module] = None) -> Tensor:
        """Log-probabilities (B, S) under a model (None: the trained one), without gradients."""
        return self._read_rows(lambda part: self._actor.read(model or self._model, part).logp, batch)

    def entropy(self, batch: Batch) -> Tensor:
        """Entropies (B, S) under the trained model, without gradients."""
        return self._read_rows(lambda part: self._actor.read(self._model, part).entropy, batch)

    def read_with_entropy(self, batch: Batch) -> Tuple[Tensor, Tensor]:
        """``read`` and ``entropy`` of the trained model, in one pass."""

        def of_part(part: Batch) -> Tensor:
            found = self._actor.read(self._model, part)
            return torch.stack([found.logp, found.entropy], dim=-1)

        return self._read_rows(of_part, batch, (2, )).unbind(-1)

    def score_norm(self, batch: Batch) -> Tensor:
        """The field (B, S) of a batch that ``token_advantage`` explains, under the trained model."""

        def of_part(part: Batch) -> Tensor:
            found = self._actor.read(self._model, part, squares=True)
            return 1 - 2 * found.logp.exp() + found.squares

        return self._read_rows(of_part, batch)

    def with_values(self, batch: Batch, discount_factor: float) -> Batch:
        """See ``ValueLearning.with_values``."""
        return self._extras.values.with_values(batch, discount_factor, self._read_rows)

    @torch.no_grad()
    def _read_rows(self, read: Callable[[Batch], Tensor], batch: Batch, each: Tuple[int, ...] = ()) -> Tensor:
        most = self._cfg.micro_batch_tokens
        return read_rows(read, batch, self._batch_size, most, self._device, self._sharded, each)
