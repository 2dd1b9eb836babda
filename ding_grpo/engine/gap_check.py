"""Compares rows of each batch before its first step, so that a run ends when the engine has other weights."""
from contextlib import nullcontext
from typing import Any, Dict

import torch
from torch import Tensor

from ding_common import PeerError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.observer import Observer, View

from .options import KEY
from .proof import Bounds, Gap, exchanged, prove

ROWS = 16  # of a batch that are read for it, at most


class GapCheck(Observer):
    """Ends a run whose engine samples with other weights than those that it was sent. Rows that were sampled before the
    last updates are read with the weights of then, of which copies are kept."""

    def __init__(self, view: View) -> None:
        self._sampler, self._updater = view.actor.sampler, view.updater
        self._most = view.cfg.collect.max_staleness
        self._kept: Dict[int, Dict[str, Tensor]] = {}  # weights by the number of optimizer steps

    def begin(self, learner: Any, collector: Any) -> None:
        self._sampler.pool.log_folder = learner.exp_name

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        now = self._updater.optimizer_steps
        known = self._known(batch, now).any(1).nonzero().squeeze(1)
        bounds = self._sampler.bounds
        if len(known) > 0 and bounds is not None:
            rows = batch.take(known[torch.linspace(0, len(known) - 1, min(ROWS, len(known))).long()])
            gap = Gap.of(self._read(rows, now), rows.logp_old, self._known(rows, now))
            if not bounds.hold(gap):
                self._end(update, gap, bounds)
        self._keep(now)
        return dict(seconds_weights=self._sampler.pool.seconds.value)

    def _known(self, batch: Batch, now: int) -> Tensor:
        """The tokens (B, S) that were sampled with weights of which there are copies."""
        return torch.isin(_by_token(batch), torch.tensor([now, *self._kept])) & (batch.weight != 0)

    def _read(self, rows: Batch, now: int) -> Tensor:
        """Log-probabilities (B, S) under the weights that each known token was sampled with."""
        logp, weights = torch.zeros_like(rows.logp_old), self._sampler.transfer.weights()
        for steps in _by_token(rows)[self._known(rows, now)].unique().tolist():
            with nullcontext() if steps == now else exchanged(weights, self._kept[steps]):
                logp = torch.where(_by_token(rows) == steps, self._updater.read(rows).cpu(), logp)
        return logp

    def _keep(self, now: int) -> None:
        """Keep the weights of now for the rows of later updates."""
        if self._most == 0:
            return
        weights = self._sampler.transfer.weights()
        self._kept[now] = {name: w.detach().to('cpu', copy=True) for name, w in weights.items()}
        for steps in list(self._kept)[:-self._most]:
            del self._kept[steps]

    def _end(self, update: int, gap: Gap, bounds: Bounds) -> None:
        told = (
            f'{KEY}: in update {update}, the engine\'s log-probabilities differ from the learner\'s by {gap.mean:.1e} '
            f'nats in the mean and {gap.largest:.1e} at most, where {bounds.mean:.1e} and {bounds.largest:.1e} are '
            'accepted.'
        )
        if not all(w.numel() for w in self._sampler.transfer.weights().values()):  # a divided model is not whole now
            raise PeerError(told)
        try:
            with self._sampler.pool.turn():
                prove(self._sampler)
        except PeerError as error:
            raise PeerError(f'{told} {error.message}') from error
        raise PeerError(f'{told} Weights that are sent now arrive: those of this batch were others.')


def _by_token(batch: Batch) -> Tensor:
    """``sampled_after`` of each token, (B, S)."""
    after = batch.sampled_after
    return after if after.dim() == 2 else after.unsqueeze(1).expand_as(batch.weight)
