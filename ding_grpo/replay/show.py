"""A replayed group as text."""
import math
import os
from typing import Any, Dict, List, Optional

from tabulate import tabulate

from ding_common import read_json_lines
from ding_grpo.logs.screen import shorten

from .fork import Forked
from .session import Replayed

WIDTH = 60  # characters of a completion in the table of rows
SAMPLED = ('reward_', 'completion_length_', 'episode_length_', 'truncated', 'failed')  # metrics that sampling decides


def differing_text(run: str, found: Replayed) -> Optional[str]:
    """A line about the first metric of the replayed update that the log of the run, in its folder, has otherwise. None
    if there is none, or no log of this update."""
    records = read_json_lines(os.path.join(run, 'log', 'learner', 'metrics.jsonl'))
    recorded = next((r for r in reversed(records) if r.get('train_iter') == found.record['train_iter']), {})
    for name, value in found.metrics.items():
        before = recorded.get(name)
        if name.startswith(SAMPLED) and before is not None and not math.isclose(value, before, rel_tol=1e-6):
            return (
                f'The replay samples otherwise than the run: {name} = {value:.6g}, in its log {before:.6g}. An agent, '
                'a scorer or an environment with a clock or a state of its own causes this, and other versions or '
                'another machine, whose rounding differs.'
            )
    return None


def group_text(found: Replayed, changed: Optional[Replayed] = None) -> str:
    record = found.record
    lines = [f"update {record['train_iter']}, group {record['group']} of {found.groups}"]
    if record['prompt'] is not None:
        lines.append(f"prompt: {record['prompt']}")
    table = [_row(row) for row in record['rows']]
    header = ['row', 'reward', 'parts', 'advantage', 'log-probability', 'completion']
    lines += ['', tabulate(table, header, disable_numparse=True), '', _metrics('update', found)]
    if changed is not None:
        pairs = zip(record['rows'], changed.record['rows'])
        table = [_row(new)[:-1] + [_difference(old, new)] for old, new in pairs]
        lines += ['', 'with the change', '', tabulate(table, [*header[:-1], 'steps'], disable_numparse=True), '']
        lines.append(_metrics('update with the change', changed))
    return '\n'.join(lines)


def fork_text(found: Forked) -> str:
    """The rows that continue one row of a group."""
    record, (number, place) = found.recorded.record, found.fork
    own = record['rows'][number]
    table = [_continued(row, place) for row in found.rows]
    table[number][0] = f'{number}, as recorded'
    lines = [f"update {record['train_iter']}, group {record['group']} of {found.recorded.groups}"]
    lines += [f"prompt: {record['prompt']}", f"row {number} until token {place}: {''.join(own['text'][:place])}", '']
    header = ['row', 'reward', 'parts', 'log-probability', f'from token {place} on']
    lines += [tabulate(table, header, disable_numparse=True), '']
    means = [_mean_reward(rows) for rows in (found.rows, record['rows'])]
    return '\n'.join([*lines, f'mean reward: {means[0]} with this beginning, {means[1]} in the group as recorded'])


def _continued(row: Dict[str, Any], place: int) -> List[Any]:
    logp = sum(x for x, own in zip(row['logp_old'][place:], row['own'][place:]) if own)
    text = shorten(''.join(row['text'][place:]), WIDTH)
    return [row['row'], f"{row['reward']:.4g}{_flag(row)}", _parts(row), f'{logp:.3f}', text]


def _mean_reward(rows: List[Dict[str, Any]]) -> str:
    rewards = [row['reward'] for row in rows if not row['failed']]
    return f'{sum(rewards) / len(rewards):.4g}' if rewards else 'none'


def row_text(found: Replayed, number: int, changed: Optional[Replayed] = None) -> str:
    """The steps of one row: what the update did to each, and beside it what it did with a change."""
    sides = [r.record['rows'][number] for r in (found, changed) if r is not None]
    header = ['step', *['token', 'advantage', 'probability', 'change', 'entropy'] * len(sides)]
    most = max(len(row['action']) for row in sides)
    table = [[t, *(cell for row in sides for cell in _step(row, t))] for t in range(most)]
    return f'row {number}\n' + tabulate(table, header, disable_numparse=True)


def _row(row: Dict[str, Any]) -> List[Any]:
    own = [t for t, mine in enumerate(row['own']) if mine]
    advantage = sum(row['advantage'][t] for t in own) / max(1, len(own))
    before, after = (sum(row[name][t] for t in own) for name in ('logp', 'logp_new'))
    text = ''.join(row['text']) if row['text'] and not _is_step(row) else ' '.join(row['text'])
    return [
        row['row'], f"{row['reward']:.4g}{_flag(row)}",
        _parts(row), f'{advantage:+.4g}', f'{before:.3f} -> {after:.3f} ({after - before:+.3f})',
        shorten(text, WIDTH)
    ]


def _parts(row: Dict[str, Any]) -> str:
    return ', '.join(f'{name} {value:.3g}' for name, value in row['reward_parts'].items())


def _flag(row: Dict[str, Any]) -> str:
    return ' (not scored)' if row['failed'] else ' (cut)' if row['truncated'] else ''


def _is_step(row: Dict[str, Any]) -> bool:
    return isinstance(row['action'][0], list) or row['text'] == [str(a) for a in row['action']]


def _difference(old: Dict[str, Any], new: Dict[str, Any]) -> str:
    same = next(
        (t for t, (a, b) in enumerate(zip(old['action'], new['action'])) if a != b),
        min(len(old['action']), len(new['action']))
    )
    if same == len(old['action']) == len(new['action']):
        return 'the same'
    return f"from step {same} on: {shorten(''.join(new['text'][same:]), WIDTH)}"


def _step(row: Dict[str, Any], t: int) -> List[str]:
    if t >= len(row['action']):
        return [''] * 5
    if not row['own'][t]:
        return [repr(row['text'][t]), 'environment', '', '', '']
    before, after = row['logp'][t], row['logp_new'][t]
    return [
        repr(row['text'][t]), f"{row['advantage'][t]:+.4g}", f'{math.exp(before):.4f} -> {math.exp(after):.4f}',
        f'{after - before:+.4f}', f"{row['entropy'][t]:.3f}"
    ]


def _metrics(name: str, found: Replayed) -> str:
    names = ('total_loss', 'grad_norm', 'entropy', 'clipfrac', 'kl', 'optimizer_steps')
    return f'{name}: ' + ', '.join(f'{n} {found.metrics[n]:.4g}' for n in names if n in found.metrics)
