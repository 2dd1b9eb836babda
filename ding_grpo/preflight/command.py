"""
``python -m ding_grpo.preflight`` examines data and a reward before a run: whether the reward can teach anything, what
is wrong with the data. It trains nothing that is kept.
"""
import os
from contextlib import contextmanager, nullcontext
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import click
from easydict import EasyDict

from ding_common import ConfigError, ConfigFile, read_config_file
from ding_common.errors import errors_exit_with
from ding_common.hub.pretrained import Pretrained

from .examination import Part, examined
from .learning import of_learning
from .page import write_page
from .plan import LENGTH, of_earlier, of_plan, write_plan
from .rate import sampled_rate
from .trl_script import Script, trl_script

PAGE = 'preflight.html'
Settings = Tuple[str, ...]


@click.command()
@click.option('-c', '--config', type=ConfigFile(), help='Config file, or the name of a shipped config.')
@click.option(
    '--data',
    '--verl',
    'data',
    help="Data in place of a config: a file, a pattern, or a data set of the hub; verl's "
    'parquet files too.'
)
@click.option('--trl', 'script', help="A script for TRL, which runs until it makes its GRPOTrainer.")
@click.option('--eval-data', help='Data of evaluation.')
@click.option('--reward', help="'file.py:function' or 'module:function', of this project's, TRL's or verl's form.")
@click.option('--answer', help='Column of the reference answers, if it has no usual name.')
@click.option('--model', help='Folder or name of the pretrained model, whose tokenizer and chat template are tried.')
@click.option('--trial/--no-trial', default=True, show_default=True, help='Train a tiny model on few problems.')
@click.option(
    '--success',
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of a model's completions that are right: plan a run, and write its keys beside the page."
)
@click.option('--sample', is_flag=True, help='Plan with the success rate of completions that --model samples.')
@click.option('--out', default=PAGE, show_default=True, help='Page to write.')
@click.argument('settings', nargs=-1, metavar='[KEY=VALUE]...')
@errors_exit_with(2)
def main(
        config: Optional[str], data: Optional[str], script: Optional[str], eval_data: Optional[str],
        reward: Optional[str], answer: Optional[str], model: Optional[str], trial: bool, success: Optional[float],
        sample: bool, out: str, settings: Settings
) -> None:
    """Examine data and reward before a run. KEY=VALUE changes a config; behind --, arguments of a script. The exit code
    is 1 if something is found, and 2 after an error."""
    if sum(given is not None for given in (config, data, script)) != 1:
        raise click.UsageError('Give one of --config, --data and --trl.')
    if not os.path.isdir(os.path.dirname(out) or '.') or os.path.isdir(out):
        raise click.BadParameter(f'{out!r}: must be a file in a folder that exists.', param_hint='--out')
    names = dict(eval_data=eval_data, reward=reward)
    names.update(dict(answer=answer, model=model) if config is not None else {})
    given = [name for name, value in names.items() if value and data is None]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} belongs to --data.")
    with _staying(), nullcontext() if script is None else trl_script(script, settings) as made:
        if config is not None:
            configs, tokens = read_config_file(config, settings), True
        elif script is None:
            if settings:
                raise click.UsageError('KEY=VALUE belongs to --config.')
            configs, tokens = of_data(data, eval_data, reward, answer, model), model is not None
        else:
            configs, tokens = of_script(made, answer, model)
        found = [] if made is None else shown([Part('script', made.lines, [])])
        found += shown(examined(*configs, tokens, made is None or made.scores))
        paid = next((part for part in found if part.form is not None), None)
        if trial and paid is not None:
            found += shown([of_learning(configs[0].env, paid.form, paid.reward, paid.seconds)])
        named = made.model if made is not None else configs[0].get('policy', {}).get('model', {}).get('pretrained')
        env, model = configs[0].env, model or named
        if sample:
            success = _sampled(env, model, paid)
        base, written = os.path.splitext(out)[0], []
        if success is not None:
            found += shown([of_plan(success, model, env.get('max_new_tokens', LENGTH))])
            written = write_plan(base, success, env, model)
            click.echo(f"  written: {', '.join(written)}")
        found += shown(of_earlier(base, written))
    click.echo('')
    write_page(out, config or data or script, found)
    number = sum(len(part.findings) for part in found)
    click.echo(f"findings: {number or 'none'} ({out})")
    raise SystemExit(bool(number))


@contextmanager
def _staying() -> Iterator[None]:
    """Within this context, ``os._exit`` raises in this process, so that a scorer which calls it fails as others do."""
    own, leave = os.getpid(), os._exit

    def raises(status: int) -> None:
        if os.getpid() != own:
            leave(status)
        raise SystemExit(f'os._exit({status})')

    os._exit = raises
    try:
        yield
    finally:
        os._exit = leave


def _sampled(env: Dict[str, Any], model: Optional[str], paid: Optional[Part]) -> float:
    """The success rate of a model, which is told."""
    if model is None or paid is None:
        raise ConfigError('--sample: needs a --model, and a reward that pays right completions more than wrong ones.')
    rate = sampled_rate(env, model, paid.reward)
    click.echo(f'\nsampled\n  {rate.line()}')
    return rate.success


def of_data(path: Any, eval_path: Any, reward: Any, answer: Optional[str],
            model: Optional[str]) -> Tuple[EasyDict, EasyDict]:
    """The configs of data and a reward."""
    if reward is None and not (isinstance(path, str) and os.path.splitext(path)[1] == '.py'):
        raise ConfigError('--reward: data need one, such as rewards.py:correct.')
    return _configs(dict(type='file', path=path, eval_path=eval_path, reward=reward, answer=answer), model)


def of_script(script: Script, answer: Optional[str], model: Optional[str]) -> Tuple[Tuple[EasyDict, EasyDict], bool]:
    """The configs of a script's data and rewards, and whether there is a tokenizer: its model is not downloaded."""
    folder = script.model if script.model and os.path.isdir(script.model) else None
    configs = _configs(dict(script.task, answer=answer), model or folder)
    configs[0].env.update(reward_weights=script.weights, max_new_tokens=script.max_new_tokens)
    return configs, (model or folder) is not None


def _configs(task: Dict[str, Any], model: Optional[str]) -> Tuple[EasyDict, EasyDict]:
    env = dict(task={key: value for key, value in task.items() if value is not None})
    if model is not None:
        Pretrained.locate(model, None, 'env.tokenizer')  # before anything else: a wrong name ends the command
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
