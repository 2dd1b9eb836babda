"""Rows that an engine has sampled: the record that their run writes, and a sampler that gives them again."""
import os
import zlib
from collections import defaultdict, deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

import click
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_common import ConfigError, append_json, check_config, read_json_lines
from ding_grpo.act.sampler import ModelSampler, RowRequest, Sampler
from ding_grpo.learn.observer import Observer, View
from ding_grpo.logs.screen import run_folder
from ding_grpo.model import CausalLM
from ding_grpo.rollout import Rollout, Sampling

from .options import KEY

FOLDER = os.path.join('log', 'collector', 'rows')


class RowRecord(Observer):
    """Writes the rows of each collect: files of JSON lines by collect, a line for each row."""

    def __init__(self, view: View) -> None:
        self._actor = view.actor
        self._folder: Optional[str] = None  # until a run begins

    def begin(self, learner: Any, collector: Any) -> None:
        self._folder = os.path.join(run_folder(learner.exp_name), FOLDER)

    def sampled(self, groups: List[Any]) -> None:
        for group in groups if self._folder is not None else ():
            path = _file(self._folder, group.sample['collect_iter'])
            for row in _rows(group.sample):
                append_json(path, dict(row, exact=self._actor.sampler.exact))


def _file(folder: str, collect_iter: int) -> str:
    return os.path.join(folder, f'{collect_iter}.jsonl')


def _rows(sample: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """The rows of a group: for each turn, what identifies the tokens before it, and what was sampled."""
    episode, after = sample.get('episode'), sample['sampled_after']
    for row, n in enumerate(sample['length'].tolist()):
        prompt = sample['prompts'][row] if 'prompts' in sample else sample['prompt']
        fields = dict(action=sample['action'][row, :n], logp=sample['logp_old'][row, :n])
        fields['after'] = after[row, :n] if isinstance(after, Tensor) else torch.full((n, ), after)
        if 'kept' in sample:
            fields['kept'] = sample['kept'][row, :n]
        ids, own = torch.cat([prompt, fields['action']]), sample['weight'][row, :n] != 0
        turns = []
        for turn in sample['turn'][row, :n][own].unique().tolist():
            place = (own & (sample['turn'][row, :n] == turn)).nonzero().squeeze(1)
            before = _digest(ids[:len(prompt) + int(place[0])])
            turns.append(dict(before=before, **{name: x[place].tolist() for name, x in fields.items()}))
        yield dict(group=sample['group_id'], text=row, row=row if episode is None else int(episode[row]), turns=turns)


def _digest(ids: Tensor) -> int:
    return zlib.crc32(ids.numpy().tobytes())


def from_record(policy: Dict[str, Any], run: str) -> None:
    """Change the section ``policy`` of a run in this folder so that it samples without an engine: what the engine has
    sampled, if the run recorded it, else by the model."""
    if policy.get('collect', {}).get('engine') is not None:
        known = os.path.isdir(os.path.join(run, FOLDER))
        policy['collect'].update(engine=dict(type='recorded', run=os.path.abspath(run)) if known else None)
        policy['collect'].update(max_staleness=0, in_flight=False)


class Turn(NamedTuple):
    """What was sampled for one request, T tokens."""
    action: Tensor  # (T, )
    logp: Tensor  # (T, )
    after: Tensor  # (T, ), number of optimizer steps before each
    kept: Optional[Tensor] = None  # (T, K)


class RecordedSampler(Sampler):
    """Gives the rows of a record, whatever the weights. Rows that it does not have are sampled by the model: greedy
    ones, those of a changed task, and those with tokens that are forced. It says how many."""

    def __init__(self, cfg: Dict, model: CausalLM) -> None:
        """``cfg`` is the section ``policy``."""
        engine = cfg.collect.engine
        check_config(engine, dict(type=None, run=None), {}, KEY)
        self._folder = os.path.join(str(engine.get('run')), FOLDER)
        if not os.path.isdir(self._folder):
            raise ConfigError(
                f"{KEY}.run = {engine.get('run')!r}: must be the folder of a run whose engine had record=True; there "
                f'is no {self._folder}.'
            )
        if cfg.collect.extra_rows > 0:
            raise ConfigError(f'policy.collect.extra_rows = {cfg.collect.extra_rows}: not available with {KEY}.')
        self._model, self._collect_iter = ModelSampler(model), None
        self._left: Dict[Tuple, Deque[Turn]] = {}  # of the collect, by group, row and what is before

    def bind(self, spec: NamedTuple, sampling: Sampling) -> None:
        self._model.bind(spec, sampling)

    def sample(self, request: RowRequest) -> Rollout:
        if request.uniform is None:
            return self._model.sample(request)
        number, forced = len(request.prompts), {line for line, _ in request.forced}
        found = {i: turn for i in range(number) if i not in forced and (turn := self._take(request, i)) is not None}
        others = [i for i in range(number) if i not in found]
        if others:
            click.echo(f'{KEY}: the model samples {len(others)} of {number} rows, which are not in the record')
        if not found:
            return self._model.sample(request)
        if others:
            after = max(int(turn.after.max()) for turn in found.values())
            found.update(zip(others, _turns(self._model.sample(_part(request, others)), after)))
        return _rollout([found[i] for i in range(number)])

    def _take(self, request: RowRequest, line: int) -> Optional[Turn]:
        collect_iter, *place = request.row_keys[request.env_ids[line]][:3]
        if collect_iter != self._collect_iter:
            self._read(collect_iter)
        left = self._left.get((*place, _digest(request.prompts[line])))
        return left.popleft() if left else None

    def _read(self, collect_iter: int) -> None:
        """Read the rows of a collect; of one that a resumed run repeated, the last ones."""
        path = _file(self._folder, collect_iter)
        if not os.path.exists(path):
            raise ConfigError(f'{KEY}: the record has no collect after {collect_iter} updates; there is no {path}.')
        rows = {(row['group'], row['text']): row for row in read_json_lines(path)}
        self._collect_iter, self._left = collect_iter, defaultdict(deque)
        for row in rows.values():
            self.exact = row['exact']
            for turn in row['turns']:
                place = row['group'], row['row'], turn.pop('before')
                self._left[place].append(Turn(**{name: torch.tensor(x) for name, x in turn.items()}))

    def forget(self, env_ids: Optional[List[int]]) -> None:
        self._model.forget(env_ids)


def _part(request: RowRequest, lines: List[int]) -> RowRequest:
    """Some rows of a request."""
    places = {(lines.index(line), t): token for (line, t), token in request.forced.items() if line in lines}
    of_rows = dict(env_ids=[request.env_ids[i] for i in lines], prompts=[request.prompts[i] for i in lines])
    limit = None if request.limit is None else request.limit[lines]
    return request._replace(**of_rows, uniform=request.uniform[lines], limit=limit, forced=places)


def _turns(rollout: Rollout, after: int) -> List[Turn]:
    turns = []
    for row, n in enumerate(rollout.length.tolist()):
        kept = None if rollout.kept is None else rollout.kept[row, :n].cpu()
        action, logp = rollout.action[row, :n].cpu(), rollout.logp[row, :n].cpu()
        turns.append(Turn(action, logp, torch.full_like(action, after), kept))
    return turns


def _rollout(turns: List[Turn]) -> Rollout:

    def padded(name: str, value: int) -> Tensor:
        return pad_sequence([getattr(turn, name) for turn in turns], batch_first=True, padding_value=value)

    return Rollout(
        padded('action', -1), torch.tensor([len(turn.action) for turn in turns]), padded('logp', 0),
        None if turns[0].kept is None else padded('kept', -1), padded('after', -1)
    )
