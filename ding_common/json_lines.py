import json
import os
from typing import Any, Dict, List


def append_json(path: str, record: Dict[str, Any]) -> None:
    """Append a record to a JSON lines file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'a', encoding='utf-8') as f:
        f.write(json.dumps(record, ensure_ascii=False) + '\n')


def read_json_lines(path: str) -> List[Dict[str, Any]]:
    """
    Overview:
        All records of a JSON lines file; an empty list if the file does not exist. A last line without line break, \
        left by a kill or a full disk, is skipped.
    """
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as f:
        return [json.loads(line) for line in f if line.endswith('\n')]
