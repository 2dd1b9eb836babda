"""A row of a recorded group that is continued in several ways: what its text so far is worth."""
from typing import Any, Dict, List, NamedTuple, Tuple

from ding_common import ConfigError
from ding_grpo.data.batch import Batch
from ding_grpo.instruments.token_record import sampled
from ding_grpo.learn.metrics import batch_metrics
from ding_grpo.rollout import TreePlan

from .changes import Changes, Force, Fork
from .feeding import Records
from .session import Replayed, check_step, collect


class Forked(NamedTuple):
    """``recorded`` has the group as the run sampled it, with metrics of sampling alone; ``rows`` are the records of its
    rows that begin as row ``fork.row`` until token ``fork.step``."""
    recorded: Replayed
    fork: Fork
    rows: List[Dict[str, Any]]


def forked(cfg: Dict[str, Any], state: Dict[str, Any], group: int, fork: Fork, records: Records = {}) -> Forked:
    """Sample a group again in which all rows begin as one of them. This row remains as recorded, the others continue it
    with random numbers of their own. No update is done. Arguments and errors are those of ``replay``."""
    extra = cfg['policy'].get('collect', {}).get('extra_rows', 0)
    if extra > 0:
        raise ConfigError(f'policy.collect.extra_rows = {extra}: --fork is not available, because rows are dropped.')
    policy, samples = collect(cfg, state, group, Changes(), records)
    if policy.spec is None:
        raise ConfigError('--fork: not available, because the actions of this policy are not tokens.')
    batch, (record, ) = _of_group(policy, samples, group)
    if batch.episode is not None and batch.episodes < len(batch):
        raise ConfigError('--fork: not available, because an episode of this group has several texts.')
    check_step('--fork', fork, record['rows'])
    metrics = batch_metrics(Batch.of(samples), policy.actor.length_name)
    tree = TreePlan((len(batch), ), lambda point: point.tokens >= fork.step, root=fork.row)
    again = collect(cfg, state, group, Changes(forces=_own(record, fork)), records, tree)
    _, (new, ) = _of_group(*again, group)
    return Forked(Replayed(dict(train_iter=state['last_iter'], **record), metrics, len(samples)), fork, new['rows'])


def _of_group(policy: Any, samples: List[Dict[str, Any]], group: int) -> Tuple[Batch, List[Dict[str, Any]]]:
    """The rows of a group, and its record."""
    batch = Batch.of([sample for sample in samples if sample['group_id'] == group])
    return batch, sampled(batch, policy.spec.tokenizer)


def _own(record: Dict[str, Any], fork: Fork) -> List[Force]:
    """The tokens of a row, some of which it may not sample by itself: those of a tree's other rows, or of an engine."""
    row = record['rows'][fork.row]
    return [Force(fork.row, t, action) for t, action in enumerate(row['action']) if row['own'][t]]
