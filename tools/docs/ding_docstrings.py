"""
DI-engine's docstrings as Markdown. A sample, and what becomes of it:

    Overview:                                       Mean over the tokens of a row.
        Mean over the tokens of a row.
    Arguments:                                      **Arguments**
        - x (:obj:`torch.FloatTensor`): Numbers.    - **`x`** (`torch.FloatTensor`): Numbers.
    Shapes:                                         **Shapes**
        - x (:obj:`torch.FloatTensor`): :math:`(B, )`   - **`x`** (`torch.FloatTensor`): `(B, )`

griffe, which reads the sources for mkdocstrings without importing them, calls the extension at the end of this file.
"""
import inspect
import re
from typing import Any, List

import griffe

SECTION = re.compile(r'^([A-Z][a-z]+):$')
ROLE = re.compile(r':[a-z]+:`([^`]*)`')  # :obj:`int`, :math:`(B, S)`
ITEM = re.compile(r'^- \*{0,2}(\w+)(?: \((.*?`)\))?: ?')  # - name (`type`): text


def to_markdown(docstring: str) -> str:
    """
    Overview:
        One docstring. Text without a section, such as a line alone, stays as it is.
    Arguments:
        - docstring (:obj:`str`): With or without sections.
    Returns:
        - markdown (:obj:`str`): The same with bold headings, lists, and code in place of roles.
    """
    blocks: List[str] = []
    title, body = 'Overview', []
    for line in [*inspect.cleandoc(docstring).splitlines(), 'End:']:
        found = SECTION.match(line)
        if found is None:
            body.append(line)
            continue
        blocks.append(_block(title, body))
        title, body = found[1], []
    return '\n\n'.join(filter(None, blocks))


def _block(title: str, lines: List[str]) -> str:
    text = inspect.cleandoc('\n'.join(['', *lines])).strip()
    text = ROLE.sub(lambda role: f'`{role[1]}`', text)
    if not text:
        return ''
    if title == 'Overview':
        return text
    items = [ITEM.sub(_item, line) for line in text.splitlines()]
    return f'**{title}**\n\n' + '\n'.join(items)


def _item(found: re.Match) -> str:
    kind = f' ({found[2]})' if found[2] else ''
    return f'- **`{found[1]}`**{kind}: '


class DingDocstrings(griffe.Extension):
    """
    Overview:
        Convert every docstring of the packages that mkdocstrings loads.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self._convert(pkg)

    def _convert(self, obj: griffe.Object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
        for member in obj.members.values():
            if not member.is_alias:
                self._convert(member)
