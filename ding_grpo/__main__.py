"""
``python -m ding_grpo`` runs ``ding`` with the same options, but hides the messages that DI-engine and old gym print
when they are imported. The ``ding`` command imports them before any plugin can hide these messages. With ``--check`` it
examines a config before a run, see ``check.py``.
"""
import copy
import sys
from typing import List, Optional

import click

from ding_common import import_ding

NAME = 'python -m ding_grpo'


def main(args: Optional[List[str]] = None) -> None:
    """
    Overview:
        Run DI-engine's command line.
    Arguments:
        - args (:obj:`Optional[List[str]]`): Its arguments; None uses the arguments of this process.
    """
    import_ding()
    import ding_grpo  # noqa: F401  imported first, so that the sections of the command's config are checked
    args = sys.argv[1:] if args is None else args
    if '--check' in args:
        from . import check
        check.main([arg for arg in args if arg != '--check'], prog_name=f'{NAME} --check')
    from ding.entry.cli import cli
    program = copy.copy(cli)
    text = 'Examine the config of -c before a run: scorer, lengths, time and memory. More: --check --help.'
    program.params = [*cli.params, click.Option(['--check'], is_flag=True, expose_value=False, help=text)]
    program(args, prog_name=NAME)


if __name__ == '__main__':
    main()
