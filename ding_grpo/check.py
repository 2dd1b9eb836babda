"""
``python -m ding_grpo --check -c CONFIG`` examines a config before a run: what its scorer pays for demonstrations and
for junk, lengths of prompts and demonstrations, and time and memory of two trial updates. It leaves no file.
"""
import os
import statistics
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import click
import torch
from ding.envs import get_vec_env_setting
from ding.worker import create_serial_collector
from easydict import EasyDict
from tabulate import tabulate

from ding_common import ConfigError, ConfigFile, echo, read_config_file
from ding_common.processes.memory import peak_memory

from .data.batch import Batch, prompts_of
from .data.capability import is_grpo
from .data.micro_batch import tokens_at_once
from .entry import complete
from .entry.build import compiled, environments, make_policy
from .footprint import footprint
from .model import CausalLM
from .run.around import around_run

PROBLEMS, UPDATES = 20, 2
MODES = ('serial_onpolicy', 'serial')


@click.command()
@click.option('-c', '--config', required=True, type=ConfigFile(), help='Config file, or the name of a shipped config.')
@click.option('-s', '--seed', default=0, show_default=True, help='Seed.')
@click.option('-m', '--mode', default=MODES[0], show_default=True, type=click.Choice(MODES), help='Mode of the run.')
@click.argument('settings', nargs=-1, metavar='[KEY=VALUE]...')
def main(config: str, seed: int, mode: str, settings: Tuple[str, ...]) -> None:
    """Examine a config before a run."""
    found = examine(*read_config_file(config, settings), seed=seed, replays=mode == 'serial')
    click.echo(f"findings: {len(found) or 'none'}")
    raise SystemExit(bool(found))


def examine(main_config: EasyDict, create_config: EasyDict, seed: int, replays: bool = False) -> List[Dict[str, Any]]:
    """Print what a run of these configs meets, and return the causes of a failure to learn: ``cause``, ``message`` and
    figures. ``replays``: an update learns from ``batch_groups`` groups of a replay buffer."""
    if not is_grpo(create_config.policy.type):
        raise ConfigError(f'--check: create_config.policy.type = {create_config.policy.type!r}, must be grpo.')
    with built(main_config, create_config, seed) as (policy, collector):
        probes = collector.probe(PROBLEMS)
        for line in describe_probes(probes):
            echo(line)
        watch = policy.observers['watch']
        watch.probed(probes)
        for line in _trial(policy, collector, replays):
            echo(line)
    for finding in watch.history.found:
        echo(f"finding, {finding['cause']}: {finding['message']}")
    return watch.history.found


@contextmanager
def built(main_config: EasyDict,
          create_config: EasyDict,
          seed: int,
          model: Optional[torch.nn.Module] = None) -> Iterator[Tuple[Any, Any]]:
    """Policy and collector of a run, which leave no file. The configs are changed. ``model``: in place of theirs."""
    complete(main_config, create_config)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, around_run():
        main_config.exp_name = os.path.relpath(folder)
        cfg = compiled((main_config, create_config), seed, save_cfg=False)
        with collecting(cfg, seed, main_config.exp_name, model=model) as parts:
            yield parts


@contextmanager
def collecting(
        cfg: EasyDict,
        seed: int,
        folder: str,
        change: Optional[Callable] = None,
        model: Optional[torch.nn.Module] = None
) -> Iterator[Tuple[Any, Any]]:
    """Policy and collector of a compiled config. The files of the collector are in ``folder``; it gets the policy's
    collect mode, or what ``change`` makes of environments and policy. Its logger is not that of a run in this
    process."""
    make, env_cfgs, _ = get_vec_env_setting(cfg.env)
    envs = environments(cfg, make, env_cfgs)
    envs.seed(seed)
    policy = make_policy(cfg, model, seed, groups=is_grpo(cfg.policy.type))
    mode = policy.collect_mode if change is None else change(envs, policy)
    parts = dict(env=envs, policy=mode, exp_name=folder, instance_name='trial')
    with closing(create_serial_collector(cfg.policy.collect.collector, **parts)) as collector:
        yield policy, collector


