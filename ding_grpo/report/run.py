"""What the files of a run contain, as data for the page. A run may be in progress: a file may be missing or grow."""
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ding_common import json_lines

from .chunks import Source, is_number, number, read_sources
from .config_diff import Setting, read_settings

MOST_POINTS = 2000  # of a curve
AXES = ('train_iter', 'envstep', 'seconds')
PARTS = ('sampling', 'scoring', 'updating')


class Run(NamedTuple):
    """A run. Curves are lists of equal length by name, None where a record lacks the name or it is not finite."""
    name: str
    metrics: Dict[str, List[Optional[float]]]
    evaluations: Dict[str, List[Optional[float]]]
    updates: int
    seconds: Dict[str, float]  # by part of the run
    memory: Dict[str, float]  # largest of an update in MiB, by part; without parts that have no record
    findings: Optional[List[Dict[str, Any]]]  # None if the run wrote no file of findings
    settings: Optional[List[Setting]]  # None if its config cannot be read
    sources: List[Source]


def read_run(folder: str) -> Run:
    metrics = _records(folder, 'learner', 'metrics.jsonl')
    evaluations = _records(folder, 'evaluator', 'evaluations.jsonl', _flat)
    findings = os.path.join(folder, 'findings.jsonl')
    return Run(
        name=os.path.basename(os.path.abspath(folder)),
        metrics=curves(thinned(metrics)),
        evaluations=curves(thinned(evaluations)),
        updates=len(metrics),
        seconds=_seconds(metrics),
        memory=_memory(metrics),
        findings=list(json_lines(findings, _finding)) if os.path.exists(findings) else None,
        settings=read_settings(folder),
        sources=read_sources(os.path.join(folder, 'log')),
    )


def _records(folder: str, worker: str, name: str, convert: Callable = dict) -> List[Dict[str, Any]]:
    return list(json_lines(os.path.join(folder, 'log', worker, name), convert))


def _finding(record: Dict[str, Any]) -> Dict[str, str]:
    return {name: str(record[name]) for name in ('update', 'cause', 'message')}


def _flat(evaluation: Dict[str, Any]) -> Dict[str, Any]:
    """The numbers of an evaluation by name: ``kind/NAME`` are means of kinds, ``NAME/mean`` and so on of estimates."""
    flat = {}
    for name, value in evaluation.items():
        if name == 'kinds':
            flat.update({f'kind/{kind}': of_kind['mean'] for kind, of_kind in value.items()})
        elif isinstance(value, dict):
            flat.update({f'{name}/{key}': x for key, x in value.items()})
        else:
            flat[name] = value
    return flat


def thinned(records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """At most about ``MOST_POINTS`` of the records, at equal distances, with the last one."""
    step = -(-len(records) // MOST_POINTS) or 1
    return records[-1::-step][::-1]


def curves(records: List[Dict[str, Any]]) -> Dict[str, List[Optional[float]]]:
    """Turn records into curves; values that are not numbers are ignored."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if is_number(value))
    return {name: [number(record.get(name)) for record in records] for name in names}


def _seconds(metrics: List[Dict[str, Any]]) -> Dict[str, float]:
    """The seconds of each part, and ``other``: evaluation, checkpoints and logs."""
    seconds = {part: sum(number(m.get(f'seconds_{part}')) or 0 for m in metrics) for part in PARTS}
    total = (number(metrics[-1].get('seconds')) or 0) if metrics else 0
    return dict(seconds, other=max(0., total - sum(seconds.values())))


def _memory(metrics: List[Dict[str, Any]]) -> Dict[str, float]:
    by_part = {part: [number(m.get(f'memory_mib_{part}')) for m in metrics] for part in PARTS}
    known = {part: [value for value in values if value is not None] for part, values in by_part.items()}
    return {part: max(values) for part, values in known.items() if values}
