"""Watches the updates of a run for known causes of a failure to learn. It changes nothing that is trained."""
import math
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch
from ding.worker import LearnerHook
from torch import Tensor, nn

from ding_common import append_json, parallel
from ding_grpo.config.sections.processors import processor_arguments
from ding_grpo.data.batch import Batch
from ding_grpo.learn.log_probs import fresh_rows
from ding_grpo.learn.observer import Observer, View
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import run_folder, show

from .causes import CAUSES, EXPLAINS, OF_REWARD
from .evidence import checksum, of_change, of_mask, of_samples
from .findings import PAGE, page
from .history import History, Setting
from .scorer_trial import of_probes

FINDINGS = 'findings.jsonl'
PROBED = 3  # problems whose demonstration is compared with junk before the first update
EACH_BEFORE, EVERY = 10, 20  # an update is looked at closely if it is one of the first ten, or every twentieth
# Rows that are read before and after such an update: a quarter of the update's, within these bounds.
# docs/results/speed.md has what this costs a run of 100 updates.
LEAST_ROWS, MOST_ROWS = 4, 32


class Look(NamedTuple):
    """Rows of an update that is looked at closely, with their log-probabilities and entropies before it, (B, S), and
    whether the weights before it sampled them, (B, 1)."""
    batch: Batch
    logp: Tensor
    entropy: Tensor
    fresh: Tensor


