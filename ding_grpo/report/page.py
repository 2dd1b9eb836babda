"""
One HTML page, which loads nothing. Texts of a model are data: they are inside compressed chunks and JSON, and the
page's script inserts them as text. A Content-Security-Policy lets the browser run the page's own scripts only, by their
hashes, and open no connection.
"""
import base64
import hashlib
import json
import os
import time
from typing import Any, Dict, List

from plotly.offline import get_plotlyjs

from .run import Run

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = ('data.js', 'curves.js', 'tree.js', 'completions.js', 'page.js')


def write_page(path: str, runs: List[Run]) -> int:
    """Write the page, and return its size in bytes. An existing file is replaced when the new one is complete."""
    beside = f'{path}.tmp'
    with open(beside, 'w', encoding='utf-8', errors='replace', newline='\n') as f:
        for text in _parts(runs):
            f.write(text)
    os.replace(beside, path)
    return os.path.getsize(path)


def _parts(runs: List[Run]) -> List[str]:
    """The page in parts, of which most are large."""
    library, own = get_plotlyjs().replace('\r', ''), '\n'.join(map(_read, SCRIPTS))
    before, after = _read('page.html').split('<!-- scripts -->')
    allowed = f"script-src '{_hash(library)}' '{_hash(own)}'; style-src 'unsafe-inline'; img-src data: blob:"
    before = before.replace('/* style */', _read('page.css')).replace(
        '<!-- policy -->', f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}">'
    )
    parts = [before, f'<script type="application/json" id="data">{_json(_data(runs))}</script>\n']
    for i, run in enumerate(runs):
        for source in run.sources:
            parts += [
                f'<script type="text/plain" id="{i}-{source.name}-{number}">{chunk}</script>\n'
                for number, chunk in enumerate(source.chunks)
            ]
    return parts + [f'<script>{library}</script>\n<script>{own}</script>', after]


def _data(runs: List[Run]) -> Dict[str, Any]:
    written = time.strftime('%Y-%m-%d %H:%M')
    return dict(
        written=written,
        runs=[
            dict(run._asdict(), name=name, sources=[dict(name=s.name, updates=s.updates) for s in run.sources])
            for name, run in zip(_names(runs), runs)
        ]
    )


def _names(runs: List[Run]) -> List[str]:
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f'{name} ({i + 1})' for i, name in enumerate(names)]


def _json(data: Any) -> str:
    """JSON that cannot end the script element that contains it."""
    return json.dumps(data, ensure_ascii=False, separators=(',', ':'), allow_nan=False).replace('<', '\\u003c')


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8', 'replace')).digest()).decode()}"


def _read(name: str) -> str:
    with open(os.path.join(HERE, name), encoding='utf-8') as f:
        return f.read()
