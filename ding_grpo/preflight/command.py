"""
``python -m ding_grpo.preflight`` examines data and a reward before a run: whether the reward can teach anything, what
is wrong with the data. It trains nothing that is kept.
"""
import os
from typing import Any, Iterable, List, Optional, Tuple

import click
from easydict import EasyDict

from ding_common import ConfigError, ConfigFile, read_config_file

from .examination import Part, examined
from .learning import of_learning
from .page import write_page

PAGE = 'preflight.html'


@click.command()
@click.option('-c', '--config', type=ConfigFile(), help='Config file, or the name of a shipped config.')
@click.option(
    '--data',
    '--verl',
    'data',
    help="Data in place of a config: a file, a pattern, or a data set of the hub; verl's "
    'parquet files too.'
)
@click.option('--eval-data', help='Data of evaluation.')
@click.option('--reward', help="'file.py:function' or 'module:function', of this project's, TRL's or verl's form.")
@click.option('--model', help='Folder or name of the pretrained model, whose tokenizer and chat template are tried.')
@click.option('--trial/--no-trial', default=True, show_default=True, help='Train a tiny model on few problems.')
@click.option('--out', default=PAGE, show_default=True, help='Page to write.')
@click.argument('settings', nargs=-1, metavar='[KEY=VALUE]...')
def main(
        config: Optional[str], data: Optional[str], eval_data: Optional[str], reward: Optional[str],
        model: Optional[str], trial: bool, out: str, settings: Tuple[str, ...]
) -> None:
    """Examine data and reward before a run. The exit code is 1 if something is found."""
    if (config is None) == (data is None):
        raise click.UsageError('Give either --config or --data.')
    if not os.path.isdir(os.path.dirname(out) or '.') or os.path.isdir(out):
        raise click.BadParameter(f'{out!r}: must be a file in a folder that exists.', param_hint='--out')
    if config is not None:
        given = [name for name, value in dict(eval_data=eval_data, reward=reward, model=model).items() if value]
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} belongs to --data; a config names its own.")
        configs, tokens = read_config_file(config, settings), True
    else:
        if settings:
            raise click.UsageError('KEY=VALUE belongs to --config.')
        configs, tokens = of_data(data, eval_data, reward, model), model is not None
    found = shown(examined(*configs, tokens))
    paid = next((part for part in found if part.form is not None), None)
    if trial and paid is not None:
        found += shown([of_learning(configs[0].env, paid.form, paid.reward, paid.seconds)])
    click.echo('')
    write_page(out, config or data, found)
    number = sum(len(part.findings) for part in found)
    click.echo(f"findings: {number or 'none'} ({out})")
    raise SystemExit(bool(number))


def of_data(path: Any, eval_path: Any, reward: Any, model: Optional[str]) -> Tuple[EasyDict, EasyDict]:
    """The configs of data and a reward."""
    if isinstance(path, str) and reward is None and os.path.splitext(path)[1] != '.py':
        raise ConfigError('--reward: data need one, such as rewards.py:correct.')
    named = dict(type='file', path=path, eval_path=eval_path, reward=reward)
    env = dict(task={key: value for key, value in named.items() if value is not None})
    if model is not None:
        env['tokenizer'] = dict(pretrained=model)
    return EasyDict(env=env), EasyDict(env=dict(type='token_env'))


def shown(parts: Iterable[Part]) -> List[Part]:
    """The parts, each printed as soon as it is known."""
    found = []
    for part in parts:
        click.echo(f'\n{part.name}')
        for line in part.lines:
            click.echo(f'  {line}')
        for each in part.findings:
            click.echo(f"  finding, {each['cause']}: {each['message']}")
        found.append(part)
    return found
