"""docs/architectures.md: what benchmarks/architectures.py found, as Markdown."""
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
import transformers

from architecture_configs import model_type
from architecture_readings import FLOOR, IGNORES, MOST_SETS, SETS, TIMES, Difference, Result

MOST_GAP = 1e-5  # nats between sampler and learner in a run in float32

EXPLANATION = '''# Which architectures work

`make architectures` writes this page (transformers {transformers}, torch {torch}, on a processor). It builds {lines}
tiny random models of {architectures} architectures of `transformers`; some are variants of one, as `falcon (alibi)`.
Their configs are in `benchmarks/architecture_configs.py`. Windows, chunks and index sets are shorter than the rows. One
batch has prompts of mixed lengths, another one prompts of one length. Several rows continue the same prompt.

{counts}

## How to read the table

**read** says how the rows of a batch are read ([design.md](design.md)):

- `shared`: a prompt is read once for all rows that continue it.
- `padded`: rows are read whole, padded to the same length.
- `by_length`: rows are read whole, those of each length apart.
- `reread`: without a cache; sampling reads each row whole for every token.
- `refused`: the run ends with the sentence in section "Refused".

**×1** and **×4**: the weights as the architecture initialises them, and all matrices times 4. float16 is for evaluation
only.

The numbers are absolute differences of log-probabilities in nats: the largest, and the mean in parentheses. "Plain" is
`transformers` alone: a second model with the same weights that this project's code does not touch. It reads each row
alone.

- **learned**: what learning computes, against plain.
- **sampled**: what sampling reports for the tokens that it drew, against plain on the same tokens.
- **apart**: sampled against learned, on the same tokens.
- **plain**: plain against a second plain way, in which rows of mixed lengths are padded on the left and read together,
  with mask and positions. Architectures with * ignore the mask or the positions, or depend on the longest row of a
  batch: padded rows differ by more than {ignores} nats in float32. Their second way reads rows of one length together,
  unpadded.
- **allowed**: {times} times plain, at least {times} times the floor. A learned or sampled difference whose largest
  number or mean is above it is wrong.

The floor is {floor}. In bfloat16 and float16 it is at least half a unit in the last place of the largest logit, because
plain rounds its logits to the type. The number beside "plain" is the largest of {sets} sets of rows. In bfloat16 and
float16 rounding can send a token to another expert, about once in some hundred tokens. A difference above "allowed"
whose mean is below it is therefore compared with more sets, up to {most_sets}, which plain also reads with the other
attention of `transformers` (`eager` or `sdpa`).

**run**: `sampler_gap_max`, the largest difference between sampler and learner, at both updates of a run in float32:
environments, collector and policy of `think_answer`, two groups of four. At most {gap} is allowed. `n/a`: not logged.

Digits vary with the machine. The words do not.

## Table
'''


class Run(NamedTuple):
    """
    Overview:
        Two updates of the policy: ``sampler_gap_max`` of each (None where it is not logged), or why there are none.
    """
    gaps: Tuple[Optional[float], ...] = ()
    refused: Optional[str] = None
    error: Optional[str] = None

    @property
    def wrong(self) -> Optional[str]:
        """Why this is wrong, None if it is not."""
        if any(gap is not None and not gap <= MOST_GAP for gap in self.gaps):
            return f'sampler and learner {", ".join(map(_gap, self.gaps))} apart, allowed {_short(MOST_GAP)}'
        return self.error


class Line(NamedTuple):
    """
    Overview:
        All about one architecture: results by type and scale, and its run.
    """
    name: str
    results: Dict[Tuple[str, float], Result]
    run: Optional[Run]
    seconds: float

    @property
    def wrong(self) -> List[str]:
        """Everything that is wrong."""
        parts = [(f'{dtype} ×{scale:g}', result) for (dtype, scale), result in self.results.items()]
        parts += [] if self.run is None else [('run', self.run)]
        return [f'{place}: {part.wrong}' for place, part in parts if part.wrong]

    @property
    def refused(self) -> Dict[str, str]:
        """Words of refusals, and what they refuse."""
        return self._said('refused')

    @property
    def heads(self) -> Dict[str, str]:
        """Reasons why the output layer is not used, and where."""
        return self._said('head')

    @property
    def impossible(self) -> Dict[str, str]:
        """Reasons why plain ``transformers`` fails, and where."""
        return self._said('impossible')

    def _said(self, field: str) -> Dict[str, str]:
        places = {f'{dtype} ×{scale:g}': getattr(result, field) for (dtype, scale), result in self.results.items()}
        everywhere = ', '.join(places)
        places['run'] = getattr(self.run, field, None)
        found: Dict[str, List[str]] = {}
        for place, said in places.items():
            if said:
                found.setdefault(said, []).append(place)
        return {said: ', '.join(where).replace(everywhere, 'everywhere') for said, where in found.items()}

    @property
    def reading(self) -> str:
        """How it is read, by type where the types differ."""
        found = {dtype: result.reading for (dtype, _), result in self.results.items() if result.reading}
        if self.refused or not found:
            return 'refused' if self.refused else '-'
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        return ', '.join(f'{reading} in {dtype}' for dtype, reading in found.items())

    @property
    def status(self) -> str:
        """What it counts as."""
        return 'wrong' if self.wrong else self.reading

    def __str__(self) -> str:
        largest: Dict[str, float] = {}
        for (dtype, _), result in self.results.items():
            for found in filter(None, (result.learned, result.sampled)):
                largest[dtype] = max(largest.get(dtype, 0.0), found.largest)
        parts = [f'{self.name:36s} {self.reading:8s}', *(f'{dtype} {_short(x)}' for dtype, x in largest.items())]
        if self.run is not None and self.run.gaps:
            parts.append('gaps ' + ' '.join(map(_gap, self.run.gaps)))
        notes = [f'WRONG {wrong}' for wrong in self.wrong]
        for kind, found in (('refused', self.refused), ('plain fails', self.impossible)):
            notes += [f'{kind}: {said} ({where})' for said, where in found.items()]
        return '\n          '.join(['  '.join([*parts, f'{self.seconds:.1f} s']), *notes])


