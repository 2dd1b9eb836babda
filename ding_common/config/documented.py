"""
What the comments of defaults say of each key: ``(type) meaning`` above it, in a ``dict(...)`` that a class has as its
``config``, or that is assigned to a name. Sources are read, not imported, so that this needs only Python.
"""
import ast
import os
import re
from typing import Any, Iterator, List, NamedTuple, Tuple

_COMMENT = re.compile(r'\((.+?)\) (.+)', re.DOTALL)  # (type) meaning
_SHORT = 60  # characters of a default value


class Source(NamedTuple):
    """A Python file."""
    path: str
    lines: List[str]
    tree: ast.Module


class DocumentedKey(NamedTuple):
    """A key: its name, and its type, default and meaning as its source has them."""
    name: str
    type: str
    default: str
    meaning: str


class Section(NamedTuple):
    """A section of a config by its dotted path, what is said of it, and its keys, without those of sections in it."""
    path: str
    note: str
    keys: List[DocumentedKey]


def read_source(path: str) -> Source:
    with open(path, encoding='utf-8') as f:
        text = f.read()
    return Source(path, text.splitlines(), ast.parse(text))


class Documented:
    """The defaults in the files of some packages."""

    def __init__(self, packages: List[str]) -> None:
        """``packages`` are folders."""
        self._sources = [
            read_source(os.path.join(folder, name)) for package in packages
            for folder, _, names in sorted(os.walk(package)) for name in sorted(names) if name.endswith('.py')
        ]

    def sections(self, name: str, path: str) -> Iterator[Section]:
        """The sections of a class's defaults, or of a name's, each before those in it. ``path`` is where they are in a
        config, such as ``policy``. Raises a ``ValueError`` if there are none, or if a key has no comment."""
        yield from self._sections(*self._defaults(name), path, '')

    def _sections(self, source: Source, call: ast.Call, path: str, note: str) -> Iterator[Section]:
        keys, below = [], []
        for source, keyword in self._keywords(source, call):
            where, comment, value = f'{path}.{keyword.arg}', _comment(source, keyword), keyword.value
            if isinstance(value, ast.Attribute):  # a section of another file
                below.append((*self._defaults(value.attr), where, comment))
            elif _is_dict(value) and value.keywords and keyword.arg != 'report':  # a hook, whose keys are DI-engine's
                below.append((source, value, where, _COMMENT.sub(r'\2', comment)))
            else:
                found = _COMMENT.fullmatch(comment)
                if found is not None:
                    keys.append(DocumentedKey(keyword.arg, found[1], _default(value), found[2]))
                elif comment or not _is_dict(value):
                    place = f'{source.path}:{keyword.lineno}'
                    raise ValueError(f'{place}: {where} has no comment of the form "# (type) meaning"')
        if keys:
            yield Section(path, note, keys)
        for section in below:
            yield from self._sections(*section)

    def _keywords(self, source: Source, call: ast.Call) -> Iterator[Tuple[Source, ast.keyword]]:
        """The keywords of a ``dict(...)``, with those of other files (``**module.NAME``) in their place."""
        for keyword in call.keywords:
            if keyword.arg is None:
                yield from self._keywords(*self._defaults(keyword.value.attr))
            else:
                yield source, keyword

    def _defaults(self, name: str) -> Tuple[Source, ast.Call]:
        for source in self._sources:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    value = _assigned(node.body, 'config')
                    if isinstance(value, ast.Name):  # defaults that are in a file of their own
                        return self._defaults(value.id)
                    if _is_dict(value):
                        return source, value
            value = _assigned(source.tree.body, name)
            if _is_dict(value):
                return source, value
        raise ValueError(f'no class {name} with config = dict(...), and no {name} = dict(...)')


def _assigned(body: List[ast.stmt], name: str) -> Any:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, 'target', None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    return None


def _is_dict(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict'


def _comment(source: Source, keyword: ast.keyword) -> str:
    """The comment above a key, in one line."""
    found: List[str] = []
    number = keyword.lineno - 2
    while number >= 0 and source.lines[number].lstrip().startswith('#'):
        found.insert(0, source.lines[number].strip().lstrip('#').strip())
        number -= 1
    return ' '.join(found)


def _default(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ('Key', 'optional'):
        node = node.args[0] if node.func.id == 'Key' else ast.Constant(None)  # without the rule
    text = ast.unparse(node)
    return text if len(text) <= _SHORT else text[:text.index('(') + 1] + '...)'
