"""
A chain of digests, ``log/learner/digests.jsonl``: a line of the settings and the machine for each start of a run, and a
line for each update with what was drawn, sampled, scored, compared and learned. ``python -m ding_grpo.bisect`` finds
where two chains part, ``python -m ding_grpo.verify`` repeats updates and compares.
"""
import json
import os
import zlib
from itertools import islice
from typing import Any, Dict, List

import numpy as np
import torch
from ding.worker import LearnerHook
from torch import Tensor, nn

from ding_common import parallel, read_total_config
from ding_common.config.total_config import leaves
from ding_common.versions import machine
from ding_grpo.data.batch import Batch, map_tensors
from ding_grpo.learn.observer import Observer, View
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import log_file, run_folder, show
from ding_grpo.model.sharding import is_sharded

from .hashes import coded, digest_parts, digests, digests_of, of_rows, on_host

NAME = 'digests.jsonl'
MOST_STEPS = 2 ** 13  # steps of an update up to which its line has the ids of their tokens, and not their hashes alone
# Elements of a gradient that are hashed. All of them, and all weights, would take over 1 % of an update of SmolLM2; a
# gradient that differs beyond them makes other weights.
MOST_ELEMENTS = 2 ** 16
PARTS = 8  # of a weight of more elements, of which an update's line has one, each in its turn
MOST_ROWS = 2 ** 9  # rows of a mini-batch up to which its line has each


class Digests(Observer):
    """Writes the chain in the first process. Of a model that is divided among processes there are no tensors in it."""

    def __init__(self, view: View) -> None:
        self._cuda, self._model, self._updater = view.cfg.cuda, view.model, view.updater
        self._named = {id(p): name for name, p in view.model.named_parameters()}
        self._divided = is_sharded(view.model)
        self._altered: List[str] = []  # tensors that are not as the checkpoint's run has saved them
        self.record: Dict[str, Any] = {}  # the line of the last update, without its number
        # Of the steps of this update, where they were computed, so that a GPU is waited for as seldom as possible.
        self._first: List[Tensor] = []  # of the first one: places of its rows, their lengths and log-probabilities
        self._logp: List[Tensor] = []
        self._update = 0
        self._limit, self._size = view.cfg.instruments.digests_limit * 1e6, 0  # bytes of the file
        self._full = False  # whether the file has reached them
        self._gradients: List[Tensor] = []

    def hooks(self) -> List[LearnerHook]:
        return [CallHook('digests', 15, position='after_iter', function=self._write)] if parallel.rank() == 0 else []

    def begin(self, learner: 'BaseLearner', collector: 'GroupCollector') -> None:  # noqa
        if parallel.rank() > 0:
            return
        settings = dict(leaves(read_total_config(run_folder(learner.exp_name))))
        line = dict(
            begin=learner.train_iter,
            machine=machine(self._cuda),
            settings={key: repr(value)
                      for key, value in settings.items()},
            names=[self._named.get(id(p), f'weight {i}, not of the model') for i, p in enumerate(self._trained)],
            weights=digests(self._trained),
            altered=self._altered,
        )
        self._size = _append(log_file(learner, NAME), line)

    @property
    def _trained(self) -> List[nn.Parameter]:
        return [] if self._divided else self._updater.trained

    def _in_turn(self) -> List[Tensor]:
        """The weights, of large ones the part whose turn it is."""
        turn = self._update % PARTS
        flat = [p.detach().contiguous().flatten() for p in self._trained]
        return [x if len(x) <= MOST_ELEMENTS else x.tensor_split(PARTS)[turn] for x in flat]

    def before(self, update: int, batch: Batch, learned: Batch) -> Dict[str, float]:
        if parallel.rank() == 0:
            self._update = update
            compared = _of_places(*on_host([_places(learned), learned.length, learned.adv]))
            self.record = dict(of_samples(batch), compared=compared)
            self._first, self._logp, self._gradients = [], [], []
        return {}

    def step(self, batch: Batch, logp: Tensor) -> Dict[str, float]:
        if parallel.rank() == 0:
            if not self._logp:
                self._first = [_places(batch), batch.length, logp.detach()] if len(batch) <= MOST_ROWS else []
                found = [p.new_zeros(0) if p.grad is None else p.grad for p in self._trained]
                # copied, because gradients are clipped in place, and read with the rest: a GPU is waited for once
                self._gradients = [part.clone() for part in digest_parts(found, MOST_ELEMENTS)]
            self._logp.append(logp)
        return {}

    def after(self, new: Batch, learned: Batch, metrics: Dict[str, float]) -> None:
        if parallel.rank() == 0:
            parts = [self._first, digest_parts(self._logp), self._gradients, digest_parts(self._in_turn())]
            found = iter(on_host([part for one in parts for part in one]))
            first, steps, gradients, weights = ([*islice(found, len(one))] for one in parts)
            self.record.update(
                read=_of_places(*first) if first else {},
                gradients=digests_of(gradients),
                steps=[digest for digest, *_ in digests_of(steps)],
                loss={name: value
                      for name, value in metrics.items() if name != 'cur_lr'},
                rate=metrics['cur_lr'],
                weights=digests_of(weights),
            )

    def _write(self, engine: 'BaseLearner') -> None:  # noqa
        update, path = engine.last_iter.val, log_file(engine, NAME)
        line = dict(update=update, **self.record)
        if self._size >= self._limit:
            if not self._full:
                show(f'{path}: has reached policy.instruments.digests_limit. Lines of further updates are short.')
            self._full = True
            checkpoint = os.path.join(run_folder(engine.exp_name), 'ckpt', f'iteration_{update}.pth.tar')
            line = line if os.path.exists(checkpoint) else short(line)
        self._size = _append(path, line)

    def state_dict(self) -> Dict[str, str]:
        """The hash of each tensor of a checkpoint, of the model and of the optimizer."""
        if self._divided:
            return {}
        found = {f'model {name}': x for name, x in self._model.state_dict().items()}
        for number, kept in self._updater.optimizer.state_dict()['state'].items():
            found.update((f'optimizer {number} {name}', x) for name, x in kept.items())
        found = {name: x for name, x in found.items() if type(x) is torch.Tensor}
        return {name: digest for name, (digest, *_) in zip(found, digests([*found.values()]))}

    def load_state_dict(self, state: Dict[str, str]) -> None:
        """Compare what has been loaded with what the checkpoint's run has saved."""
        own = self.state_dict()
        self._altered = [name for name, value in state.items() if own.get(name, value) != value]
        if self._altered:
            show(f'the checkpoint is not as its run has saved it: {self._altered[0]} and {len(self._altered) - 1} more')


