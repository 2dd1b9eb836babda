"""
DI-engine's docstrings as Markdown. A sample, and what becomes of it:

    Overview:                                       Mean over the tokens of a row.
        Mean over the tokens of a row.
    Arguments:                                      **Arguments**
        - x (:obj:`torch.FloatTensor`): Numbers.    - **`x`** (`torch.FloatTensor`): Numbers.
    Shapes:                                         **Shapes**
        - x (:obj:`torch.FloatTensor`): :math:`(B, )`   - **`x`** (`torch.FloatTensor`): `(B, )`
"""
import inspect
import re
from typing import List

SECTION = re.compile(r'^([A-Z][a-z]+):$')
ROLE = re.compile(r':[a-z]+:`([^`]*)`')  # :obj:`int`, :math:`(B, S)`
CONTINUED = re.compile(r'(?<=\S) {8,}')  # the indentation of a line after one that ends in a backslash
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
    text = CONTINUED.sub(' ', ROLE.sub(lambda role: f'`{role[1]}`', text))
    if not text:
        return ''
    if title == 'Overview':
        return text
    items = [ITEM.sub(_item, line) for line in text.splitlines()]
    return f'**{title}**\n\n' + '\n'.join(items)


def _item(found: re.Match) -> str:
    kind = f' ({found[2]})' if found[2] else ''
    return f'- **`{found[1]}`**{kind}: '
