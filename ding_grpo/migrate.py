"""
Rewrite a config in which keys have the names of versions before 0.1: ``python -m ding_grpo.migrate FILE``. Keys in
``dict(...)`` and ``.update(...)`` move with their comments, names with dots such as ``policy.learn.beta`` are replaced.
What is built in another way stays, and starting a run then names it.
"""
import ast
import re
import textwrap
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import click

from .config.moved import MOVED, PROCESSORS

_SECTIONS = ('learn', 'collect')
_AFTER = re.compile(r'\s*,?[^\S\n]*(#[^\n]*)?')  # an item: its comma, and a comment in its line
# DI-engine's policies have some of the old names. A config of its PPO may mention the one of grpo.
_OF_PPO = re.compile(
    r'''\btype['"]?\]?\s*[=:]\s*['"]ppo|main_config,\s*create_config\s*=\s*shipped_config\(\s*(?:name=)?['"]\w+_ppo'''
)


class Item(NamedTuple):
    """An item of a call: its name, its value, and its code with its comments, without a comma at the end."""
    name: str
    value: str
    code: str
    end: int


def migrated(source: str) -> str:
    """The source of a config with the current names of keys. Raises a ``SyntaxError`` if it is not Python."""
    while True:
        edits = [edit for section in _sections(source) if (edit := _edit(source, section))]
        if not edits:
            break
        begin, end, text = max(edits)  # one at a time: positions change with each, inner calls first
        source = source[:begin] + text + source[end:]
    for old, new in MOVED.items():
        if '.' in old:
            source = re.sub(rf'\b{re.escape(old)}\b', new, source)
    return source


class Section(NamedTuple):
    """A call that makes or updates a section; ``owner`` is the section above it, None if the call is in its call."""
    call: ast.Call
    name: str
    owner: Optional[ast.expr]
    form: str = ''


def _sections(source: str) -> Iterator[Section]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in _SECTIONS and isinstance(node.value, ast.Call):
            yield Section(node.value, node.arg, None)
        elif isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'update':
            section = node.func.value
            if getattr(section, 'attr', '') in _SECTIONS:
                yield Section(node, section.attr, section.value, '{owner}.{name}.update({items})')
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            section = node.targets[0]
            if getattr(section, 'attr', '') in _SECTIONS:
                yield Section(node.value, section.attr, section.value, '{owner}.{name} = dict({items})')


def _edit(source: str, of: Section) -> Tuple[int, int, str]:
    """Where a call begins and ends, and what takes its place; empty if nothing moves."""
    at, call, section = _offsets(source), of.call, of.name
    begin, head = at(call.lineno, call.col_offset), source.index('(', at(*_end(call.func))) + 1
    items, end = _items(source, call, at, head), at(*_end(call))
    processors: List[str] = []
    of_section: Dict[str, List[str]] = {section: []}  # the new items
    for item in items:
        old = f'{section}.{item.name}'
        target, _, key = MOVED.get(old, old).rpartition('.')
        if old in PROCESSORS:
            processors.append(_processor(item))
        else:
            of_section.setdefault(target, []).append(_renamed(item, key))
    here = of_section.pop(section)
    if here == [item.code for item in items]:
        return ()
    if processors:
        here.append(f"processors=[{', '.join(processors)}]")
    for below in [path for path in of_section if path.startswith(f'{section}.')]:
        here.append(f"{below.rpartition('.')[2]}=dict({_listed(of_section.pop(below))})")
    last = source[items[-1].end:end]  # the end of the call
    space = re.match(r'\s*', source[head:])[0]
    new_call = f'{source[begin:head]}{_listed(here, space)}{last.lstrip() if not space else last}'
    for name, moved in of_section.items():  # sections above this one
        codes = _listed(moved)
        line = source[source.rfind('\n', 0, begin) + 1:begin]
        indent = re.match(r' *', line)[0]
        if of.owner is not None:
            made = of.form.format(owner=ast.get_source_segment(source, of.owner), name=name, items=codes)
            between = f'\n{indent}'
        else:
            alone = line.strip() == f'{section}='
            made = textwrap.indent(f'{name}=dict({codes})', indent if alone else '').lstrip()
            between = f',\n{indent}' if alone else ', '
            begin -= 0 if here else len(f'{section}=')
        new_call = new_call + between + made if here else made
        here.append(name)
    return begin, end, new_call


def _end(node: ast.AST) -> Tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _offsets(source: str) -> Callable[[int, int], int]:
    """Line and column of ``ast``, which counts bytes, as a position."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return lambda line, column: starts[line - 1] + len(lines[line - 1].encode()[:column].decode())


def _items(source: str, call: ast.Call, at: Callable[[int, int], int], begin: int) -> List[Item]:
    items = []
    nodes = [(getattr(node, 'arg', None) or '', node) for node in (*call.args, *call.keywords)]
    for name, node in sorted(nodes, key=lambda pair: (pair[1].lineno, pair[1].col_offset)):
        value = ast.get_source_segment(source, getattr(node, 'value', node) if name else node)
        end = _AFTER.match(source, at(*_end(node))).end()
        text = textwrap.dedent(re.sub(r'^\s*\n', '', source[begin:end])).strip()
        comment = text[text.rindex('#'):] if '#' in text.splitlines()[-1] else ''
        code = text[:len(text) - len(comment)].rstrip().rstrip(',') + (f',  {comment}' if comment else '')
        items.append(Item(name, value, code, end))
        begin = end
    return items


def _renamed(item: Item, key: str) -> str:
    return re.sub(rf'(?m)^(\s*){item.name}=', rf'\g<1>{key}=', item.code, count=1)


def _processor(item: Item) -> str:
    kind, argument = PROCESSORS[f'collect.{item.name}']
    return f"dict(type='{kind}', {argument}={item.value})" if argument else f'dict(type={item.value})'


def _listed(codes: List[str], space: str = '') -> str:
    """Items of a call, in one line or, if one has a comment or ``space`` a line break, each in a line of its own."""
    if '\n' not in space and not any('#' in code for code in codes):
        return ', '.join(codes)
    indent = space.rpartition('\n')[2] if '\n' in space else ' ' * 4
    lines = [code if '#' in code.splitlines()[-1] else f'{code},' for code in codes]
    return f"\n{textwrap.indent(chr(10).join(lines), indent)}" + ('' if '\n' in space else '\n')


@click.command()
@click.argument('files', nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def main(files: Tuple[str, ...]) -> None:
    """Rewrite configs with the current names of keys, in place."""
    for path in files:
        with open(path, encoding='utf-8') as f:
            source = f.read()
        if _OF_PPO.search(source):
            click.echo(f'{path}: a config of PPO, left as it is')
            continue
        found = migrated(source) if 'grpo' in source else source
        if found != source:
            with open(path, 'w', encoding='utf-8') as f:
                f.write(found)
        click.echo(f"{path}: {'rewritten' if found != source else 'nothing to change'}")


if __name__ == '__main__':
    main()
