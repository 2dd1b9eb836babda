"""Keys of DI-engine's PPO that ``grpo`` does not have, and what to write instead; ``ding_grpo.from_ppo`` does it."""
from typing import Any, Dict, List, Tuple

from ding_common import ConfigError

from .moved import written

PPO_KEYS = {
    'action_space': 'remove it; policy.model.action_space says it',
    'recompute_adv': 'remove it; there are no values to recompute advantages from',
    'nstep_return': 'remove it; there are no value targets',
    'multi_agent': 'remove it; several agents are not supported',
    'priority_IS_weight': 'remove it; groups have no priorities',
    'load_path': 'remove it, or use policy.learn.learner.hook.load_ckpt_before_run',
    'learn.value_weight': 'remove it; there is no value loss. With a critic it is policy.learn.critic.value_weight',
    'learn.value_norm': 'remove it; there are no values. With a critic it is policy.learn.critic.value_norm',
    'learn.adv_norm': 'remove it; policy.learn.adv_method normalises within a group',
    'learn.grad_clip_type': 'remove it; policy.learn.grad_clip_value limits the norm of the gradient',
    'learn.ignore_done': 'remove it; policy.learn.extend_truncated=True extends episodes that a time limit cut',
    'learn.lr_scheduler.epoch_num': 'remove it; policy.learn.lr_scheduler takes a schedule of transformers',
    'learn.lr_scheduler.min_lr_lambda': 'remove it; policy.learn.lr_scheduler takes a schedule of transformers',
    'collect.gae_lambda': 'remove it; advantages compare the returns of a group. With a critic it is '
    'policy.learn.critic.gae_lambda',
    'collect.n_episode': 'remove it; policy.collect.groups counts groups of episodes',
}


def written_ppo_keys(policy: Dict) -> List[Tuple[str, Any]]:
    """The keys of ``PPO_KEYS`` in a section ``policy``, with their values."""
    return [(path, value) for path, value in written(policy) if path in PPO_KEYS]


def check_ppo_keys(policy: Dict) -> None:
    """Refuse the keys of PPO in the section ``policy`` as the user wrote it, all in one message."""
    keys = written_ppo_keys(policy)
    if keys:
        told = '; '.join(f'policy.{path} = {value!r} ({PPO_KEYS[path]})' for path, value in keys)
        raise ConfigError(
            f"{told}. These keys are PPO's, not grpo's. policy.collect.groups and policy.learn.batch_groups "
            'count groups, not steps. `python -m ding_grpo.from_ppo FILE` converts the config of PPO.'
        )
