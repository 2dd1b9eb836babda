"""
benchmarks/results/results.json: one entry a work, number of threads, instruction set and processor, whoever measured.
"""
import json
import os
import statistics
from typing import Any, Dict, List, Tuple

from benchmarks.shared.hardware import measured_on
from benchmarks.shared.paths import RECORDS

PATH = os.path.join(RECORDS, 'results.json')


def add(entries: List[Dict[str, Any]], path: str = PATH) -> List[Dict[str, Any]]:
    """
    Overview:
        Put entries, with what they were measured on, in place of those of the same work, threads, instruction set and \
        processor.
    Arguments:
        - entries (:obj:`List[Dict[str, Any]]`): Each with ``work``, ``ratio``, ``ours``, ``peer``, ``unit``, \
            ``threads`` and ``versions``.
        - path (:obj:`str`): The file.
    Returns:
        - results (:obj:`List[Dict[str, Any]]`): All that the file now holds.
    """
    found = []
    if os.path.exists(path):
        with open(path) as f:
            found = json.load(f)
    on = measured_on()
    entries = [dict(entry, **on) for entry in entries]
    new = set(map(_key, entries))
    found = [entry for entry in found if _key(entry) not in new] + entries
    found.sort(key=_key)
    with open(path, 'w') as f:
        json.dump(found, f, indent=1)
        f.write('\n')
    return found


def _key(entry: Dict[str, Any]) -> Tuple[str, int, str, str]:
    return entry['work'], entry['threads'], entry['instructions'], entry['processor']


def paired(ours: List[float], peer: List[float]) -> Dict[str, Any]:
    """
    Overview:
        The fields of an entry about rounds in which both sides had their turn.
    Arguments:
        - ours (:obj:`List[float]`): Seconds of each round.
        - peer (:obj:`List[float]`): The other's.
    Returns:
        - fields (:obj:`Dict[str, Any]`): ``rounds``; median, smallest and largest of ``ours``, ``peer`` and \
            ``ratio``, which is that of a round.
    """
    found: Dict[str, Any] = dict(rounds=len(ours), unit='s')
    for name, values in dict(ours=ours, peer=peer, ratio=[a / b for a, b in zip(ours, peer)]).items():
        found.update({name: statistics.median(values), f'{name}_low': min(values), f'{name}_high': max(values)})
    return found
