import json
import os
from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List

from .printable import echo, printable


def append_json(path: str, record: Dict[str, Any]) -> None:
    """Append a record to a JSON lines file. Unprintable characters are JSON's escapes in it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = printable(json.dumps(record, ensure_ascii=False), lambda c: json.dumps(c)[1:-1])
    with open(path, 'a', encoding='utf-8') as f:
        f.write(text + '\n')


def read_json_lines(path: str) -> List[Dict[str, Any]]:
    """All records of a JSON lines file, see ``json_lines``; an empty list if the file does not exist."""
    return list(json_lines(path))


def json_lines(path: str, convert: Callable[[Dict[str, Any]], Any] = lambda record: record) -> Iterator[Any]:
    """The records of a JSON lines file, one at a time, as ``convert`` returns them; none if the file does not exist. A
    last line without line break, left by a kill or a full disk, is skipped. Of the lines that cannot be read, or that
    ``convert`` refuses by an error, the first is printed with its number, and the number of further ones at the end."""
    if not os.path.exists(path):
        return
    left_out = 0
    with open(path, 'rb') as f:
        for number, line in enumerate(f, 1):
            if not line.endswith(b'\n'):
                break
            try:
                record = json.loads(line.decode())
                if not isinstance(record, dict):
                    raise TypeError('not an object')
                found = convert(record)
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                left_out += 1
                if left_out == 1:
                    why = f"{type(error).__name__}: {' '.join(str(error).split()):.100}"
                    _tell(f'{path}: line {number} cannot be read ({why}) and is left out')
                continue
            yield found
    if left_out > 1:
        _tell(f'{path}: {left_out - 1} more line(s) cannot be read and are left out')


@lru_cache(maxsize=1000)
def _tell(text: str) -> None:
    """Once, though several parts of a report read a file."""
    echo(text, err=True)
