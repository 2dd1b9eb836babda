"""
Write the reference from the sources: ``python tools/docs/reference.py``. A page in docs/reference/ or docs/design/
contains the result between two comments:

    <!-- api: ding_grpo.rl_utils -->            every name that this package exports
    <!-- config: GRPOPolicy policy -->          the keys of this class's ``config = dict(...)``, with their comments
    <!-- file: ding_grpo/loop.py -->            the file itself
    <!-- end -->

The sources are read, not imported, so that this needs only Python. A key without a comment, or a class without such
defaults, is an error.
"""
import ast
import glob
import os
import re
import sys
import textwrap
from functools import cache
from typing import Dict, Optional, Tuple

from docstrings import to_markdown

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
sys.path.insert(0, os.path.join(ROOT, 'ding_common', 'config'))  # a package needs torch, and this module does not
import documented  # noqa: E402  isort: skip

PAGES = os.path.join(ROOT, 'docs')
FOLDERS = ('reference', 'design')  # of pages with generated parts
PACKAGES = ('ding_common', 'ding_grpo', 'dizoo_llm')
PART = re.compile(r'^(<!-- (api|config|file): ([^\n]+) -->\n).*?^(<!-- end -->)$', re.MULTILINE | re.DOTALL)
PAGE = re.compile(r'docs/([\w/]+\.md)')
MOST_LINES = 30  # of a constant
HIDDEN = ('config', 'rules')  # attributes of classes, whose keys the tables list

Source = documented.Source
Definition = Tuple[Source, ast.stmt]


def written(text: str) -> str:
    """
    Overview:
        A page with its generated parts as they should be.
    Arguments:
        - text (:obj:`str`): The page as it is.
    """

    def replace(found: re.Match) -> str:
        part = dict(api=api, config=config, file=source_of)[found[2]](*found[3].split())
        return f'{found[1]}\n{part}\n\n{found[4]}'

    return PART.sub(replace, text)


def source_of(path: str) -> str:
    """A file, as a block of Python."""
    with open(os.path.join(ROOT, path), encoding='utf-8') as f:
        return f'```python\n{f.read().rstrip()}\n```'


def api(package: str) -> str:
    """
    Overview:
        Signature and docstring of each public name that a package imports into itself, or that a module defines.
    Arguments:
        - package (:obj:`str`): Such as ``ding_grpo.rl_utils``, or a module such as ``ding_grpo.policy``.
    """
    source, elsewhere = _module(package), []
    found: Dict[str, Definition] = {
        node.name: (source, node)
        for node in source.tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith('_')
    }
    for node in ast.walk(source.tree) if source.path.endswith('__init__.py') else ():
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            for alias in node.names:
                definition = _definition(f'{package}.{node.module}', alias.name)
                if definition is None:
                    elsewhere.append(alias.asname or alias.name)
                else:
                    found[alias.asname or alias.name] = definition
    if not found:
        raise ValueError(f'{package} exports nothing')
    names = sorted(found, key=lambda name: (name.isupper(), name.islower(), name))  # classes, functions, constants
    parts = [_entry(name, *found[name]) for name in names]
    if elsewhere:
        parts.append('Re-exported from DI-engine: ' + ', '.join(f'`{name}`' for name in sorted(elsewhere)) + '.')
    return '\n\n'.join(parts)


def _module(name: str) -> Source:
    path = os.path.join(ROOT, *name.split('.'))
    return _read(os.path.join(path, '__init__.py') if os.path.isdir(path) else path + '.py')


def _definition(module: str, name: str) -> Optional[Definition]:
    """Where a module, or one that it imports from beside itself, defines a name; None: in another package."""
    source = _module(module)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            if node.level == 0:
                return None
            here = module if source.path.endswith('__init__.py') else module.rpartition('.')[0]
            return _definition(f'{here}.{node.module}', name)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return source, node
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return source, node
    raise ValueError(f'{module} does not define {name}')


def _entry(name: str, source: Source, node: ast.stmt) -> str:
    """What a page says of a name, and of the methods of a class."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        lines = _lines(source, node, node.end_lineno).splitlines()
        code = '\n'.join(lines[:MOST_LINES] + ['...'] * (len(lines) > MOST_LINES))
        return f'### `{name}`\n\nIn `{source.path}`.\n\n{_fenced(code)}'
    members = [m for m in getattr(node, 'body', []) if isinstance(node, ast.ClassDef) and not _is_hidden(m)]
    init = [m for m in members if isinstance(m, ast.FunctionDef) and m.name == '__init__']
    fields = [_lines(source, m, m.end_lineno) for m in members if isinstance(m, ast.AnnAssign)]
    code = '\n'.join([_head(source, node), *fields, *('\n' + _head(source, m) for m in init)])
    parts = [f'### `{name}`', f'In `{source.path}`.', _fenced(code), *map(_docstring, [node, *init])]
    for member in members:
        if isinstance(member, ast.FunctionDef) and member not in init and ast.get_docstring(member):
            parts += [f'#### `{name}.{member.name}`', _fenced(_head(source, member)), _docstring(member)]
    return '\n\n'.join(filter(None, parts))


def _is_hidden(node: ast.stmt) -> bool:
    target = getattr(node, 'target', None)
    name = target.id if isinstance(target, ast.Name) else getattr(node, 'name', '')
    return name in HIDDEN or name.startswith('_') and name != '__init__'


def _head(source: Source, node: ast.stmt) -> str:
    """The lines of a class or a function before its body, as they are."""
    return _lines(source, node, max(node.lineno, node.body[0].lineno - 1))


def _lines(source: Source, node: ast.stmt, last: int) -> str:
    first = min([node.lineno, *(d.lineno for d in getattr(node, 'decorator_list', []))])
    return '\n'.join(source.lines[first - 1:last])


def _fenced(code: str) -> str:
    return f'```python\n{textwrap.dedent(code)}\n```'


def _docstring(node: ast.stmt) -> str:
    return _linked(to_markdown(ast.get_docstring(node, clean=False) or ''))


def _linked(text: str) -> str:
    """Pages that a text names, as links from docs/reference/."""
    return PAGE.sub(r'[\1](../\1)', text)


def config(name: str, prefix: str) -> str:
    """
    Overview:
        Tables of the keys of a class's defaults, one for each section.
    Arguments:
        - name (:obj:`str`): The class; or a name that is assigned the ``dict(...)`` at the top of a file.
        - prefix (:obj:`str`): Where in a config the section is, such as ``policy``.
    """
    parts = []
    for section in _documented().sections(name, prefix):
        rows = [f'| `{k.name}` | `{_cell(k.type)}` | `{_cell(k.default)}` | {_cell(k.meaning)} |' for k in section.keys]
        table = '\n'.join(['| key | type | default | meaning |', '|---|---|---|---|', *rows])
        parts += [f'### `{section.path}`', section.note, table]
    return _linked('\n\n'.join(filter(None, parts)))


@cache
def _documented() -> documented.Documented:
    return documented.Documented([os.path.join(ROOT, package) for package in PACKAGES])


def _cell(text: str) -> str:
    return text.replace('|', '\\|')


def _read(path: str) -> documented.Source:
    return documented.read_source(path)._replace(path=os.path.relpath(path, ROOT))


def main() -> None:
    for path in (p for folder in FOLDERS for p in glob.glob(os.path.join(PAGES, folder, '*.md'))):
        with open(path, encoding='utf-8') as f:
            text = f.read()
        if written(text) != text:
            with open(path, 'w', encoding='utf-8') as f:
                f.write(written(text))
            print(f'wrote {os.path.relpath(path)}')


if __name__ == '__main__':
    main()
