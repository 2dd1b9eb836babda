"""
The sampled completions of a run. The page contains them in compressed chunks, and decodes a chunk when it is shown, so
that it opens as fast with 50 MB of completions as with none. A chunk is a JSON list of groups.
"""
import base64
import json
import os
import zlib
from itertools import groupby
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from ding_common import json_lines

CHUNK = 400_000  # characters of JSON
_LISTS = ('advantage', 'logp_old', 'logp', 'entropy', 'logp_new')


class Place(NamedTuple):
    """Where a group is, and what it can be sorted by. ``mean`` and ``spread`` (largest minus smallest) are of the
    rewards of its recorded rows; None if none was scored."""
    chunk: int
    index: int
    mean: Optional[float]
    spread: Optional[float]


class Source(NamedTuple):
    """A file of completions: its groups by update, and its chunks, each a compressed text in base64."""
    name: str
    updates: List[Tuple[int, List[Place]]]
    chunks: List[str]


def read_sources(folder: str) -> List[Source]:
    """All completions of a run, given its folder ``log``: a source for each file that exists and has a record."""
    files = dict(
        tokens=(os.path.join(folder, 'learner', 'tokens.jsonl'), _of_tokens),
        training=(os.path.join(folder, 'collector', 'completions.jsonl'), _of_table),
        evaluation=(os.path.join(folder, 'evaluator', 'evaluations.jsonl'), _of_evaluations),
    )
    sources = [_source(name, read(path)) for name, (path, read) in files.items() if os.path.exists(path)]
    return [source for source in sources if source.updates]


def _source(name: str, groups: Iterable[Dict[str, Any]]) -> Source:
    source, waiting, size = Source(name, [], []), [], 0
    for group in groups:
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


def _of_tokens(path: str) -> Iterator[Dict[str, Any]]:

    def group(record: Dict[str, Any]) -> Dict[str, Any]:
        rows = [
            dict(
                _row(row, row['reward']),
                row=_number(row['row']),
                text=[_text(piece) for piece in row['text']],
                own=None if all(row['own']) else [bool(x) for x in row['own']],
                **{
                    key: [_number(x, 5) for x in row[key]]
                    for key in (*_LISTS, *(['leader'] if 'leader' in row else []))
                },
            ) for row in record['rows']
        ]
        return dict(_head(record), update=_number(record['train_iter']), rows=rows)

    return json_lines(path, group)


def _of_table(path: str) -> Iterator[Dict[str, Any]]:

    def one_row(record: Dict[str, Any]) -> Dict[str, Any]:
        row = dict(
            _row(record, record['reward']),
            completion=_text(record['completion']),
            advantage=_number(record.get('advantage')),
        )
        return dict(_head(record), update=_number(record['train_iter']), rows=[row])

    for _, found in groupby(json_lines(path, one_row), lambda group: group['update']):
        groups: Dict[int, Dict[str, Any]] = {}
        for group in found:
            first = groups.setdefault(group['group'], group)
            if first is not group:
                first['rows'] += group['rows']
        yield from groups.values()


def _of_evaluations(path: str) -> Iterator[Dict[str, Any]]:

    def groups(record: Dict[str, Any]) -> List[Dict[str, Any]]:
        update = _number(record['train_iter'])
        return [
            dict(
                _head(episode),
                update=update,
                group=None,
                rows=[dict(_row(episode, episode['return']), completion=_text(episode['completion']))]
            ) for episode in record.get('completions', [])
        ]

    for found in json_lines(path, groups):
        yield from found


def _head(record: Dict[str, Any]) -> Dict[str, Any]:
    """What the rows of a group share, of the types that the page expects."""
    index, group = (_number(record.get(key)) for key in ('index', 'group'))
    return dict(index=index, group=group, **{key: _text(record.get(key)) for key in ('kind', 'prompt')})


def _row(record: Dict[str, Any], reward: Any) -> Dict[str, Any]:
    failed = record['failed']
    return dict(
        reward=_number(reward),
        reward_parts={name: _number(x)
                      for name, x in record['reward_parts'].items()},
        truncated=bool(record['truncated']),
        failed=failed if failed is None or isinstance(failed, str) else bool(failed),
    )


def _text(value: Any) -> Optional[str]:
    if not (value is None or isinstance(value, str)):
        raise TypeError(f'{value!r:.40} must be text')
    return value


def _number(value: Any, digits: int = 7) -> Optional[float]:
    if not (value is None or isinstance(value, (int, float))):
        raise TypeError(f'{value!r:.40} must be a number')
    return number(value, digits)


def number(value: Any, digits: int = 7) -> Optional[float]:
    """The number, rounded; None if it is not a finite number, which JSON lacks."""
    if not is_number(value) or value != value or value in (float('inf'), float('-inf')):
        return None
    return value if isinstance(value, int) else float(f'{value:.{digits}g}')


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
