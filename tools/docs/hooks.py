"""
What mkdocs does not do by itself. A paragraph that is only a link to a file of config/ becomes this file, and one to
benchmarks/README.md becomes its table: a site has no files beside docs/; in a clone and on a forge the links lead
there. A link to a notebook becomes its path. Formulas become MathML, which browsers show without a script.
"""
import html
import os
import re
from typing import Any

from latex2mathml.converter import convert

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
LINK = re.compile(r'^\[[^\]]+\]\((?:\.\./)+(config/\w+\.py)\)$', re.MULTILINE)
TABLE = re.compile(r'^\[[^\]]+\]\(\.\./\.\./(benchmarks/README\.md)\)$', re.MULTILINE)
NOTEBOOK = re.compile(r'\[[^\]]+\]\((?:\.\./)+(notebooks/\w+\.ipynb)\)')
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """
    Overview:
        Replace such links.
    Arguments:
        - markdown (:obj:`str`): The page as it is in docs/.
    Returns:
        - markdown (:obj:`str`): With code, tables and paths in place of these links.
    """
    markdown = LINK.sub(lambda link: f'```python title="{link[1]}"\n{_read(link[1])}```', markdown)
    markdown = NOTEBOOK.sub(r'`\1`', markdown)
    return TABLE.sub(lambda link: _table(link[1]), markdown)


def on_page_content(content: str, **kwargs: Any) -> str:
    """
    Overview:
        Formulas as MathML.
    Arguments:
        - content (:obj:`str`): HTML with the formulas as pymdownx.arithmatex marks them.
    """

    def mathml(found: re.Match) -> str:
        return convert(html.unescape(found[2]), display='inline' if found[1] == 'span' else 'block')

    return FORMULA.sub(mathml, content)


def _table(path: str) -> str:
    """The rows of a table whose links lead to pages, as docs/results/ has them."""
    rows = [line for line in _read(path).splitlines() if line.startswith('|')]
    table = '\n'.join(rows).replace('](../docs/results/', '](').replace('](../docs/', '](../')
    return re.sub(r'\[([^\]]+)\]\(\.\./README\.md\)', r'\1', table)


def _read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding='utf-8') as f:
        return f.read()
