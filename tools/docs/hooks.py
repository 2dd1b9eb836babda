"""
What mkdocs does not do by itself. Two kinds of comments in a page of docs/ are replaced:

    <!-- api: ding_grpo.rl_utils -->            the reference of every name that this package exports
    <!-- config: GRPOPolicy policy -->          the keys of this class's ``config = dict(...)``, with their comments

Both are read from the sources, so that a renamed class or a new key needs no change in docs/. A key without a comment,
or a class without such defaults, stops the build.
"""
import ast
import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from mkdocs.exceptions import PluginError

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
PACKAGES = ('ding_common', 'ding_grpo', 'dizoo_llm')
COMMENT = re.compile(r'^<!-- (api|config): (.+) -->$', re.MULTILINE)
KEY = re.compile(r'\((.+?)\) (.+)', re.DOTALL)  # (type) meaning
PAGE = re.compile(r'docs/(\w+\.md)')
SHORT = 60  # characters of a default value in a table


class Source(NamedTuple):
    """
    Overview:
        A Python file of the packages.
    """
    path: str
    lines: List[str]
    tree: ast.Module


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """
    Overview:
        Replace the comments of a page.
    Arguments:
        - markdown (:obj:`str`): The page as it is in docs/.
        - page (:obj:`Page`): Where it is, for links out of it.
    Returns:
        - markdown (:obj:`str`): With the reference in place of the comments.
    """
    up = '../' * page.file.src_uri.count('/')

    def replace(found: re.Match) -> str:
        kind, arguments = found[1], found[2].split()
        return api(*arguments) if kind == 'api' else PAGE.sub(rf'[\1]({up}\1)', config(*arguments))

    return COMMENT.sub(replace, markdown)


def api(package: str) -> str:
    """
    Overview:
        What mkdocstrings calls an identifier, one for each public name that a package imports into itself.
    Arguments:
        - package (:obj:`str`): Such as ``ding_grpo.rl_utils``.
    """
    names, elsewhere = [], []
    for node in ast.walk(_read(os.path.join(ROOT, *package.split('.'), '__init__.py')).tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            module = f'{package}.{node.module}'
            for alias in node.names:
                name = alias.asname or alias.name
                (names if _is_defined(module, alias.name) else elsewhere).append(name)
    if not names:
        raise PluginError(f'{package} exports nothing')
    names.sort(key=lambda name: (name.isupper(), name.islower(), name))  # classes, functions, constants
    parts = [f'::: {package}.{name}' for name in names]
    if elsewhere:
        parts.append('Re-exported from DI-engine: ' + ', '.join(f'`{name}`' for name in sorted(elsewhere)) + '.')
    return '\n\n'.join(parts)


def _is_defined(module: str, name: str) -> bool:
    """Whether a name is made in a module, and not imported from another package."""
    path = os.path.join(ROOT, *module.split('.'))
    body = _read(os.path.join(path, '__init__.py') if os.path.isdir(path) else path + '.py').tree.body
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            if any((alias.asname or alias.name) == name for alias in node.names):
                return False
    return True


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
    return '\n\n'.join(filter(None, parts))


def _collect(source: Source, call: ast.Call, prefix: str, sections: Dict, notes: Dict) -> None:
    """The keys of one ``dict(...)`` first, then the sections in it."""
    nested = []
    rows = sections.setdefault(prefix, [])
    for keyword in call.keywords:
        where = f'{prefix}.{keyword.arg}'
        comment = _comment(source, keyword)
        if isinstance(keyword.value, ast.Call) and keyword.value.keywords and _is_dict(keyword.value):
            if keyword.arg != 'report':  # the hook, whose keys are DI-engine's
                nested.append((keyword.value, where))
                if comment:
                    notes[where] = KEY.sub(r'\2', comment)
                continue
        found = KEY.fullmatch(comment)
        if found is None and (comment or not _is_dict(keyword.value)):
            raise PluginError(f'{source.path}:{keyword.lineno}: {where} has no comment of the form "# (type) meaning"')
        if found is not None:
            rows.append(f'| `{keyword.arg}` | `{_cell(found[1])}` | `{_value(keyword.value)}` | {_cell(found[2])} |')
    if not rows:
        del sections[prefix]
    for value, where in nested:
        _collect(source, value, where, sections, notes)


def _comment(source: Source, keyword: ast.keyword) -> str:
    """The comment above a key, in one line; double backticks become code."""
    found: List[str] = []
    number = keyword.lineno - 2
    while number >= 0 and source.lines[number].lstrip().startswith('#'):
        found.insert(0, source.lines[number].strip().lstrip('#').strip())
        number -= 1
    return ' '.join(found)


def _value(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'Key':
        node = node.args[0]  # the default; the other argument is its rule
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
    raise PluginError(f'no class {name} with config = dict(...), and no {name} = dict(...), in {", ".join(PACKAGES)}')


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
