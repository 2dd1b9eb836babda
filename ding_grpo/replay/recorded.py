"""Whether a replay samples what its run sampled."""
import math
import os
from typing import Optional

from ding_common import read_json_lines

from .session import Replayed

SAMPLED = ('reward_', 'completion_length_', 'episode_length_', 'truncated', 'failed')  # metrics that sampling decides


def difference(run: str, found: Replayed) -> Optional[str]:
    """A line about the first metric of the replayed update that the log of the run, in its folder, has otherwise. None
    if there is none, or no log of this update."""
    records = read_json_lines(os.path.join(run, 'log', 'learner', 'metrics.jsonl'))
    recorded = next((r for r in reversed(records) if r.get('train_iter') == found.record['train_iter']), {})
    for name, value in found.metrics.items():
        before = recorded.get(name)
        if name.startswith(SAMPLED) and before is not None and not math.isclose(value, before, rel_tol=1e-6):
            return (
                f'The replay samples otherwise than the run: {name} = {value:.6g}, in its log {before:.6g}. An agent, '
                'a scorer or an environment with a clock or a state of its own causes this, and other versions or '
                'another machine, whose rounding differs.'
            )
    return None
