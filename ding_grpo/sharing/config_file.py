"""The config of a run as a file, which gives the same run again and is read as data."""
import ast
import os
from pprint import pformat
from typing import NamedTuple, Optional

from easydict import EasyDict

from ding_common import ConfigError, describe
from ding_common.config.total_config import as_literals

NAME, REWARDS = 'config.py', 'rewards.py'
_CONFIG = '''"""
The config of a run of ding_grpo. The same run again, bit for bit on the same processor:

    {command}
"""
from easydict import EasyDict
from ding_grpo.entry import complete, run

seed = {seed}
main_config = EasyDict(
{main}
)
create_config = complete(main_config, EasyDict({create}))

if __name__ == '__main__':
    run(__file__, {mode!r})
'''


class Saved(NamedTuple):
    """The configs of a run, and its seed."""
    main_config: EasyDict
    create_config: EasyDict
    seed: int
    step: Optional[int] = None  # number of environment steps that ends it


def command_of(saved: Saved, path: str, mode: str = 'serial_onpolicy') -> str:
    """The command that repeats a run, given the path of its config file and the mode of DI-engine."""
    limit = '' if saved.step is None else f' --env-step {saved.step}'
    return f'python -m ding_grpo -m {mode} -c {path} -s {saved.seed}{limit}'


def config_text(saved: Saved, path: str, mode: str = 'serial_onpolicy') -> str:
    """The content of a config file, whose first lines have a command with its path and the mode of DI-engine."""
    main, create = as_literals(saved.main_config), as_literals(saved.create_config)
    text = pformat(main, width=116, sort_dicts=False).replace('\n', '\n    ')
    command = command_of(saved, path, mode)
    return _CONFIG.format(command=command, mode=mode, seed=saved.seed, main=f'    {text}', create=create)


def read_config(folder: str) -> Saved:
    """The configs of a run, read as data: no code is run."""
    path = os.path.join(folder, NAME)
    if os.path.exists(os.path.join(folder, 'config.json')):
        raise ConfigError(f'{folder}: is a model that a run saved. GRPO.load needs the folder of the run.')
    try:
        with open(path, encoding='utf-8') as f:
            tree = ast.parse(f.read())
        found = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign)}
        main, create = found['main_config'].args[0], found['create_config'].args[1].args[0]
        main_config, create_config = (EasyDict(ast.literal_eval(each)) for each in (main, create))
        return Saved(main_config, create_config, int(ast.literal_eval(found['seed'])))
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}. A run of GRPO writes this file into its folder.') from error
    except Exception as error:  # also what a deeply nested file raises
        raise ConfigError(f'{path}: is not the config of a run of GRPO ({describe(error):.200}).') from error