def summary(lines: List[Line]) -> str:
    """
    Overview:
        How many lines are read in which way, refused or wrong.
    """
    architectures = len({model_type(line.name) for line in lines})
    counts = {**Counter(line.status for line in lines), 'wrong': sum(bool(line.wrong) for line in lines)}
    return f'{len(lines)} lines, {architectures} architectures: ' + ', '.join(
        f'{n} {s}' for s, n in counts.items()
    ) + '.'


def page(lines: List[Line]) -> str:
    """
    Overview:
        The results as Markdown.
    """
    places = list(max((line.results for line in lines), key=len))
    heads = ['architecture', 'read', 'nats', *(f'{dtype} ×{scale:g}' for dtype, scale in places)]
    return EXPLANATION.format(
        transformers=transformers.__version__,
        torch=torch.__version__.split('+')[0],
        lines=len(lines),
        architectures=len({model_type(line.name)
                           for line in lines}),
        counts=summary(lines),
        ignores=_short(IGNORES),
        times=TIMES,
        floor=_short(FLOOR),
        sets=SETS,
        most_sets=MOST_SETS,
        gap=_short(MOST_GAP),
    ) + '\n'.join(
        [
            '',
            *_table([*heads, 'run, update 1', 'run, update 2'], [_row(line, places) for line in lines]),
            '',
            *_section(
                'Wrong', 'Each of these is a bug.', [(line.name, wrong) for line in lines for wrong in line.wrong]
            ),
            *_section(
                'Refused', 'The run ends with this sentence. It is shortened here.',
                [(line.name, *said) for line in lines for said in line.refused.items()]
            ),
            *_section(
                'Learned from logits', "`log_prob_fn='linear_log_prob'` is refused with this reason. The table has "
                "`log_prob_fn='efficient_method'`.",
                [(line.name, *said) for line in lines for said in line.heads.items()]
            ),
            *_section(
                'Not compared', 'Plain `transformers` raises an error, or gives numbers that are not finite.',
                [(line.name, *said) for line in lines for said in line.impossible.items()]
            ),
        ]
    )


def _row(line: Line, places: List[Tuple[str, float]]) -> List[str]:
    gaps = [_gap(gap) for gap in line.run.gaps] if line.run and line.run.gaps else ['-', '-']
    star = '' if all(result.padded for result in line.results.values()) else ' *'
    names = '<br>'.join(['learned', 'sampled', 'apart', 'plain', 'allowed'])
    return [line.name + star, line.reading, names, *(_cell(line.results.get(place)) for place in places), *gaps]


def _cell(result: Optional[Result]) -> str:
    if result is not None and result.impossible:
        return 'not compared'
    if result is None or result.learned is None:
        return 'refused' if result and result.refused else '**fails**'
    parts = []
    for found in (result.learned, result.sampled):
        text = _difference(found)
        parts.append(f'**{text}**' if found and not found.within(result.allowed) else text)
    return '<br>'.join([*parts, *map(_difference, (result.between, result.plain, result.allowed))])


def _section(title: str, text: str, rows: List[Tuple[str, ...]]) -> List[str]:
    """A table with a title; nothing if it has no rows."""
    heads = ['architecture', 'words', 'where']
    return [f'## {title}', '', text, '', *_table(heads[:len(rows[0])], rows), ''] if rows else []


def _table(heads: List[str], rows: List[Tuple[str, ...]]) -> List[str]:
    return ['| ' + ' | '.join(row) + ' |' for row in (heads, ['---'] * len(heads), *rows)]


def _difference(found: Optional[Difference]) -> str:
    return '-' if found is None else f'{_short(found.largest)} ({_short(found.mean, 0)})'


def _gap(gap: Optional[float]) -> str:
    return 'n/a' if gap is None else _short(gap)


def _short(x: float, digits: int = 1) -> str:
    return '0' if x == 0 else f'{x:.{digits}e}'.replace('e-0', 'e-').replace('e+00', '').replace('e+0', 'e')