def _append(path: str, line: Dict[str, Any]) -> int:
    """As ``append_json``, in a third of the time: of these long lines, all is ASCII. Returns the size of the file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(line, separators=(',', ':')) + '\n')
        return f.tell()


def short(line: Dict[str, Any]) -> Dict[str, Any]:
    """The line of an update with a hash for each stage in place of those of rows and tensors; of a short one itself."""
    if 'short' in line:
        return line
    scored, compared, read = (line[stage] for stage in ('scored', 'compared', 'read'))
    stages = dict(
        drawn=dict(problems=[line['drawn'], line['rows']]),
        sampled=dict(steps=[line['sampled'][key] for key in ('length', 'hash')], logp=line['sampled']['logp']['hash']),
        scored=dict(rewards=[scored[key] for key in ('hash', 'parts', 'failed')]),
        compared=dict(advantages=[compared[key] for key in ('row', 'hash')]),
        read=dict(logp=[read.get(key) for key in ('row', 'hash')]),
        **{stage: dict(tensors=[digest[0] for digest in line[stage]])
           for stage in ('gradients', 'weights')},
    )
    hashes = {stage: {what: _crc(value) for what, value in of.items()} for stage, of in stages.items()}
    return dict(short=hashes, **{key: line[key] for key in ('update', 'steps', 'loss', 'rate')})


def _crc(value: Any) -> str:
    return f'{zlib.crc32(json.dumps(value).encode()):08x}'


def of_samples(batch: Batch) -> Dict[str, Any]:
    """The stages ``drawn``, ``sampled`` and ``scored`` of an update, of rows in the order of the batch."""
    lengths, first = batch.length.tolist(), (batch.row == 0).nonzero().squeeze(1)
    problem = torch.full_like(batch.group_id, -1) if batch.problem is None else batch.problem
    drawn = [*(x[first] for x in (batch.group_id, batch.collect_iter, problem)), torch.tensor(_starts(batch, first))]
    rows, weight = (x.cpu().contiguous().numpy() for x in (batch.action, batch.weight))
    hashes = [zlib.crc32(w[:n], zlib.crc32(row[:n])) for row, w, n in zip(rows, weight, lengths)]
    sampled = dict(
        length=coded(batch.length.numpy()),
        hash=coded(np.array(hashes, np.uint32)),
        logp=of_rows(batch.logp_old.numpy(), lengths),
    )
    if rows.dtype == np.int64 and rows.ndim == 2 and sum(lengths) <= MOST_STEPS:
        sampled['ids'] = coded(np.concatenate([row[:n] for row, n in zip(rows, lengths)]))
    parts = {name: coded(part.numpy()) for name, part in batch.reward_parts.items()}
    return dict(
        drawn=torch.stack(drawn, dim=1).tolist(),
        rows=first.diff(append=torch.tensor([len(batch)])).tolist(),
        sampled=sampled,
        scored=dict(of_rows(batch.reward.numpy(), lengths), parts=parts, failed=coded(batch.failed.long().numpy())),
    )


def _starts(batch: Batch, rows: Tensor) -> List[int]:
    """The hash of what some rows begin with: the prompt, or the first observation."""
    if batch.prompts is not None:
        return [zlib.crc32(batch.prompts[row].cpu().numpy()) for row in rows.tolist()]
    counts = (batch.weight != 0).sum(1)
    at, found = (counts.cumsum(0) - counts).clamp(max=int(counts.sum()) - 1)[rows], [0] * len(rows)

    def add(x: Tensor) -> Tensor:
        found[:] = [zlib.crc32(row, value) for row, value in zip(x[at].cpu().contiguous().numpy(), found)]
        return x

    map_tensors(add, batch.obs)
    return found


def _of_places(places: np.ndarray, length: np.ndarray, numbers: np.ndarray) -> Dict[str, Any]:
    """Which rows these are, with numbers of their steps (B, S): advantages, or log-probabilities under the weights."""
    return dict(row=coded(places), **of_rows(numbers, length.tolist()))


def _places(batch: Batch) -> Tensor:
    """Group and row of each row (B, 2)."""
    return torch.stack([batch.group_id, batch.row], dim=1)
