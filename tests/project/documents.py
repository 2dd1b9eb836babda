"""The pages of the project as tests read them: their blocks, commands and links."""
import glob
import os
import re
import shlex
from typing import Iterator, List, NamedTuple, Tuple

from tests.processes import ROOT

_DOCS = [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, 'docs', '**', '*.md'), recursive=True)]
_OTHERS = [os.path.join(folder, 'README.md') for folder in ('benchmarks', 'tests')]
PAGES = ['README.md', 'CHANGELOG.md', *_OTHERS, *sorted(_DOCS)]
PROGRAMS = ('python', 'python3.11', 'ding', 'torchrun', 'make', 'pip', 'uv', '.venv/bin/python', '.venv/bin/pip')
PROGRAMS += ('.venv-new/bin/pip', '.venv-verifiers/bin/python', 'docker')


class Block(NamedTuple):
    """A block of code: fenced, or indented by four spaces, which has no language."""
    page: str
    language: str
    text: str

    @property
    def name(self) -> str:
        """Page and beginning of the first line."""
        return f'{os.path.basename(self.page)}: {self.text.strip().splitlines()[0][:40].strip()}'


def read(page: str) -> str:
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


# Written from the sources: docstrings and keys.
GENERATED = tuple(page for page in PAGES if re.search('^<!-- (api|config): ', read(page), re.M))


def split(page: str) -> Tuple[str, List[Block]]:
    """(text without blocks, the blocks) of a page."""
    prose: List[str] = []
    blocks: List[Block] = []
    kind, indent, in_list = '', 0, False  # kind of the block that the last line is in
    for line in read(page).splitlines():
        start = re.match(r'( *)```(\w*)', line)
        if kind == 'fenced':
            if line.strip() == '```':
                kind = ''
                continue
        elif start:
            kind, indent = 'fenced', len(start[1])
            blocks.append(Block(page, start[2], ''))
            continue
        elif line.startswith('    ') and not in_list:
            if kind == '':
                kind, indent = 'indented', 4
                blocks.append(Block(page, '', ''))
        elif line.strip() or kind == '':
            kind = ''
            if line[:1].strip():
                in_list = re.match(r'[-*] |\d+\. ', line) is not None
            prose.append(line)
        if kind:
            blocks[-1] = blocks[-1]._replace(text=blocks[-1].text + line[indent:] + '\n')
    return '\n'.join(prose), blocks


def blocks_of(page: str) -> List[Block]:
    return split(page)[1]


def is_shell(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line.strip()]
    return block.language == 'bash' or not block.language and all(line.split()[0] in PROGRAMS for line in lines)


def commands_of(page: str) -> Iterator[str]:
    """In blocks, and in the text if they have arguments."""
    prose, blocks = split(page)
    lines = [line for block in blocks if is_shell(block) for line in block.text.splitlines()]
    lines += [text for text in re.findall(r'`([^`\n]+)`', prose) if text.split()[0] in PROGRAMS and ' ' in text]
    for line in lines:
        for part in line.split(' && '):
            words = shlex.split(part, comments=True)
            if words:
                yield shlex.join(words)


def links(page):
    """(target, anchor) of a page's links."""
    for link in re.findall(r'\]\(([^)\s]+)\)', split(page)[0]):
        target, _, anchor = link.partition('#')
        yield target, anchor
