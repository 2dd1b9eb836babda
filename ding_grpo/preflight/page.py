"""The page of an examination."""
import html
from typing import List

from .examination import Part

_STYLE = '''body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
pre { background: #f4f4f4; padding: .7em 1em; overflow-x: auto; white-space: pre-wrap; }
.finding { border-left: .3em solid #c0392b; padding: .1em 1em; margin: .6em 0; }
.none { border-left: .3em solid #27ae60; padding: .1em 1em; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; } pre { background: #262626; } }'''


def write_page(path: str, name: str, parts: List[Part]) -> None:
    """Write one HTML file, which loads nothing."""
    sections = []
    for part in parts:
        sections.append(f'<h2>{html.escape(part.name)}</h2>')
        sections += [
            f"<div class=finding><p><b>{html.escape(f['cause'])}</b>: {html.escape(f['message'])}</p></div>"
            for f in part.findings
        ] or ['<div class=none><p>nothing found</p></div>'] * part.examined
        sections.append(f"<pre>{html.escape(chr(10).join(part.lines))}</pre>")
    title = f'Before a run: {html.escape(name)}'
    text = f'<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>{title}</title>\n<style>{_STYLE}</style>\n' \
           f'<h1>{title}</h1>\n' + '\n'.join(sections) + '\n</html>\n'
    with open(path, 'w', encoding='utf-8', errors='backslashreplace') as f:
        f.write(text)
