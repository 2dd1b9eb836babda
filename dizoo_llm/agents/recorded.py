"""The requests of an episode as plain data, and an episode that makes them again, without its agent."""
import hashlib
import json
import time
from typing import Any, Dict, List, Optional, Sequence, Union

from .body import Asked, Refused
from .episode import Request, Returned

NOTHING = Asked(None, None, [], 1, [], None, False, False)
GROWING = ('messages', 'prompt')  # what a request often begins as the one before


class Record:
    """
    The requests of an episode, for JSON: ``asked``, how each differs from the one before, and ``answered``, a digest of
    what the agent got.
    """

    def __init__(self) -> None:
        self.entries: List[Dict[str, Any]] = []
        self._last = NOTHING

    def add(self, asked: Asked, body: Union[Dict[str, Any], Refused]) -> None:
        self.entries.append(dict(asked=_written(asked, self._last), answered=_digest(body)))
        self._last = asked


class Recorded:
    """An episode of recorded requests. It ends where an answer is not the one that the agent got, since nobody knows
    what it would ask then."""

    def __init__(self, record: List[Dict[str, Any]]) -> None:
        self._record, self._made, self._last = record, 0, NOTHING
        self._differs = False
        self.ended: Optional[Returned] = None

    def next(self) -> Union[Request, Returned]:
        entry = self._record[self._made]
        if self._differs:
            told = f'the answer to request {self._made} is not that of the run, so what the agent asks next is unknown'
            self.ended = Returned(None, told, time.monotonic())
        elif 'asked' not in entry:
            parts = entry['parts']
            self.ended = Returned(parts[0] if len(parts) == 1 else parts, entry['failed'], time.monotonic())
        if self.ended is not None:
            return self.ended
        self._made += 1
        self._last = _read(entry['asked'], self._last)
        return Request(self._last, None, time.monotonic())

    def answer(self, request: Request, body: Union[Dict[str, Any], Refused]) -> None:
        self._differs = self._record[self._made - 1].get('answered') != _digest(body)

    def cancel(self) -> None:
        """Nothing runs."""


def _written(asked: Asked, before: Asked) -> Dict[str, Any]:
    """What differs from the request before. Of ``GROWING``, the number of equal first items, and the others."""
    found = {}
    for name, value in asked._asdict().items():
        old = getattr(before, name)
        if value == old and type(value) is type(old):
            continue
        if name in GROWING and value is not None:
            same = _same(old, value) if type(value) is type(old) else 0
            value = [same, value[same:]]
        found[name] = value
    return found


def _read(found: Dict[str, Any], before: Asked) -> Asked:
    changed = dict(found)
    for name in GROWING:
        if changed.get(name) is not None:
            same, rest = changed[name]
            changed[name] = getattr(before, name)[:same] + rest if same else rest
    return before._replace(**changed)


def _same(old: Sequence, new: Sequence) -> int:
    """The number of equal first items."""
    return next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))


def _digest(body: Union[Dict[str, Any], Refused]) -> str:
    """Of what an agent can read of an answer."""
    seen = body.body() if isinstance(body, Refused) else body['choices']
    return hashlib.blake2b(json.dumps(seen, sort_keys=True).encode(), digest_size=8).hexdigest()
