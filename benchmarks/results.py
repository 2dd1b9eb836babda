"""benchmarks/results.json: one entry a work and number of threads, whoever measured it."""
import json
import os
from typing import Any, Dict, List

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'results.json')


def add(entries: List[Dict[str, Any]], path: str = PATH) -> List[Dict[str, Any]]:
    """
    Overview:
        Put entries in place of those of the same work and threads.
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
    new = {(entry['work'], entry['threads']) for entry in entries}
    found = [entry for entry in found if (entry['work'], entry['threads']) not in new] + entries
    found.sort(key=lambda entry: (entry['work'], entry['threads']))
    with open(path, 'w') as f:
        json.dump(found, f, indent=1)
        f.write('\n')
    return found