class Watch(Observer):
    """Collects figures of a run and finds causes in them, each once: shows it, and appends it to ``findings.jsonl`` in
    the run's folder, ``update``, ``cause``, ``message``, and the figures that it rests on. At the end of the run it
    writes a page. Its state is plain numbers, the same in all processes of a run."""

    def __init__(self, view: View) -> None:
        self._cfg, self._actor, self._model, self._updater = view.cfg, view.actor, view.model, view.updater
        self._reference = view.reference
        self._look: Optional[Look] = None  # of the update under way
        self.history = History()
        self._shown = 0  # findings that have been shown

    def hooks(self) -> List[LearnerHook]:
        return [
            CallHook('findings', 20, position='after_iter', function=self.show),
            CallHook('findings_page', 120, position='after_run', function=self.write_page),
        ]

    def begin(self, learner: 'BaseLearner', collector: 'GroupCollector') -> None:  # noqa
        """Make the file, and compare what the scorer pays for demonstrations and for junk, unless this is a resumed
        run."""
        self._shown = len(self.history.found)
        if parallel.rank() == 0:  # a file without findings says that they were looked for
            os.makedirs(run_folder(learner.exp_name), exist_ok=True)
            open(_path(learner), 'a', encoding='utf-8').close()
        if self.history.updates == 0:
            self.probed(parallel.broadcast_object(collector.probe(PROBED) if parallel.rank() == 0 else None))
            self.show(learner)

    def show(self, engine: 'BaseLearner') -> None:  # noqa
        """Show what was found since the last call, and append it to the file."""
        new, self._shown = self.history.found[self._shown:], len(self.history.found)
        for finding in new if parallel.rank() == 0 else []:
            append_json(_path(engine), finding)
            show(f"finding after update {finding['update']}, {finding['cause']}: {finding['message']}")

    def write_page(self, engine: 'BaseLearner') -> None:  # noqa
        self.show(engine)  # what the last evaluation showed
        if engine.rank == 0:
            path = os.path.normpath(os.path.join(run_folder(engine.exp_name), PAGE))
            with open(path, 'w', encoding='utf-8') as f:
                f.write(page(engine.exp_name, self.history.state_dict()))
            show(f"findings: {', '.join(found['cause'] for found in self.history.found) or 'none'} ({path})")

    def _setting(self) -> Setting:
        spec, learn, collect = self._actor.spec, self._cfg.learn, self._cfg.collect
        narrow = dict(temperature=collect.temperature) if collect.temperature < 1 else {}
        kept = dict(top_k=collect.top_k, top_p=collect.top_p, **processor_arguments(collect.processors))
        narrow.update((name, kept[name]) for name in ('top_k', 'min_p') if kept.get(name))
        narrow.update((name, kept[name]) for name in ('top_p', 'typical_p') if (kept.get(name) or 1) < 1)
        return Setting(
            tokens=spec is not None,
            turns=1 if spec is None else spec.max_turns,
            exact=self._actor.exact,
            learning_rate=learn.learning_rate,
            temperature=collect.temperature,
            narrow=' and '.join(f'policy.collect.{name} = {value:g}' for name, value in narrow.items()),
            masks_truncated=learn.mask_truncated,
            return_part=getattr(spec, 'return_part', None),
            reward_weights={} if spec is None else dict(spec.reward_weights),
        )

    def probed(self, probes: List[Dict[str, Any]]) -> None:
        """Find causes in the scores of texts that no policy wrote, before the first update; see ``of_probes``."""
        self.history.probes = probes
        cause = of_probes(probes)
        if cause is not None and self._concerned(cause[0]):
            self._tell(*cause)

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        self._look = self.look(learned)
        return {}

    def look(self, batch: Batch) -> Optional[Look]:
        """Read some rows before the update that learns from them, if it is one of those that are looked at closely."""
        update = self.history.updates
        due = update < EACH_BEFORE or update % EVERY == 0
        if not due or update < self._cfg.learn.critic.value_warmup:
            return None
        batch = batch.take(torch.arange(min(MOST_ROWS, max(LEAST_ROWS, len(batch) // 4), len(batch))))
        if not batch.weight.any():
            return None
        fresh = fresh_rows(batch, self._updater.optimizer_steps)
        with _still(self._model):
            return Look(batch, *self._updater.read_with_entropy(batch), fresh)

    def after(self, new: Batch, learned: Batch, metrics: Dict[str, float]) -> None:
        history, closely = self.history, None
        if self._look is not None and metrics['optimizer_steps'] > 0:
            closely = self._change(self._look)
        spec = self._actor.spec
        samples = of_samples(new, None if spec is None else spec.reward_weights) if len(new) else {}
        history.add(samples, of_mask(learned), metrics, closely)
        reference = None if self._reference is None else self._reference.frozen
        if reference is not None and (closely is not None or history.reference is None):
            history.add_reference(checksum(reference, trained=reference is not self._model))
        self._seek()

    def _change(self, look: Look) -> Dict[str, float]:
        with _still(self._model):
            return of_change(*look, self._updater.read(look.batch))

    def _seek(self) -> None:
        history = self.history
        if not history.recent:  # every sample has failed so far
            return
        setting = self._setting()
        for name, find in CAUSES.items():
            if name in {found['cause'] for found in history.found} or not self._concerned(name):
                continue
            if any(name in EXPLAINS.get(found['cause'], ()) for found in history.found):
                continue
            figures = find(history, setting)
            if figures is not None:
                self._tell(name, figures)

    def _concerned(self, cause: str) -> bool:
        return self._cfg.learn.advantage != 'none' or cause not in OF_REWARD

    def _tell(self, cause: str, figures: Dict[str, Any]) -> None:
        self.history.found.append(dict(dict(update=self.history.updates, cause=cause), **figures))

    def sampled(self, groups: List['Collected']) -> None:  # noqa
        infos = [info for group in groups for info in group.infos]
        returns = [info['return'] for info in infos if 'return' in info and info.get('failed') is None]
        if returns:
            self.history.add_returns(returns)

    def evaluated(self, greedy: float, sampled: Optional[float], cut_at_bar: float = 0.0) -> None:
        """
        Add an evaluation, from which ``_seek`` finds causes; if it ends the run, find them now. ``greedy`` is the mean
        return of the most probable actions, ``sampled`` that of sampled episodes from the same starts; None: that of
        training, in environments whose starts are of one kind. ``cut_at_bar`` is the share of the completions that a
        limit cut and that reach the bar, if the evaluation ends the run.
        """
        if sampled is None and self._actor.spec is None and self.history.returns:
            sampled = self.history.returns[-1]
        self.history.add_evaluation(greedy, sampled)
        if cut_at_bar > 0:
            self.history.cut_at_bar = cut_at_bar
            self._seek()

    def reference_renewed(self) -> None:
        self.history.reference = None

    def state_dict(self) -> Dict[str, Any]:
        """Its history, without what is not known yet."""
        return {name: x for name, x in self.history.state_dict().items() if x not in (None, math.inf, -math.inf)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.history = History(**state)


def _path(engine: 'BaseLearner') -> str:  # noqa
    return os.path.join(run_folder(engine.exp_name), FINDINGS)


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Keeps running means, and the random numbers of dropout, as they are while the model reads."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