def describe_probes(probes: List[Dict[str, Any]]) -> List[str]:
    """Lengths of prompts and demonstrations, and a table of what the scorer pays for each kind of text, given ``probe``
    of a token environment; empty for others."""
    if not probes:
        return []
    prompts = {p['problem']: p['prompt_tokens'] for p in probes}
    shown = [p for p in probes if p['kind'] == 'demonstration']
    lines = [f'prompts of {len(prompts)} problems: {_range(list(prompts.values()))} tokens']
    if shown:
        fitting = [p['tokens'] for p in shown if p['failed'] is None]
        lines.append(
            f"demonstrations: {_range(fitting) + ' tokens' if fitting else 'none can be scored'}; "
            f"{sum(p['ended'] is False for p in shown)} of {len(shown)} are cut, {len(shown) - len(fitting)} fail"
        )
        lines += [f"  problem {p['problem']}: {p['failed']}" for p in shown if p['failed'] is not None][:1]
    else:
        lines.append('demonstrations: the task has none of its own')
    rows = []
    for kind in dict.fromkeys(p['kind'] for p in probes):
        scored = [p for p in probes if p['kind'] == kind and p['value'] is not None]
        rewards, values = [p['reward'] for p in scored], [p['value'] for p in scored]
        rows.append([kind, len(scored), _range(rewards), _range(values), scored[0]['text'][:40] if scored else ''])
    header = ['text', 'scored', 'reward', 'reported', 'for example']
    return lines + tabulate(rows, header, disable_numparse=True).splitlines()


def _trial(policy: Any, collector: Any, replays: bool) -> List[str]:
    """Two updates; the second one is described, because the first includes the warm-up."""
    cuda = torch.cuda.is_available() and policy.cfg.cuda
    before = most = _peak(cuda)
    for update in range(UPDATES):
        groups = collector.collect(train_iter=update)
        number = policy.cfg.learn.batch_groups if replays else len(groups)
        metrics = policy.learn_mode.forward(groups[:number])
        # an update starts the peak of a GPU anew with each part
        most = max(most, _peak(cuda), *(value for name, value in metrics.items() if name.startswith('memory_mib_')))
    parts = ('sampling', 'scoring', 'updating')
    seconds = ', '.join(f"{part} {metrics[f'seconds_{part}']:.2f} s" for part in parts)
    total = sum(metrics[f'seconds_{part}'] for part in parts)
    shown = ('reward_mean', 'equal_groups', 'truncated', 'entropy')
    return [
        f'an update takes {total:.2f} s ({seconds})',
        f"peak memory{' of the GPU' if cuda else ''} {most:,.0f} MiB, {before:,.0f} before the updates",
        *_by_formula(policy, groups[:number]),
        'of the second update: ' + ', '.join(f'{name} {metrics[name]:.3g}' for name in shown if name in metrics),
    ]


def _by_formula(policy: Any, groups: List[Dict[str, Any]]) -> List[str]:
    """A line with the memory that ``footprint`` finds for an update of these groups; none for other models."""
    model = policy.whole_model
    if not isinstance(model, CausalLM):
        return []
    cfg, batch = policy.cfg.learn, Batch.of(groups)
    prompts = [prompt for group in groups for prompt in {id(prompt): prompt for prompt in prompts_of(group)}.values()]
    tokens = sum(map(len, prompts)) + int((batch.length - 1).clamp(min=0).sum())
    tokens = tokens * min(cfg.batch_groups, len(groups)) // len(groups)  # of a mini-batch
    at_once = min(tokens, tokens_at_once(batch.to(model.device), policy._learning.updater.at_once) or tokens)
    rows, length = len(batch), int(batch.length.max())
    divided, reference = at_once < tokens, cfg.kl.beta > 0
    found = footprint(model, at_once, rows, length, cfg.optimizer, reference, divided)
    return [] if found is None else [f'by formula, beside the process, for {at_once:,} tokens at a time: {found}']


def _peak(cuda: bool) -> float:
    """Peak memory so far in MiB: of the GPU, or of this process."""
    return torch.cuda.max_memory_allocated() / 2 ** 20 if cuda else peak_memory()


def _range(values: List[float]) -> str:
    if not values:
        return '-'
    low, high = min(values), max(values)
    return f'{low:g}' if low == high else f'{low:g} to {high:g}, median {statistics.median(values):g}'
