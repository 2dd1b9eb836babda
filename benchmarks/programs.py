"""The table of README.md: what each program shows, needs and runs."""
import os
import re
import subprocess
import sys
from typing import Dict, List, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, 'README.md')
LINK = re.compile(r'\[[^\]]+\]\(\.\./([^)]+)\)')


class Program(NamedTuple):
    """A row. ``page`` is relative to the repository, ``needs`` are words that the Makefile knows."""
    name: str
    shows: str
    minutes: str
    page: str
    needs: List[str]
    command: str


def programs() -> Dict[str, Program]:
    """All rows, by name."""
    with open(TABLE, encoding='utf-8') as f:
        rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in f if line.startswith('| `')]
    found = {}
    for name, shows, minutes, page, needs, command in rows:
        name = name.strip('`')
        found[name] = Program(name, shows, minutes, LINK.sub(r'\1', page), needs.split(', '), command.strip('`'))
    return found


def run(program: Program, options: List[str]) -> int:
    """Run the command in the root of the repository, by the Python that runs this. Returns the exit code."""
    path = os.pathsep.join([os.path.dirname(os.path.abspath(sys.executable)), os.environ.get('PATH', '')])
    env = {'JOBS': '2', 'TRL': '.venv-trl', 'SB3': '.venv-sb3', **os.environ, 'PATH': path}
    command = ['sh', '-c', f'exec env {program.command} "$@"', 'sh', *options]
    return subprocess.run(command, cwd=os.path.dirname(HERE), env=env).returncode
