"""Known causes of a failure to learn: a line when one is found, ``findings.jsonl``, and a page at the end of a run."""
import os
import re
from typing import Any, Dict, List

from ding.worker import LearnerHook

from ding_common import append_json, parallel, printable
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import run_folder, show

FINDINGS = 'findings.jsonl'
PAGE = 'findings.md'
PROBED = 3  # problems whose demonstration is compared with junk before the first update
HELP = 'docs/guides/troubleshooting.md#findings'


class Findings:
    """Shows each cause that a ``Watch`` finds, once, and appends it to ``findings.jsonl`` in the run's folder:
    ``update``, ``cause``, ``message``, and the figures that it rests on. At the end of a run it writes the page."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._told = len(watch.history.found)

    def hooks(self) -> List[LearnerHook]:
        return [
            CallHook('findings', 20, position='after_iter', function=self.tell),
            CallHook('findings_page', 120, position='after_run', function=self.write_page),
        ]

    def begin(self, engine: 'BaseLearner', collector: 'GroupCollector') -> None:  # noqa
        """Make the file, and compare what the scorer pays for demonstrations and for junk, unless this is a resumed
        run. Called before the first collect."""
        watch = self._watch
        self._told = len(watch.history.found)
        if parallel.rank() == 0:  # a file without findings says that they were looked for
            os.makedirs(run_folder(engine.exp_name), exist_ok=True)
            open(_path(engine), 'a', encoding='utf-8').close()
        if watch.history.updates == 0:
            watch.probed(parallel.broadcast_object(collector.probe(PROBED) if parallel.rank() == 0 else None))
            self.tell(engine)

    def tell(self, engine: 'BaseLearner') -> None:  # noqa
        found = self._watch.history.found
        new, self._told = found[self._told:], len(found)
        if parallel.rank() > 0:
            return
        for finding in new:
            append_json(_path(engine), finding)
            show(f"finding after update {finding['update']}, {finding['cause']}: {finding['message']}")

    def write_page(self, engine: 'BaseLearner') -> None:  # noqa
        """Write the page, and show where it is."""
        self.tell(engine)  # what the last evaluation showed
        if engine.rank != 0:
            return
        history = self._watch.history
        path = os.path.normpath(os.path.join(run_folder(engine.exp_name), PAGE))
        with open(path, 'w', encoding='utf-8') as f:
            f.write(page(engine.exp_name, history.state_dict()))
        causes = ', '.join(finding['cause'] for finding in history.found)
        show(f"findings: {causes or 'none'} ({path})")


def _path(engine: 'BaseLearner') -> str:  # noqa
    return os.path.join(run_folder(engine.exp_name), FINDINGS)


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
