"""What differs between two lines of an update, stage by stage in the order in which an update computes them."""
import math
from functools import partial
from itertools import accumulate
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ding_grpo.instruments.digests import short
from ding_grpo.instruments.hashes import decoded

Line = Dict[str, Any]
EXACT = math.inf  # the size of a difference that no rounding makes by itself
LEAST = 1e-16  # that of numbers whose hashes differ and whose sums do not
# The size of a difference of numbers is relative to the larger of both, and to 1 if both are smaller: what sums of
# float32 lose depends on their largest terms.


class Difference(NamedTuple):
    """``size`` is relative, ``EXACT`` if no rounding can be the direct cause."""
    stage: str
    place: str
    values: str
    size: float


def relative(a: float, b: float, scale: float = 1.) -> float:
    """0 of equal numbers and of two NaN. Another kind of number than finite is no rounding."""
    if a == b or a != a and b != b:
        return 0.
    return abs(a - b) / max(abs(a), abs(b), scale) if math.isfinite(a) and math.isfinite(b) else EXACT


def order(line: Line) -> Tuple[str, ...]:
    """The stages of an update. With several steps of the optimizer its losses are means over them, so they come last
    but one."""
    one = len(line['steps']) == 1
    after = ('loss', 'gradients', 'steps') if one else ('gradients', 'steps', 'loss')
    return ('drawn', 'sampled', 'scored', 'compared', 'read', *after, 'weights')


def differences(a: Line, b: Line, name: Callable[[int], str]) -> Iterator[Difference]:
    """All of an update. ``name``: of a tensor by its number. If one of the lines is short, of whole stages."""
    if 'short' in a or 'short' in b:
        a, b = short(a), short(b)
    for stage in order(a):
        if stage in a.get('short', {}):
            yield from _whole(stage, a['short'][stage], b['short'][stage])
        elif stage in ('gradients', 'weights'):
            yield from tensors(stage, a.get(stage, []), b.get(stage, []), name)
        else:
            yield from _FINDS[stage](a, b)


def _whole(stage: str, a: Dict[str, str], b: Dict[str, str]) -> Iterator[Difference]:
    for what, value in a.items():
        if value != b[what]:
            size = EXACT if what in ('problems', 'steps') else LEAST
            yield Difference(stage, what, 'others; a line of this update is short, with a hash for all of them', size)


def first(found: Iterator[Difference], tolerance: float) -> Tuple[Optional[Difference], Dict[str, float]]:
    """The first difference beyond a tolerance, and by stage the largest of those before it that are within."""
    within: Dict[str, float] = {}
    for difference in found:
        if difference.size > tolerance:
            return difference, within
        within[difference.stage] = max(within.get(difference.stage, 0.), difference.size)
    return None, within


def _drawn(a: Line, b: Line) -> Iterator[Difference]:
    if len(a['drawn']) != len(b['drawn']):
        yield Difference('drawn', 'number of groups', f"{len(a['drawn'])} / {len(b['drawn'])}", EXACT)
    for one, two in zip(a['drawn'], b['drawn']):
        for what, x, y in zip(('number', 'update of its collect', 'problem', 'start'), one, two):
            if x != y:
                values = f'{x} / {y}' if what != 'start' else 'another prompt, or another first observation'
                yield Difference('drawn', f'group {one[0]}, {what}', values, EXACT)
                break


def _rows(line: Line) -> List[str]:
    """The names of all rows."""
    return [_row(group[0], row) for group, number in zip(line['drawn'], line['rows']) for row in range(number)]


def _row(group: int, row: int) -> str:
    return f'group {group}, row {row}'


def _sampled(a: Line, b: Line) -> Iterator[Difference]:
    one, two = a['sampled'], b['sampled']
    if a['rows'] != b['rows']:
        yield Difference('sampled', 'number of rows', f"{a['rows']} / {b['rows']}", EXACT)
        return
    ids = [_ids(x) for x in (one, two)]
    for i, (row, x, y) in enumerate(zip(_rows(a), decoded(one['hash']), decoded(two['hash']))):
        if x != y:
            yield Difference('sampled', *_step(row, ids[0][i], ids[1][i]), EXACT)
    yield from _numbers('sampled', 'log-probability', _rows(a), one['logp'], two['logp'])


