"""
``python -m ding_grpo`` is ``ding`` with the same options, without what DI-engine and old gym print at their import:
the ``ding`` command imports them before any plugin can ask for silence.
"""
from typing import List, Optional

from ding_common import import_ding


def main(args: Optional[List[str]] = None) -> None:
    """
    Overview:
        Run DI-engine's command line.
    Arguments:
        - args (:obj:`Optional[List[str]]`): Its arguments; None takes those of this process.
    """
    import_ding()
    import ding_grpo  # noqa: F401  before the command reads a config, whose sections it then checks
    from ding.entry.cli import cli
    cli(args, prog_name='ding')


if __name__ == '__main__':
    main()
