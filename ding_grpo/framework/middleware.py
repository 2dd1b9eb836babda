"""What a task of ``ding.framework`` needs besides DI-engine's own middleware, which it uses as it is."""
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import click
from ding.envs import BaseEnvManager
from ding.framework import OnlineRLContext, task
from ditk import logging

from ding_common import ConfigError
from ding_grpo.collect import GroupCollector
from ding_grpo.data.capability import group_policy
from ding_grpo.policy import GRPOPolicy

MOST_DROPPED = 20  # times the groups of an update, before a run ends that drops all groups


def group_collector(cfg: Dict, policy: NamedTuple, env: BaseEnvManager, groups: Optional[int] = None) -> Callable:
    """
    Overview:
        Middleware that collects whole groups, in the place of DI-engine's ``StepCollector``. In a task of several
        processes it runs where the role is COLLECTOR, and each process draws random numbers of its own.
    Arguments:
        - cfg (:obj:`Dict`): The compiled config.
        - policy (:obj:`NamedTuple`): Collect mode of a ``grpo`` policy.
        - env (:obj:`BaseEnvManager`): The environments, see ``GroupCollector``.
        - groups (:obj:`Optional[int]`): Number of groups of one call; None: ``policy.collect.groups``. Of several \
            collectors, each collects so many.
    Returns:
        - collect (:obj:`Callable`): Adds to ``ctx.episodes`` a sample for each group, to ``ctx.env_step`` their \
            environment steps and to ``ctx.env_episode`` their episodes.
    """
    if task.router.is_active and not task.has_role(task.role.COLLECTOR):
        return task.void()
    learns, node = _of_groups(policy), task.router.node_id or 0
    name = f'collector_{node}' if task.router.is_active else 'collector'
    if task.router.is_active:
        learns.reseed(node)
    collector = GroupCollector(cfg.policy.collect.collector, env, policy, exp_name=cfg.exp_name, instance_name=name)

    def _collect(ctx: OnlineRLContext) -> None:
        before = collector.envstep
        samples = collector.collect(groups, train_iter=learns.age[0])
        ctx.episodes = samples
        ctx.env_step += collector.envstep - before
        ctx.env_episode += sum(len(sample['length']) for sample in samples)

    return _collect


def group_trainer(cfg: Dict, policy: NamedTuple, max_staleness: int = 1, log_freq: int = 1) -> Callable:
    """
    Overview:
        Middleware that learns from whole groups, in the place of DI-engine's ``multistep_trainer``: an update as soon
        as there are ``policy.collect.groups`` of them. In a task of several processes it runs where the role is
        LEARNER.
    Arguments:
        - cfg (:obj:`Dict`): The compiled config.
        - policy (:obj:`NamedTuple`): Learn mode of a ``grpo`` policy.
        - max_staleness (:obj:`int`): Groups whose weights are more updates old are dropped, and counted in the metric \
            ``stale_groups``. A ``RuntimeError`` ends a run that drops all groups.
        - log_freq (:obj:`int`): Number of updates between two lines of the log.
    Returns:
        - train (:obj:`Callable`): Takes ``ctx.episodes``, sets ``ctx.train_output`` and counts ``ctx.train_iter``.
    """
    if task.router.is_active and not task.has_role(task.role.LEARNER):
        return task.void()
    learns, needed = _of_groups(policy), cfg.policy.collect.groups
    waiting: List[Dict[str, Any]] = []
    dropped = 0

    def _train(ctx: OnlineRLContext) -> None:
        nonlocal waiting, dropped
        waiting += ctx.episodes or []
        ctx.episodes = None
        for group in waiting:
            group['staleness'] = learns.age[0] - group['collect_iter']
        fresh = [group for group in waiting if group['staleness'] <= max_staleness]
        dropped += len(waiting) - len(fresh)
        waiting = fresh[needed:] if len(fresh) >= needed else fresh
        if dropped > MOST_DROPPED * needed:
            raise RuntimeError(
                f'{dropped} groups since the last update had weights that were more than {max_staleness} updates old: '
                'collectors get none of the newer ones. Do all processes have ModelExchanger(Weights(policy))?'
            )
        if len(fresh) < needed:
            return
        metrics = policy.forward(fresh[:needed])
        ctx.train_iter = learns.age[0]
        ctx.train_output = dict(metrics, stale_groups=float(dropped))
        dropped = 0
        if ctx.train_iter % log_freq == 0:
            told = '\t'.join(f'{name} {ctx.train_output[name]:.3g}' for name in ('reward_mean', 'staleness_max'))
            logging.info(f'Training: Train Iter({ctx.train_iter})\tEnv Step({ctx.env_step})\t{told}')

    if task.router.is_active:
        click.echo(f'Groups whose weights are more than {max_staleness} updates old are not learned from.')
    return _train


class Weights:
    """The weights of a policy with their age, for DI-engine's ``ModelExchanger(Weights(policy))``, which reads and
    loads ``state_dict``. Groups are sampled by what has arrived last, and know how old it is."""

    def __init__(self, policy: GRPOPolicy) -> None:
        self._policy = policy

    def state_dict(self) -> Dict[str, Any]:
        policy = self._policy
        # copies: a thread sends them while the next update changes the weights
        weights = {name: value.to('cpu', copy=True) for name, value in policy.whole_model.state_dict().items()}
        return dict(weights=weights, age=policy.age)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._policy.take(**state)


def _of_groups(policy: NamedTuple) -> Any:
    learns = group_policy(policy)
    if learns is None:
        raise ConfigError(
            f"policy.type = {policy.get_attribute('cfg').get('type')!r}: does not learn from groups. Use DI-engine's "
            'StepCollector and its trainers, or grpo.'
        )
    return learns
