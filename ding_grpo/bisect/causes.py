"""Which setting makes two runs part: the update again under the settings of each, from one checkpoint."""
from typing import Iterator, Optional

from ding_common import ConfigError, describe, read_total_config
from ding_common.config.total_config import leaves
from ding_common.processes.random_state import random_state_kept
from ding_grpo.run.checkpoint import number_of
from ding_grpo.sharing.portable import open_run

from .again import again, start_of
from .chain import Chain, other_machine, other_settings, pairs
from .stages import Difference, differences, first, order

MOST_UPDATES = 50  # that are made again to reach the one in question
MOST_KEYS = 8  # that are tried one by one
SWITCHED = 'threads'  # what a process can have as another machine had it


def causes(a: Chain, b: Chain, update: int, stage: str, trust: bool) -> Iterator[str]:
    """Lines that say what the update does again, here and now; ``stage`` is where it parts."""
    try:
        for chain in (a, b):
            open_run(chain.run, trust)
        with random_state_kept():
            yield from _Causes(a, b, update, stage).lines()
    except ConfigError as error:
        yield f'The update is not made again: {describe(error)}'


class _Causes:

    def __init__(self, a: Chain, b: Chain, update: int, stage: str) -> None:
        self._a, self._b, self._update, self._stage = a, b, update, stage
        self._machine, self._keys = (of(a.begun(update), b.begun(update)) for of in (other_machine, other_settings))
        starts = [start_of(chain.run, update) for chain in (a, b)]
        self._start = max(filter(None, starts), key=number_of, default=None)

    def lines(self) -> Iterator[str]:
        number = 0 if self._start is None else number_of(self._start)
        if self._update - number >= MOST_UPDATES:
            yield f'The update is not made again: no checkpoint is within the {MOST_UPDATES} updates before it.'
            return
        place = self._start or 'the start'
        yield f'Update {self._update} again, from {place}:'
        found = []
        for chain, name in ((self._a, 'RUN_A'), (self._b, 'RUN_B')):
            made = again(chain.run, self._start, self._update, chain.threads(self._update))
            found.append(self._difference(made, chain))
            yield f'  under the settings of {name}: {_told(found[-1], name)}'
            here = other_machine(chain.begun(self._update), made.begins[-1])
            if found[-1] is not None and here:
                yield f'    this process has {pairs(here)} in {name}'
        if found[0] is not None and found[0].stage == 'scored':
            yield '  The same rows get other rewards: the scorer is not deterministic.'
        fixed = sorted(self._machine.keys() - {SWITCHED})
        if found == [None, None]:
            yield from self._each()
        elif None in found and fixed:
            yield f"  Left as a cause, and not possible here: {', '.join(fixed)}"

    def _difference(self, made: Chain, compared: Chain) -> Optional[Difference]:
        """The first one between the update that was made again and that of a run."""
        return first(differences(compared.updates[self._update], made.updates[self._update], made.name), 0.)[0]

    def _each(self) -> Iterator[str]:
        """With one setting of RUN_B alone, which makes the difference."""
        a, b, start, update = self._a, self._b, self._start, self._update
        if SWITCHED in self._machine:
            made = again(a.run, start, update, b.threads(update))
            yield f"  RUN_A's with {b.threads(update)} threads: {self._makes(made)}"
        elif len(self._keys) == 1:
            yield f'  {next(iter(self._keys))} is the only setting that differs'
            return
        values = dict(leaves(read_total_config(b.run)))
        tried = [key for key in self._keys if key in values][:MOST_KEYS]
        for key in tried:
            try:
                found = self._makes(again(a.run, start, update, a.threads(update), {key: values[key]}))
            except ConfigError as error:
                found = f'not possible ({describe(error):.200})'
            yield f"  RUN_A's with {key} of RUN_B: {found}"
        left = [key for key in self._keys if key not in tried]
        if left:
            yield f"  not tried: {', '.join(left)}"

    def _makes(self, made: Chain) -> str:
        """What one setting alone does, with which the update of RUN_A was made again."""
        left, stages = self._difference(made, self._b), order(self._a.updates[self._update])
        if left is None:
            return 'makes the whole difference'
        if stages.index(left.stage) > stages.index(self._stage):
            return f'makes the difference in {self._stage}; {left.stage} is left'
        return 'does not make the difference alone'


def _told(difference: Optional[Difference], run: str) -> str:
    if difference is None:
        return f'as {run} has recorded it'
    return f'differs from {run} ({run} / again), first in {difference.stage}: {difference.place}: {difference.values}'