def _ids(sampled: Dict[str, Any]) -> List[List[int]]:
    """Of each row; none if the line has hashes alone."""
    lengths = decoded(sampled['length'])
    if 'ids' not in sampled:
        return [[]] * len(lengths)
    ids, ends = decoded(sampled['ids']), list(accumulate(lengths))
    return [ids[end - n:end] for end, n in zip(ends, lengths)]


def _step(row: str, a: List[int], b: List[int]) -> Tuple[str, str]:
    """The first step of a row that differs, if its line has the ids."""
    pairs = [*zip(a, b)]
    at = next((t for t, (x, y) in enumerate(pairs) if x != y), len(pairs))
    if at < len(pairs):
        return f'{row}, step {at}', f'{a[at]} / {b[at]}'
    return row, f'{len(a)} / {len(b)} steps' if len(a) != len(b) else 'other steps'


def _numbers(stage: str, what: str, rows: List[str], a: Dict, b: Dict) -> Iterator[Difference]:
    """Rows whose hashes differ, by their sums."""
    found = (decoded(line[key]) for key in ('hash', 'sum') for line in (a, b))
    for row, h, g, x, y in zip(rows, *found):
        if h != g:
            yield Difference(stage, f'{row}, {what}', _pair(x, y), max(relative(x, y), LEAST))


def _pair(x: float, y: float) -> str:
    return f'{x:.9g} / {y:.9g}' if x != y else f'{x:.9g} in both, as a sum'


def _value(stage: str, place: str, x: float, y: float) -> Iterator[Difference]:
    if relative(x, y) > 0:
        yield Difference(stage, place, f'{x:.9g} / {y:.9g}', relative(x, y))


def _scored(a: Line, b: Line) -> Iterator[Difference]:
    one, two = a['scored'], b['scored']
    for row, x, y in zip(_rows(a), decoded(one['failed']), decoded(two['failed'])):
        if x != y:
            yield Difference('scored', f'{row}, failed', f'{x} / {y}', EXACT)
    for part in (part for part in one['parts'] if part in two['parts']):
        for row, x, y in zip(_rows(a), decoded(one['parts'][part]), decoded(two['parts'][part])):
            yield from _value('scored', f'{row}, {part}', x, y)
    yield from _numbers('scored', 'reward', _rows(a), one, two)


def _by_place(stage: str, what: str, a: Line, b: Line) -> Iterator[Difference]:
    a, b = a.get(stage, {}), b.get(stage, {})
    if a.get('row') != b.get('row'):
        yield Difference(stage, 'rows', 'other rows, or in another order', EXACT)
    elif 'row' in a:
        yield from _numbers(stage, what, [_row(*place) for place in decoded(a['row'])], a, b)


def _loss(a: Line, b: Line) -> Iterator[Difference]:
    if a['rate'] != b['rate']:
        yield Difference('loss', 'learning rate', f"{a['rate']} / {b['rate']}", EXACT)
    for name in (name for name in a['loss'] if name in b['loss']):
        yield from _value('loss', name, a['loss'][name], b['loss'][name])


def _steps(a: Line, b: Line) -> Iterator[Difference]:
    """Of several steps of the optimizer, all but the first one, of which a line has more."""
    if len(a['steps']) != len(b['steps']):
        yield Difference('steps', 'number', f"{len(a['steps'])} / {len(b['steps'])}", EXACT)
    for i, (x, y) in enumerate(zip(a['steps'], b['steps'])):
        if i > 0 and x != y:
            yield Difference('steps', f'step {i}', 'other log-probabilities of its rows', LEAST)


def tensors(stage: str, a: List, b: List, name: Callable[[int], str]) -> Iterator[Difference]:
    """A model that is divided among processes has none, and is not compared."""
    if a and b and len(a) != len(b):
        yield Difference(stage, 'number of tensors', f'{len(a)} / {len(b)}', EXACT)
    for i, ((h, x, scale), (g, y, _)) in enumerate(zip(a, b)):
        if h != g:
            yield Difference(stage, name(i), _pair(x, y), max(relative(x, y, scale or 1.), LEAST))


_FINDS: Dict[str, Callable[[Line, Line], Iterator[Difference]]] = dict(
    drawn=_drawn,
    sampled=_sampled,
    scored=_scored,
    compared=partial(_by_place, 'compared', 'advantage'),
    read=partial(_by_place, 'read', 'log-probability'),
    loss=_loss,
    steps=_steps,
)
