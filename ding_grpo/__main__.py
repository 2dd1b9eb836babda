"""
``python -m ding_grpo`` is the ``ding`` command with the same options, but without the notices that DI-engine and the
old gym print on import. ``ding`` imports both before any plugin can silence them.
"""
from typing import List, Optional

from ding_common import import_ding


def main(args: Optional[List[str]] = None) -> None:
    """
    Overview:
        Run DI-engine's command line.
    Arguments:
        - args (:obj:`Optional[List[str]]`): Command-line arguments; None uses those of this process.
    """
    import_ding()
    import ding_grpo  # noqa: F401  imported first, so that it checks the config that the command reads
    from ding.entry.cli import cli
    cli(args, prog_name='ding')


if __name__ == '__main__':
    main()
