"""
``python -m ding_grpo`` runs ``ding`` with the same options, but hides the messages that DI-engine and old gym print
when they are imported. The ``ding`` command imports them before any plugin can hide these messages. ``KEY=VALUE``
after the options changes a key of the config, and ``--help KEY`` says what it means. With ``--check`` it examines a
config before a run, see ``check.py``. ``python -m ding_grpo train`` needs no config, see ``train.py``.
"""
import copy
import os
import sys
from importlib import import_module
from typing import Any, List, Optional, Tuple

import click
from easydict import EasyDict

from ding_common import ConfigError, ConfigFile, find_config, import_ding, read_config_file
from ding_common.config.settings import change

from .completion import VARIABLE, program
from .train import train

NAME = 'python -m ding_grpo'
Configs = Tuple[EasyDict, EasyDict]


def main(args: Optional[List[str]] = None) -> None:
    if VARIABLE in os.environ:
        program(train=train)(prog_name='ding-grpo', complete_var=VARIABLE)
    import_ding()
    import ding_grpo  # noqa: F401  imported first, so that the sections of the command's config are checked
    args = sys.argv[1:] if args is None else args
    if args[:1] == ['train']:
        train(args[1:], prog_name=f'{NAME} train')
    if '--check' in args:
        from . import check
        check.main([arg for arg in args if arg != '--check'], prog_name=f'{NAME} --check')
    command()(args, prog_name=NAME)


def command() -> click.Command:
    """DI-engine's command, which finds shipped configs, and ends in one line if a config is invalid or missing."""
    from .run.around import replaced
    commands = import_module('ding.entry.cli')  # ding.entry.cli is the command
    program = copy.copy(commands.cli)
    program.params = [copy.copy(option) for option in program.params]
    for option in program.params:
        if option.name == 'config':
            option.type, option.callback = ConfigFile(), _needed
        option.required = option.required or option.name == 'mode'
    text = 'Examine the config of -c before a run: scorer, lengths, time and memory. More: --check --help.'
    program.params.append(click.Option(['--check'], is_flag=True, expose_value=False, help=text))

    program.add_help_option = False
    text = 'Show this, or what a key of a config means: --help policy.learn.loss.'
    shown = dict(is_flag=False, flag_value='', metavar='[KEY]', expose_value=False, is_eager=True)
    program.params.append(click.Option(['-h', '--help'], **shown, callback=_help, help=text))
    program.params.append(click.Argument(['settings'], nargs=-1, metavar='[KEY=VALUE]...'))

    def run(settings: Tuple[str, ...], **options: Any) -> None:

        def read(config: str) -> Configs:
            return _checked(read_config_file(config, settings), options['mode'])

        def predefined(env: str, policy: str) -> Configs:
            return _checked(_predefined(env, policy, settings), options['mode'])

        with replaced(commands, read_config=read, get_predefined_config=predefined):
            commands.cli.callback(**options)

    program.callback = run
    return program


def _help(context: click.Context, option: click.Parameter, key: Optional[str]) -> None:
    if key is None:
        return
    from .entry.describe import describe
    click.echo('\n'.join(describe(key)) if key else context.get_help())
    context.exit()


def _checked(configs: Configs, mode: str) -> Configs:
    from .compat.refusals import check_mode
    check_mode(f'-m {mode}', configs)
    return configs


def _predefined(env: str, policy: str, settings: Tuple[str, ...]) -> Configs:
    """DI-engine's config of an environment and a policy, else the shipped one."""
    of_ding = import_module('ding.entry.predefined_config')
    if env not in of_ding.env_dict or policy not in of_ding.policy_dict:
        return read_config_file(find_config(f'{env}_{policy}'), settings)
    main_config, create_config = copy.deepcopy(of_ding.get_predefined_config(env, policy))
    change(main_config, create_config, settings)
    return main_config, create_config


def _needed(context: click.Context, option: click.Parameter, config: Optional[str]) -> Optional[str]:
    if config is None and not (context.params.get('env') and context.params.get('policy')):
        raise ConfigError(
            "--config: missing; name a config file, a shipped config, or one of DI-engine's own by --env and --policy."
        )
    return config


if __name__ == '__main__':
    main()
