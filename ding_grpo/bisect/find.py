"""Where two chains part."""
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Optional

from ding_common import ConfigError

from .chain import Chain
from .stages import EXACT, Difference, Line, differences, first, tensors


class Parting(NamedTuple):
    """The first difference beyond the tolerance, None if there is none, and in its update the number of differences by
    stage. ``within`` has the largest difference of each stage that was within the tolerance until there, and ``since``
    the update of the first of them. ``same``: how many updates were compared and are equal, or within."""
    update: Optional[int]
    difference: Optional[Difference]
    stages: Dict[str, int]
    within: Dict[str, float]
    since: Optional[int]
    same: int


def parting(a: Chain, b: Chain, tolerance: float) -> Parting:
    """Of the updates that both have; raises ``ConfigError`` if there are none. A checkpoint from which one of them was
    resumed, and which is not as it was saved, is a difference too, and so are the weights of their starts."""
    within: Dict[str, float] = {}
    since: Optional[int] = None
    common = sorted(a.updates.keys() & b.updates.keys())
    if not common:
        ranges = ', '.join(f'{chain.run} has {min(chain.updates)} to {max(chain.updates)}' for chain in (a, b))
        raise ConfigError(f'the runs have no update in common: {ranges}.')
    for i, update in enumerate(common):
        for events in (_starts(a, b, update), differences(a.updates[update], b.updates[update], a.name)):
            found, passed = first(events, tolerance)
            since = update if passed and since is None else since
            within.update((stage, max(size, within.get(stage, 0.))) for stage, size in passed.items())
            if found is not None:
                all_of_it = differences(a.updates[update], b.updates[update], a.name)
                counts = Counter(difference.stage for difference in all_of_it)
                return Parting(update, found, counts, within, since, i)
    return Parting(None, None, {}, within, since, len(common))


def _starts(a: Chain, b: Chain, update: int) -> Iterator[Difference]:
    """Differences before an update: in the checkpoints from which runs were resumed, and in the first weights."""
    begins = [[begin for begin in chain.begins if begin['begin'] == update] for chain in (a, b)]
    for chain, found in zip((a, b), begins):
        yield from altered(chain.run, found)
    if all(begins):
        one, two = (found[-1]['weights'] for found in begins)
        yield from tensors('start', one, two, a.name)


def altered(run: str, begins: List[Line]) -> Iterator[Difference]:
    """Tensors of the checkpoints from which a run was resumed that are not as they were saved."""
    for begin in begins:
        for name in begin['altered']:
            values = f"{run} began again after update {begin['begin']} with another tensor than was saved"
            yield Difference('checkpoint', name, values, EXACT)
