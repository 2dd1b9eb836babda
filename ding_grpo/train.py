"""``python -m ding_grpo train``: a run of ``GRPO`` in one line."""
from typing import Optional, Tuple

import click

from ding_common.config.settings import parsed

from .completion import settings as keys


@click.command()
@click.option('--model', help='Name or folder of a language model.')
@click.option('--data', multiple=True, help='File, pattern, or data set of the hub; may be given several times.')
@click.option('--eval-data', multiple=True, help='The same, for evaluation. Default: a tenth of the data.')
@click.option(
    '--reward', multiple=True, help='file.py:function, module:function, or a name; may be given several times.'
)
@click.option('--task', help='A registered task, in place of data.')
@click.option('--env', help='An environment of gymnasium, in place of data.')
@click.option('--updates', type=click.IntRange(1), help='Number of updates.')
@click.option('--step', type=click.IntRange(1), help='Number of environment steps.')
@click.option('-s', '--seed', default=0, show_default=True, help='Seed.')
@click.option('--exp-name', help='Folder of the run.')
@click.option('--save', type=click.Path(), help='Folder for the trained model.')
@click.argument('settings', nargs=-1, metavar='[KEY=VALUE]...', shell_complete=keys)
def train(
        model: Optional[str], data: Tuple[str, ...], eval_data: Tuple[str, ...], reward: Tuple[str, ...],
        task: Optional[str], env: Optional[str], updates: Optional[int], step: Optional[int], seed: int,
        exp_name: Optional[str], save: Optional[str], settings: Tuple[str, ...]
) -> None:
    """Train, and evaluate at the end. KEY=VALUE sets a key of the config, by its path or by its last part."""
    from .bonus import GRPO  # takes seconds, which completion in a shell saves
    several = dict(data=data, eval_data=eval_data, reward=reward)
    given = {name: list(values) if len(values) > 1 else values[0] for name, values in several.items() if values}
    changed = dict(map(parsed, settings))
    run = GRPO(model, task=task, env=env, seed=seed, exp_name=exp_name, **given, **changed).train(updates, step)
    if save is not None:
        run.save(save)
