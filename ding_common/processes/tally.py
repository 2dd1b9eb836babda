"""Counts for the last lines of a run. A process that works for another one hands its own back with its answers."""
import os
from collections import Counter
from typing import Dict

Tallies = Dict[str, Counter]
_OWN: Tallies = {}


def tally(name: str) -> Counter:
    """The counts of this process under a name; always the same object. A fork begins at 0."""
    return _OWN.setdefault(name, Counter())


def take_tallies() -> Tallies:
    """All counts of this process, which begin at 0 again."""
    taken = {name: Counter(counts) for name, counts in _OWN.items()}
    for counts in _OWN.values():
        counts.clear()
    return taken


def add_tallies(taken: Tallies) -> None:
    """Count what another process has counted."""
    for name, counts in taken.items():
        tally(name).update(counts)


os.register_at_fork(after_in_child=take_tallies)
