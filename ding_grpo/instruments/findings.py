"""The page of the known causes of a failure to learn, at the end of a run."""
import re
from typing import Any, Dict, List

from ding_common import printable

PAGE = 'findings.md'
HELP = 'docs/guides/troubleshooting.md#findings'


def page(name: str, history: Dict[str, Any]) -> str:
    """The page of findings of a run, in Markdown, given the state of the ``History`` of its ``Watch``."""
    lines = [f'# Findings of {cell(name)}', '']
    if history['found']:
        lines += ['| after update | cause | finding |', '|---|---|---|']
        lines += [f"| {f['update']} | `{f['cause']}` | {cell(f['message'])} |" for f in history['found']]
        lines += ['', f'Causes and remedies: {HELP}.']
    else:
        lines.append('None. The known causes of a failure to learn were looked for; none was found.')
    lines += ['', '## What was seen', '', '| figure | value |', '|---|---|']
    lines += [f'| {cell(what)} | {value} |' for what, value in _figures(history)]
    if history['probes']:
        lines += ['', '## What the scorer pays for texts that no policy wrote', '']
        lines += ['| problem | text | reward | reported |', '|---|---|---|---|']
        lines += [
            f"| {p['problem']} | {p['kind']}: {cell(p['text'][:60])} | {_number(p['reward'])} | "
            f"{_number(p['value'])} |" for p in history['probes']
        ]
    return '\n'.join(lines) + '\n'


def _figures(history: Dict[str, Any]) -> List[List[str]]:
    first, last = history['first'], (history['recent'] or [{}])[-1]
    rows = [
        ['updates', str(history['updates'])],
        ['rows', f"{history['rows']:,}, of which a limit cut {history['rows'] - history['ended']:,}"],
    ]
    if last:
        rows += [
            ['mean reward, first and last update', f"{_number(first['mean'])}, {_number(last['mean'])}"],
            ['lowest and highest reward', f"{_number(history['low'])}, {_number(history['high'])}"],
            ['groups of equal rewards, last update', f"{last['equal']} of {last['groups']}"],
        ]
        rows += [
            [f'lowest and highest reward part {part}', f'{_number(low)}, {_number(high)}']
            for part, (low, high) in history['parts'].items()
        ]
    if 'entropy' in first and 'entropy' in last:
        rows.append(['entropy, first and last update', f"{_number(first['entropy'])}, {_number(last['entropy'])} nats"])
    if history['looks']:
        look = history['looks'][-1]
        rows.append(['mean change of a log-probability by an update', f"{_number(look['moved'])} nats"])
        rows.append(['share of tokens whose ratio an update moved out of [0.83, 1.2]', _number(look['outside'])])
        if 'follow' in look:
            rows.append(['advantage times change, in [-1, 1]', _number(look['follow'])])
    return rows


def _number(value: Any) -> str:
    return '-' if value is None else f'{value:.3g}'


def cell(text: str) -> str:
    """A text that makes no link, image, HTML, code or further cell."""
    return re.sub(r'[|<`]|(?<=])[(\[:]', r'\\\g<0>', printable(' '.join(text.split())))
