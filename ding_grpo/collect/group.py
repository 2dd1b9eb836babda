"""Groups during collection."""
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from ding.envs import BaseEnvTimestep
from torch import Tensor

from ding_common import TaskError, is_reward

# What is read of the last info of an episode. The rest may be anything, which neither a checkpoint nor other processes
# can take.
INFO = (
    'index', 'kind', 'prompt', 'completion', 'turns', 'reward_parts', 'exact_reward', 'truncated', 'failed', 'record'
)


class Group:
    """A running group: G environments that were reset with one seed, each of which runs one episode; or one
    environment, whose greedy episode is a baseline for the group of the same number."""

    def __init__(self, number: int, env_ids: List[int], problem: Optional[int] = None, greedy: bool = False) -> None:
        self.number = number
        self.env_ids = env_ids
        self.problem = problem  # None: the environment draws it from the seed
        self.greedy = greedy
        self.baseline: Optional[Group] = None  # the greedy one that it is compared with
        self.restarts = 0
        self.steps = 0
        self.begin()

    def begin(self) -> None:
        self.running = set(self.env_ids)
        self.rows = list(self.env_ids)  # of the group's sample
        self.dropped_tokens = 0
        self.return_ = 0.0  # of a greedy episode
        self.episodes: Dict[int, List[Dict[str, Any]]] = {i: [] for i in self.env_ids}
        self.last_info: Dict[int, Dict[str, Any]] = {}
        # What ``process_transition`` needs of last steps that have no score yet: observation, output, step.
        self.unscored: Dict[int, Tuple[Any, Dict[str, Any], BaseEnvTimestep]] = {}

    def row_key(self, collect_iter: int, env_id: int) -> Tuple[int, ...]:
        key = (collect_iter, self.number, self.env_ids.index(env_id))
        return key if self.restarts == 0 else (*key, self.restarts)

    def append(self, policy: NamedTuple, env_id: int, obs: Any, output: Dict[str, Any], step: BaseEnvTimestep) -> None:
        """Append a step to the episode of an environment. Its reward must be finite in float32."""
        reward = np.asarray(step.reward).item()
        if not is_reward(reward):
            raise TaskError(f'an environment gave the reward {reward!r}, must be a finite number (float32); scale it')
        if self.greedy:
            self.return_ += reward
        else:
            self.episodes[env_id].append(policy.process_transition(obs, output, step))
        if step.done:
            self.last_info[env_id] = step.info

    def drop(self, env_id: int, output: Dict[str, Any]) -> None:
        """Leave out the row of an environment, which the policy has sampled in addition to the group's size."""
        self.running.discard(env_id)
        self.rows.remove(env_id)
        self.dropped_tokens += len(output['action'])

    def fold(self, policy: NamedTuple, train_iter: int) -> 'Collected':
        if self.baseline is not None:
            info, = self.baseline.last_info.values()
            reason = info.get('failed')
            for i in self.rows:
                self.episodes[i][-1]['baseline'] = self.baseline.return_
                if reason is not None:  # without a baseline nothing can be learned
                    self.episodes[i][-1]['failed'] = True
                    self.last_info[i] = dict(self.last_info[i], failed=f'the greedy completion of its group: {reason}')
        sample, = policy.get_train_sample([self.episodes[i] for i in self.rows])
        sample.update(group_id=self.number, collect_iter=train_iter)
        infos = [{key: info[key] for key in INFO if key in info} for info in map(self.last_info.get, self.rows)]
        if isinstance(infos[0].get('index'), int):
            sample['problem'] = infos[0]['index']
        for i, info in zip(self.rows, infos):
            if 'eval_episode_return' in self.last_info[i]:
                info['return'] = float(np.mean(self.last_info[i]['eval_episode_return']))
        return Collected(sample, infos, self.steps, self.dropped_tokens)


class Collected(NamedTuple):
    """A finished group: its sample, the entries ``INFO`` of the last info of each row and its ``return`` as an
    evaluation counts it, the number of its environment steps, and that of the tokens of rows that were dropped."""
    sample: Dict[str, Any]
    infos: List[Dict[str, Any]]
    steps: int
    dropped_tokens: int

    def returns(self) -> Tensor:
        """The returns of the episodes that could be scored, :math:`(G, )`. Rows of their further texts come last."""
        rows = len(self.infos)
        return self.sample['reward'].sum(1)[:rows][self.sample['failed'][:rows] == 0]

    def filter(self, reward_range: Optional[Sequence[float]]) -> None:
        """Mark the sample as ``filtered`` if the mean return is outside the range, both ends included."""
        returns = self.returns()
        outside = reward_range is not None and len(returns) > 0 and not (
            reward_range[0] <= returns.double().mean().item() <= reward_range[1]
        )
        self.sample['filtered'] = outside


def equal_in_float32(groups: List[Collected]) -> Optional[Tuple[float, float]]:
    """Two rewards of a group whose difference float32, in which groups are compared, does not show; None if none."""
    for group in groups:
        learned = group.sample['reward'].sum(1).tolist()
        found = sorted((info.get('exact_reward', value), value) for info, value in zip(group.infos, learned))
        spread = found[-1][0] - found[0][0]
        for (low, below), (high, above) in zip(found, found[1:]):
            size = max(abs(low), abs(high))
            same = below == above and abs(low - below) <= 1e-5 * size  # not if a wrapper changes the rewards
            if same and high - low > max(1e-13 * size, 1e-5 * spread):  # more than rounding, and large in the group
                return low, high
    return None


class Sampled(NamedTuple):
    """The groups of a collect: those to learn from, those that they replaced, and seconds and memory of its parts."""
    done: List[Collected]
    replaced: List[Collected]
    clock: Dict[str, float]
    memory: Dict[str, float]
