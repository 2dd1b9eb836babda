"""Episodes that an evaluation samples, beside its greedy ones."""
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from ding.envs import BaseEnvManager
from ding.torch_utils import to_ndarray, to_tensor

Results = Tuple[Dict[str, np.ndarray], List[Optional[str]]]


def sampled_episodes(env: BaseEnvManager, policy: NamedTuple, episodes: int, samples: int, train_iter: int) -> Results:
    """Sample episodes from the starts that were just evaluated greedily, in environments that have been seeded.
    ``episodes`` is the number of starts, which the environments share, ``samples`` that of episodes from each. Returns
    the return and every other number that the environment reports, each (starts, samples), and for each episode why it
    could not be scored or None."""
    count = env.env_num
    to_run = [episodes // count + (i < episodes % count) for i in range(count)]
    found: Dict[Tuple[int, int], List[Dict[str, float]]] = {}  # by environment and number of its episode
    failures: List[Optional[str]] = []
    for number in range(samples):
        env.reset()
        policy.reset()
        done = [0] * count
        while any(d < n for d, n in zip(done, to_run)):
            obs = {i: o for i, o in env.ready_obs.items() if done[i] < to_run[i]}
            if not obs:  # a thread of the env manager still resets the environments that have episodes left
                time.sleep(0.001)
                continue
            # five numbers, which is the key of no training row
            keys = {i: (train_iter, i, done[i], number, 0) for i in obs}
            outputs = policy.forward(to_tensor(obs, dtype=torch.float32), row_keys=keys)
            timesteps = env.step(to_ndarray({i: output['action'] for i, output in outputs.items()}))
            for i, step in timesteps.items():
                if step.done and not step.info.get('abnormal', False):
                    found.setdefault((i, done[i]), []).append(_numbers(step.info))
                    failures.append(step.info.get('failed'))
                    done[i] += 1
                if step.done or step.info.get('abnormal', False):
                    policy.reset([i])
    policy.reset()
    rows = [found[key] for key in sorted(found)]
    return {name: np.array([[e[name] for e in row] for row in rows]) for name in rows[0][0]}, failures


def _numbers(info: Dict[str, Any]) -> Dict[str, float]:
    numbers = {name: x for name, x in info.get('episode_info', {}).items() if name != 'record'}
    value = np.asarray(info['eval_episode_return']).item()
    return {'return': value, **numbers, **info.get('reward_parts', {})}
