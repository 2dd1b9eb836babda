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
import textwrap
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from docstrings import to_markdown

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
PAGES = os.path.join(ROOT, 'docs')
FOLDERS = ('reference', 'design')  # of pages with generated parts
PACKAGES = ('ding_common', 'ding_grpo', 'dizoo_llm')
PART = re.compile(r'^(<!-- (api|config|file): ([^\n]+) -->\n).*?^(<!-- end -->)$', re.MULTILINE | re.DOTALL)
KEY = re.compile(r'\((.+?)\) (.+)', re.DOTALL)  # (type) meaning
PAGE = re.compile(r'docs/([\w/]+\.md)')
SHORT = 60  # characters of a default value in a table
MOST_LINES = 30  # of a constant
HIDDEN = ('config', 'rules')  # attributes of classes, whose keys the tables list


class Source(NamedTuple):
    """
    Overview:
        A Python file of the packages.
    """
    path: str
    lines: List[str]
    tree: ast.Module


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
    source, defaults = _defaults(name)
    sections: Dict[str, List[str]] = {}
    notes: Dict[str, str] = {}
    _collect(source, defaults, prefix, sections, notes)
    parts = []
    for section, rows in sections.items():
        parts += [
            f'### `{section}`',
            notes.get(section, ''), '\n'.join(['| key | type | default | meaning |', '|---|---|---|---|', *rows])
        ]
    return _linked('\n\n'.join(filter(None, parts)))


def _collect(source: Source, call: ast.Call, prefix: str, sections: Dict, notes: Dict) -> None:
    """The keys of one ``dict(...)`` first, then the sections in it."""
    nested = []
    rows = sections.setdefault(prefix, [])
    for source, keyword in list(_keywords(source, call)):
        where = f'{prefix}.{keyword.arg}'
        comment = _comment(source, keyword)
        if isinstance(keyword.value, ast.Attribute):  # a section of another file
            nested.append((*_defaults(keyword.value.attr), where))
            if comment:
                notes[where] = comment
            continue
        if isinstance(keyword.value, ast.Call) and keyword.value.keywords and _is_dict(keyword.value):
            if keyword.arg != 'report':  # the hook, whose keys are DI-engine's
                nested.append((source, keyword.value, where))
                if comment:
                    notes[where] = KEY.sub(r'\2', comment)
                continue
        found = KEY.fullmatch(comment)
        if found is None and (comment or not _is_dict(keyword.value)):
            raise ValueError(f'{source.path}:{keyword.lineno}: {where} has no comment of the form "# (type) meaning"')
        if found is not None:
            rows.append(f'| `{keyword.arg}` | `{_cell(found[1])}` | `{_value(keyword.value)}` | {_cell(found[2])} |')
    if not rows:
        del sections[prefix]
    for source, value, where in nested:
        _collect(source, value, where, sections, notes)


def _keywords(source: Source, call: ast.Call) -> Iterator[Tuple[Source, ast.keyword]]:
    """The keywords of a ``dict(...)``, with those of other files (``**module.NAME``) in their place."""
    for keyword in call.keywords:
        if keyword.arg is None:
            yield from _keywords(*_defaults(keyword.value.attr))
        else:
            yield source, keyword


def _comment(source: Source, keyword: ast.keyword) -> str:
    """The comment above a key, in one line; double backticks become code."""
    found: List[str] = []
    number = keyword.lineno - 2
    while number >= 0 and source.lines[number].lstrip().startswith('#'):
        found.insert(0, source.lines[number].strip().lstrip('#').strip())
        number -= 1
    return ' '.join(found)


def _value(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ('Key', 'optional'):
        node = node.args[0] if node.func.id == 'Key' else ast.Constant(None)  # without the rule
    text = ast.unparse(node)
    return _cell(text if len(text) <= SHORT else text[:text.index('(') + 1] + '...)')


def _cell(text: str) -> str:
    return text.replace('|', '\\|')


def _defaults(name: str) -> Tuple[Source, ast.Call]:
    """The ``dict(...)`` of a class's attribute ``config``, or of a name at the top of a file."""
    sources = list(_sources())
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                value = _assigned(node.body, 'config')
                if isinstance(value, ast.Name):  # defaults that are in a file of their own
                    return _defaults(value.id)
                if value is not None and _is_dict(value):
                    return source, value
        value = _assigned(source.tree.body, name)
        if value is not None and _is_dict(value):
            return source, value
    raise ValueError(f'no class {name} with config = dict(...), and no {name} = dict(...), in {", ".join(PACKAGES)}')


def _assigned(body: List[ast.stmt], name: str) -> Any:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, 'target', None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    return None


def _is_dict(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict'


def _sources() -> Iterator[Source]:
    for package in PACKAGES:
        for folder, _, names in sorted(os.walk(os.path.join(ROOT, package))):
            for name in sorted(n for n in names if n.endswith('.py')):
                yield _read(os.path.join(folder, name))


def _read(path: str) -> Source:
    with open(path, encoding='utf-8') as f:
        text = f.read()
    return Source(os.path.relpath(path, ROOT), text.splitlines(), ast.parse(text))


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
