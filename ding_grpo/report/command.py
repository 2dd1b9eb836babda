"""The command line of the report."""
import os
from typing import Optional, Tuple

import click

from ding_common import ConfigError, check_links

from .page import write_page
from .run import read_run

NAME = 'report.html'


@click.command()
@click.argument('runs', nargs=-1, required=True, type=click.Path())
@click.option('--out', default=None, help=f'File to write; by default {NAME} in the folder of the first run.')
def main(runs: Tuple[str, ...], out: Optional[str]) -> None:
    """Write one HTML page about one or several RUNS, folders of finished runs or of runs in progress."""
    folders = [os.path.normpath(os.path.expanduser(run)) for run in runs]
    for folder in folders:
        check_folder(folder)
    path = os.path.expanduser(out) if out else os.path.join(folders[0], NAME)
    try:
        size = write_page(path, [read_run(folder) for folder in folders])
    except OSError as error:
        raise click.BadParameter(f'{path!r}: {error.strerror}', param_hint='--out') from error
    click.echo(f'report: {path} ({size / 1e6:.1f} MB)')


def check_folder(folder: str) -> None:
    """Raise ``ConfigError`` unless a folder has the files of a run, and no links in their place that lead outside."""
    if not os.path.isdir(folder):
        raise ConfigError(f'RUN = {folder!r}: there is no such folder. Give the folder of a run, its exp_name.')
    if not os.path.isdir(os.path.join(folder, 'log')):
        raise ConfigError(f'RUN = {folder!r}: contains no folder log, so it is not the folder of a run (its exp_name).')
    for name in ('log', 'findings.jsonl', 'total_config.py'):
        if os.path.lexists(os.path.join(folder, name)):
            check_links(os.path.join(folder, name), 'RUN')
