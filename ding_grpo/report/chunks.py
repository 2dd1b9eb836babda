"""
The sampled completions of a run. The page contains them in compressed chunks, and decodes a chunk when it is shown, so
that it opens as fast with 50 MB of completions as with none. A chunk is a JSON list of groups.
"""
import base64
import json
import os
import zlib
from itertools import groupby
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

CHUNK = 400_000  # characters of JSON
_LISTS = ('advantage', 'logp_old', 'logp', 'entropy', 'logp_new')


class Place(NamedTuple):
    """
    Overview:
        Where a group is, and what it can be sorted by. ``mean`` and ``spread`` (largest minus smallest) are of the \
        rewards of its recorded rows; None if none was scored.
    """
    chunk: int
    index: int
    mean: Optional[float]
    spread: Optional[float]


class Source(NamedTuple):
    """
    Overview:
        A file of completions: its groups by update, and its chunks, each a compressed text in base64.
    """
    name: str
    updates: List[Tuple[int, List[Place]]]
    chunks: List[str]


def read_sources(folder: str) -> List[Source]:
    """
    Overview:
        Read all completions of a run.
    Arguments:
        - folder (:obj:`str`): The folder ``log`` of the run.
    Returns:
        - sources (:obj:`List[Source]`): One for each file that exists and has a record.
    """
    files = dict(
        tokens=(os.path.join(folder, 'learner', 'tokens.jsonl'), _of_tokens),
        training=(os.path.join(folder, 'collector', 'completions.jsonl'), _of_table),
        evaluation=(os.path.join(folder, 'evaluator', 'evaluations.jsonl'), _of_evaluations),
    )
    sources = [_source(name, read(path)) for name, (path, read) in files.items() if os.path.exists(path)]
    return [source for source in sources if source.updates]


def _source(name: str, groups: Iterator[Dict[str, Any]]) -> Source:
    source, waiting, size = Source(name, [], []), [], 0
    for group in map(_finite, groups):
        text = json.dumps(group, ensure_ascii=False, separators=(',', ':'), allow_nan=False)
        rewards = [row['reward'] for row in group['rows'] if row['reward'] is not None and not row.get('failed')]
        mean = sum(rewards) / len(rewards) if rewards else None
        place = Place(len(source.chunks), len(waiting), mean, max(rewards) - min(rewards) if rewards else None)
        if not source.updates or source.updates[-1][0] != group['update']:
            source.updates.append((group['update'], []))
        source.updates[-1][1].append(place)
        waiting.append(text)
        size += len(text)
        if size >= CHUNK:
            source.chunks.append(_compressed(waiting))
            waiting, size = [], 0
    if waiting:
        source.chunks.append(_compressed(waiting))
    return source


def _compressed(texts: List[str]) -> str:
    return base64.b64encode(zlib.compress(f"[{','.join(texts)}]".encode(errors='replace'), 6)).decode()


def _lines(path: str) -> Iterator[Dict[str, Any]]:
    """The records of a file of JSON lines, one at a time; a last line that is being written is skipped."""
    with open(path, encoding='utf-8') as f:
        for line in f:
            if line.endswith('\n'):
                yield json.loads(line)


def _of_tokens(path: str) -> Iterator[Dict[str, Any]]:
    for record in _lines(path):
        rows = [
            dict(
                {key: row[key]
                 for key in ('row', 'reward', 'reward_parts', 'truncated', 'failed', 'text')},
                own=None if all(row['own']) else row['own'],
                **{key: [_short(x) for x in row[key]]
                   for key in _LISTS},
            ) for row in record['rows']
        ]
        yield dict(update=record['train_iter'], group=record['group'], prompt=record['prompt'], rows=rows)


def _of_table(path: str) -> Iterator[Dict[str, Any]]:
    for update, records in groupby(_lines(path), lambda record: record['train_iter']):
        groups: Dict[int, Dict[str, Any]] = {}
        for record in records:
            key = ('index', 'kind', 'prompt')
            group = groups.setdefault(
                record['group'], dict({k: record.get(k)
                                       for k in key}, update=update, group=record['group'], rows=[])
            )
            group['rows'].append({k: v for k, v in record.items() if k not in (*key, 'train_iter', 'group', 'turns')})
        yield from groups.values()


def _of_evaluations(path: str) -> Iterator[Dict[str, Any]]:
    for record in _lines(path):
        for episode in record.get('completions', []):
            row = {k: v for k, v in episode.items() if k not in ('index', 'kind', 'prompt', 'return', 'turns')}
            row['reward'] = episode['return']
            yield dict(
                {k: episode.get(k)
                 for k in ('index', 'kind', 'prompt')},
                update=record['train_iter'],
                group=None,
                rows=[row]
            )


def _short(x: float) -> float:
    return float(f'{x:.5g}')


def _finite(value: Any) -> Any:
    """The value with None in place of NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and (value != value or value in (float('inf'), float('-inf'))) else value
