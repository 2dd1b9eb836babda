"""Compares rows of each batch before its first step, so that a run ends when the engine has other weights."""
from typing import Any, Dict

import torch

from ding_common import PeerError
from ding_grpo.data.batch import Batch
from ding_grpo.learn.log_probs import fresh_rows
from ding_grpo.learn.observer import Observer, View

from .options import KEY
from .proof import Gap, prove

ROWS = 16  # of a batch that are read for it, at most


class GapCheck(Observer):
    """Ends a run whose engine samples with other weights than those that are learned."""

    def __init__(self, view: View) -> None:
        self._sampler, self._updater = view.actor.sampler, view.updater

    def begin(self, learner: Any, collector: Any) -> None:
        self._sampler.log_folder = learner.exp_name

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        fresh = fresh_rows(batch, self._updater.optimizer_steps).squeeze(1).nonzero().squeeze(1)
        metrics = dict(seconds_weights=self._sampler.seconds_sending)
        if len(fresh) == 0 or self._sampler.bounds is None:
            return metrics
        rows = batch.take(fresh[torch.linspace(0, len(fresh) - 1, min(ROWS, len(fresh))).long()])
        gap = Gap.of(self._updater.read(rows).cpu(), rows.logp_old, rows.weight != 0)
        if not self._sampler.bounds.hold(gap):
            self._end(update, gap)
        return metrics

    def _end(self, update: int, gap: Gap) -> None:
        bounds = self._sampler.bounds
        told = (
            f'{KEY}: in update {update}, the engine\'s log-probabilities differ from the learner\'s by {gap.mean:.1e} '
            f'nats in the mean and {gap.largest:.1e} at most, where {bounds.mean:.1e} and {bounds.largest:.1e} are '
            'accepted.'
        )
        try:
            prove(self._sampler)
        except PeerError as error:
            raise PeerError(f'{told} {error.message}') from error
        raise PeerError(f'{told} Weights that are sent now arrive: those of this batch were others.')
