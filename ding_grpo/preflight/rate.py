"""The share of a model's completions that are right, sampled as a run samples."""
import contextlib
import io
from typing import Any, Dict, NamedTuple

from easydict import EasyDict

from ding_grpo.check import built

from .plan import LENGTH

PROBLEMS, ROWS = 16, 8
OF_RUN = ('collector_env_num', 'evaluator_env_num', 'n_evaluator_episode', 'stop_value', 'manager')  # keys of ``env``


class Rate(NamedTuple):
    """How many of ``number`` completions are right, and the share of groups of ``ROWS`` with unequal rewards."""
    right: int
    number: int
    unequal: float

    @property
    def success(self) -> float:
        """The share of right ones; of none or of all half a completion, since no plan has such a rate."""
        return min(max(self.right, 0.5), self.number - 0.5) / self.number

    def line(self) -> str:
        return (
            f'{self.right} of {self.number} sampled completions of {PROBLEMS} problems are right, and '
            f'{100 * self.unequal:.0f} % of groups of {ROWS} have unequal rewards'
        )


def sampled_rate(env: Dict[str, Any], model: str, reward: float) -> Rate:
    """Sample completions of a pretrained model, given the section ``env`` of a config, and the reward of a right
    completion."""
    of_task = {key: value for key, value in env.items() if key not in OF_RUN}
    main_config = EasyDict(
        exp_name='preflight',
        env=dict(dict(max_new_tokens=LENGTH), **of_task),
        policy=dict(
            model=dict(pretrained=model),
            group_size=ROWS,
            collect=dict(groups=PROBLEMS),
            learn=dict(batch_groups=PROBLEMS),
        ),
    )
    create_config = EasyDict(env=dict(type='token_env'), policy=dict(type='grpo'))
    with contextlib.redirect_stdout(io.StringIO()), built(main_config, create_config, seed=0) as (_, collector):
        rewards = [group['reward'].sum(1) for group in collector.collect(train_iter=0)]
    right = sum(int((of_group >= reward - 1e-6).sum()) for of_group in rewards)
    unequal = sum(bool((of_group != of_group[0]).any()) for of_group in rewards)
    return Rate(right, sum(map(len, rewards)), unequal / len(rewards))
