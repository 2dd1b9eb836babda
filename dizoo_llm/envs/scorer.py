"""Scores of whole episodes with DI-engine's interface: of one environment, or of all of a process at once."""
import json
from collections import defaultdict
from typing import Any, Dict, List, Tuple

import click
import numpy as np
from ding.envs import BaseEnvTimestep

from ding_common import TaskError, parallel
from dizoo_llm.base.awaited import report

from .token_env import TokenEnv

# More failures in a row in one environment end the run, with any collector: a scorer that always fails would keep it
# collecting forever.
MOST_FAILED_IN_A_ROW = 100
RECORDED = ('index', 'kind', 'prompt', 'completion', 'turns', 'return', 'reward_parts', 'truncated', 'failed')


class Scorer:
    """
    Completes the last steps of episodes. Each environment has one for its own. That of the reference environment of an
    env manager also scores what the others left unscored, so that a batch scorer is loaded once in a process.
    """

    def __init__(self, env: TokenEnv, evaluates: bool) -> None:
        self._env = env
        self._evaluates = evaluates
        self._failed_in_a_row: Dict[int, int] = defaultdict(int)  # by environment

    def score(self, steps: List[Tuple[int, BaseEnvTimestep]]) -> List[BaseEnvTimestep]:
        """
        The last steps of episodes, by number of the environment, as environments that score return them. One call of
        the task scores what their info has as ``unscored``. Episodes of one environment are in their order.
        """
        rows = [step.info['unscored'] for _, step in steps]
        outcomes = self._env.scoring.outcomes(self._env.problems, rows)
        finished = []
        for (env_id, step), row, (reward, outcome) in zip(steps, rows, outcomes):
            info = {key: value for key, value in step.info.items() if key != 'unscored'} | outcome
            self.finish(env_id, reward, row.length, info)
            finished.append(step._replace(reward=as_reward(reward), info=info))
        return finished

    def close(self) -> None:
        """Tell, once in a process, what scorers that wait have cost."""
        told = report()
        if told is not None and parallel.rank() == 0:
            click.echo(told)

    def finish(self, env_id: int, reward: float, length: int, info: Dict[str, Any]) -> None:
        """
        Add what DI-engine's workers read to the info of an episode's last step. Raises a ``TaskError`` if too many
        completions of this environment in a row could not be scored.
        """
        failed = info['failed'] is not None
        in_a_row = self._failed_in_a_row[env_id] = self._failed_in_a_row[env_id] + 1 if failed else 0
        if in_a_row > MOST_FAILED_IN_A_ROW:
            raise TaskError(f'{in_a_row} completions in a row could not be scored: {info["failed"]}')
        info['eval_episode_return'] = float(info['return'])
        info['exact_reward'] = reward
        if failed and not self._evaluates:
            # DI-engine's own collectors drop the episode and run another one; the evaluator would repeat it.
            info['abnormal'] = True
        info['episode_info'] = dict(
            total_reward=reward,  # DI-engine calls the mean return reward_mean
            completion_length=float(length),
            truncated=float(info['truncated']),
            failed=float(failed),
            record=[json.dumps({key: info[key]
                                for key in RECORDED if key in info})],  # DI-engine accepts lists of numbers or strings
        )
        if 'turns' in info:
            info['episode_info']['turns'] = float(len(info['turns']))


def as_reward(reward: float) -> np.ndarray:
    return np.array([reward], dtype=np.float32)
