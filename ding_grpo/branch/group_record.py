"""What is compared between branches: the reward of each group."""
import os
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ding_common import append_json, read_json_lines
from ding_grpo.logs.screen import run_folder
from ding_grpo.run.parts import Parts

_LOG = os.path.join('log', 'collector', 'groups.jsonl')


class Group(NamedTuple):
    """A group of a branch. ``reward``: the mean over its rows, None if none could be scored. ``rows``: a checksum of
    the actions of each row."""
    problem: int
    reward: Optional[float]
    rows: List[int]


Groups = Dict[Tuple[int, int], Group]  # by the number of updates before they were sampled, and their own number


class RecordingParts(Parts):
    """The parts of a run that appends a line to a file for each group that it collects."""

    def collect(self) -> List[Dict[str, Any]]:
        samples = super().collect()
        for sample in samples:
            append_json(os.path.join(run_folder(self.cfg.exp_name), _LOG), _record(sample))
        return samples


def _record(sample: Dict[str, Any]) -> Dict[str, Any]:
    rewards = sample['reward'].double().sum(1)[sample['failed'] == 0]
    rows = zip(sample['action'].cpu(), sample['length'].tolist())
    return dict(
        collect_iter=sample['collect_iter'],
        group=sample['group_id'],
        problem=sample.get('problem', -1),
        reward=rewards.mean().item() if len(rewards) else None,
        rows=[zlib.crc32(action[:length].numpy().tobytes()) for action, length in rows],
    )


def read_groups(folder: str, first: int, end: int) -> Groups:
    """The groups of a branch that were sampled after ``first`` updates and before ``end``. A run that was killed and
    resumed has written some lines twice."""
    return {
        (record['collect_iter'], record['group']): Group(record['problem'], record['reward'], record['rows'])
        for record in read_json_lines(os.path.join(folder, _LOG)) if first <= record['collect_iter'] < end
    }
