"""
Completion of ``ding-grpo`` in a shell: options, shipped configs, and keys. A line for ``~/.bashrc``:

    eval "$(_DING_GRPO_COMPLETE=bash_source ding-grpo)"

The sources of the keys are read, since importing DI-engine and torch would take seconds.
"""
import os
from importlib.util import find_spec
from typing import Dict, List, Optional

import click
from click.shell_completion import BashComplete, CompletionItem

from ding_common.config.config_file import shipped_configs
from ding_common.config.documented import Documented

VARIABLE = '_DING_GRPO_COMPLETE'
# Names of defaults, and where they are in a config.
_SECTIONS = dict(KEYS='policy', GroupCollector='policy.collect.collector', DingTokenEnv='env', GymnasiumEnv='env')
_FOLDERS = ('ding_grpo/config', 'ding_grpo/collect', 'ding_grpo/envs', 'ding_common/config', 'dizoo_llm/envs')


def meanings() -> Dict[str, str]:
    """Keys of a config by their paths, with what they mean."""
    folders = [
        os.path.join(os.path.dirname(find_spec(package).origin), below)
        for package, below in (path.split('/') for path in _FOLDERS)
    ]
    documented = Documented([folder for folder in folders if os.path.isdir(folder)])
    return {
        f'{section.path}.{key.name}': key.meaning.partition('. ')[0]
        for name, path in _SECTIONS.items() for section in documented.sections(name, path) for key in section.keys
    }


def settings(context: click.Context, parameter: Optional[click.Parameter], begun: str) -> List[CompletionItem]:
    """Completion of ``KEY=VALUE``, for arguments of click."""
    return [CompletionItem(f'{key}=', help=text) for key, text in meanings().items() if key.startswith(begun)]


def _configs(context: click.Context, parameter: click.Parameter, begun: str) -> List[CompletionItem]:
    shipped = [CompletionItem(name) for name in sorted(shipped_configs()) if name.startswith(begun)]
    return shipped or [CompletionItem(begun, type='file')]


class _Program(click.Group):

    def shell_complete(self, ctx: click.Context, incomplete: str) -> List[CompletionItem]:
        return [*super().shell_complete(ctx, incomplete), *settings(ctx, None, incomplete)]


def program(**commands: click.Command) -> click.Group:
    """A command with the options of ``python -m ding_grpo`` and some commands, for their completion alone."""
    BashComplete.source_template = BashComplete.source_template.replace('-o nosort', '-o nosort -o nospace')
    modes = click.Choice(['serial_onpolicy', 'serial', 'eval'])
    options = [
        click.Option(['-m', '--mode'], type=modes, help='Mode of the run.'),
        click.Option(['-c', '--config'], shell_complete=_configs, help='Config file, or the name of a shipped config.'),
        click.Option(['-s', '--seed'], help='Seed.'),
        click.Option(['-e', '--env'], help='Environment of a config of DI-engine.'),
        click.Option(['-p', '--policy'], help='Policy of a config of DI-engine.'),
        click.Option(['--exp-name'], help='Folder of the run.'),
        click.Option(['--load-path'], type=click.Path(), help='Checkpoint to evaluate.'),
        click.Option(['--check'], is_flag=True, help='Examine a config before a run.'),
    ]
    return _Program('ding-grpo', params=options, commands=commands)
