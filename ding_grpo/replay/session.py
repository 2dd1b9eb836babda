"""Rebuilds the collect and the update that follow a checkpoint, in a copy: the files of the run do not change."""
import copy
import os
from tempfile import TemporaryDirectory
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from easydict import EasyDict
from torch import Tensor

from ding_common import ConfigError
from ding_common.content import check_content, taking
from ding_common.processes.random_state import set_random_state
from ding_grpo.check import collecting
from ding_grpo.rollout import TreePlan

from .changes import ChangedPolicy, Changes, Force, Fork
from .feeding import Records


class Replayed(NamedTuple):
    """A group after its update. ``record`` is its line in ``log/learner/tokens.jsonl``, had the run written one
    (``records_of``); ``metrics`` are those of the update; ``groups`` is the number of groups in the collect.
    """
    record: Dict[str, Any]
    metrics: Dict[str, float]
    groups: int


def replay(
        cfg: Dict[str, Any],
        state: Dict[str, Any],
        group: int,
        changes: Changes,
        alone: bool,
        records: Records = {}
) -> Replayed:
    """
    Sample the groups that a run, given its complete config, samples after a checkpoint, and do the update: with one
    group only if ``alone``, else with all groups of the collect. Rows are functions of (seed, update, group, row), so
    without changes all of this is bit-identical to the run. With a replay buffer only the sampling is: the update of
    the run mixes groups of several collects, this one learns from one collect. ``records``: of the episodes of the run;
    agents run only where a change may lead to other requests. Raises ``ConfigError`` if the checkpoint or the group
    does not fit.
    """
    policy, samples = collect(cfg, state, group, changes, records)
    chosen = [sample for sample in samples if not alone or sample['group_id'] == group]
    metrics = policy.learn_mode.forward(chosen)
    record = next(r for r in policy.observers['tokens'].records if r['group'] == group)
    _check(record, changes, next(sample for sample in samples if sample['group_id'] == group).get('episode'))
    return Replayed(dict(train_iter=state['last_iter'], **record), metrics, len(samples))


def collect(
        cfg: Dict[str, Any],
        state: Dict[str, Any],
        group: int,
        changes: Changes,
        records: Records,
        tree: Optional[TreePlan] = None
) -> Tuple[Any, List[Dict[str, Any]]]:
    """The groups that a run samples after a checkpoint, and the policy that has sampled them. ``tree``: of this group,
    in place of that of the run. Other arguments and errors are those of ``replay``."""
    cfg, run = _run_config(cfg, changes), state.get('run')
    if run is None or 'collector' not in run:
        raise ConfigError('CHECKPOINT: does not contain the whole state of its run, so its groups cannot be rebuilt.')

    records = _valid(records, cfg, group, changes, tree)
    if tree is not None:
        cfg.policy.collect.engine = None
    if records:
        cfg.env.manager.type = 'replay'

    def changed(envs: Any, policy: Any) -> NamedTuple:
        if records:
            envs.feed(records, policy.cfg.group_size, policy.seed, state['last_iter'])
        return ChangedPolicy(policy.collect_mode, group, changes).functions()

    with TemporaryDirectory() as folder:
        with collecting(cfg, run['seed'], os.path.relpath(folder), changed) as (policy, collector):
            policy.learn_mode.load_state_dict(state)
            with taking('CHECKPOINT'):
                check_content(run, dict(collector=collector.state_dict(waits=False)), 'CHECKPOINT')
                # without a table of completions
                collector.load_state_dict(dict(run['collector'], last_table=state['last_iter']))
                set_random_state(run['random'])
            if tree is not None:
                policy.trees.of_group[group] = tree
            samples = collector.collect(train_iter=state['last_iter'])
    numbers = [sample['group_id'] for sample in samples]
    if group not in numbers:
        raise ConfigError(f'--group = {group}: the collect has the groups {_listed(numbers)}.')
    return policy, samples


def _valid(records: Records, cfg: EasyDict, group: int, changes: Changes, tree: Optional[TreePlan]) -> Records:
    """The records of rows that sample what they did in the run."""
    if changes.settings or cfg.policy.collect.extra_rows > 0:
        return {}
    forced = {force.row for force in changes.forces}
    return {
        place: record
        for place, record in records.items() if place[0] != group or tree is None and place[1] not in forced
    }


def _run_config(cfg: Dict[str, Any], changes: Changes) -> EasyDict:
    """The config of a run with changes, for groups of one process that no server samples."""
    cfg = copy.deepcopy(cfg)
    changes.apply(cfg)
    if changes.settings:
        cfg['policy']['collect']['engine'] = None  # the model samples, from the same distribution
    extra = cfg['policy']['collect'].get('extra_rows', 0)
    if extra > 0 and (changes.forces or changes.rewards):
        raise ConfigError(
            f'policy.collect.extra_rows = {extra}: --force and --reward are not available, because a change of one row '
            'changes which rows are dropped.'
        )
    # one process makes the same groups as several; each update is recorded
    cfg['policy'].update(multi_gpu=False, shard=False)
    cfg['policy'].setdefault('instruments', {})['tokens_every'] = 1
    return EasyDict(cfg)


def _check(record: Dict[str, Any], changes: Changes, episode: Optional[Tensor]) -> None:
    """``episode``: the number of the episode of each row, if its episodes may have several texts."""
    rows = record['rows']
    for row in changes.rewards:
        if not 0 <= row < len(rows):
            raise ConfigError(f'row {row}: the group has the rows 0 to {len(rows) - 1}.')
    first = list(range(len(rows))) if episode is None else [episode.tolist().index(i) for i in episode.tolist()]
    for row in changes.rewards:
        if first[row] != row:
            raise ConfigError(
                f'--reward {row}={changes.rewards[row]:g}: row {row} is a further text of the episode of row '
                f'{first[row]}, which has its reward. Change that row.'
            )
    if changes.forces and first != list(range(len(rows))):
        raise ConfigError(
            '--force: not available, because an episode of this group has several texts, whose steps are not in the '
            'order of their rows. Use --reward or --set.'
        )
    for force in changes.forces:
        check_step('--force', force, rows)
        leader = rows[force.row].get('leader', {force.step: force.row})[force.step]
        if leader != force.row:
            raise ConfigError(
                f'--force {force.row}:{force.step}: row {force.row} takes this token from row {leader}, in the tree of '
                f'its group. Use --force {leader}:{force.step}={force.action}.'
            )


def check_step(option: str, place: Union[Force, Fork], rows: List[Dict[str, Any]]) -> None:
    """Raise ``ConfigError`` unless a row of a group has sampled this step."""
    where = f'{option} {place.row}:{place.step}'
    if not 0 <= place.row < len(rows):
        raise ConfigError(f'{where}: the group has the rows 0 to {len(rows) - 1}.')
    row = rows[place.row]
    if not 0 <= place.step < len(row['action']):
        raise ConfigError(f"{where}: row {place.row} has the steps 0 to {len(row['action']) - 1}.")
    if not row['own'][place.step]:
        raise ConfigError(f'{where}: this token is of the environment, not of the policy.')


def _listed(numbers: List[int]) -> str:
    if numbers == list(range(len(numbers))):
        return f'0 to {len(numbers) - 1}'
    return ', '.join(map(str, numbers))
