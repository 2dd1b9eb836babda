import os
import random
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from ding.envs import AsyncSubprocessEnvManager, BaseEnvManager
from ding.utils import SERIAL_COLLECTOR_REGISTRY, build_logger
from ding.worker.collector.base_serial_collector import ISerialCollector

from ding_common import ConfigError, parallel, unwrap_task_error
from ding_common.processes.ding_private import disable_auto_reset
from ding_common.processes.memory import MemoryMeter
from ding_grpo.data.capability import group_policy
from ding_grpo.data.plain import plain
from ding_grpo.learn.extra_loss import load
from ding_grpo.logs.screen import keep_off_screen, run_folder

from .collect_log import CollectLog
from .completion_table import CompletionTable
from .failures import check_failures
from .group import Collected, Sampled
from .group_player import GroupPlayer
from .probe import probe
from .problem_pools import ProblemPools, make_order

# Counters of a collector, which a resumed run restores.
COUNTERS = ('envstep', 'collect_iter', 'groups', 'started')


@SERIAL_COLLECTOR_REGISTRY.register('group')
class GroupCollector(ISerialCollector):
    """
    Overview:
        Collects whole groups. A group is assembled by its environments' ids, never by position. Its G environments
        get one seed, and each runs exactly one episode. The G episodes are folded into one sample at once, so that
        nothing can separate them. All environments of the running groups step together, so that tokens and rewards
        depend neither on which of them finishes first nor on the number of processes.
    """

    config = dict(
        # (int) Number of updates between two entries in the collector's text log and in TensorBoard.
        collect_print_freq=1,
        # (int) Number of updates between two tables of completions on the screen and in log/collector/completions.txt.
        # The untruncated completions of the same groups are in completions.jsonl.
        table_freq=50,
        # (int) Maximum number of rows of such a table.
        table_rows=6,
        # (int) Maximum number of restarts of a group whose environments end abnormally.
        max_restarts=3,
        # (int) Maximum number of groups that a collect samples to replace groups whose rewards are all equal, from
        # which nothing is learned (dynamic sampling, https://arxiv.org/abs/2503.14476). Raise it when equal_groups is
        # high.
        max_replacements=0,
        # (Optional[Tuple[float, float]]) Groups whose mean return is not from low to high, both included, are not
        # learned from. They are replaced like groups of equal rewards, as far as ``max_replacements`` allows. (0.1,
        # 0.9) leaves out problems that are nearly always or nearly never solved. None: no filter.
        reward_range=None,
        # (float) Largest share of a collect's completions that may fail to be scored; the run stops when it is
        # exceeded. A failed completion is dropped from its group.
        max_failed=0.1,
    )

    def __init__(
            self,
            cfg: Dict,
            env: BaseEnvManager = None,
            policy: NamedTuple = None,
            tb_logger: 'SummaryWriter' = None,  # noqa
            exp_name: Optional[str] = 'default_experiment',
            instance_name: Optional[str] = 'collector',
    ) -> None:
        """
        Arguments:
            - cfg (:obj:`Dict`): See ``config``.
            - env (:obj:`BaseEnvManager`): The number of its environments must be a multiple of the group size.
            - policy (:obj:`NamedTuple`): Collect mode of a ``grpo`` policy.
        """
        self._cfg = cfg
        self._name = instance_name
        folder = os.path.join(run_folder(exp_name), 'log', instance_name)
        self._logger, own_tb_logger = build_logger(
            folder, instance_name, need_tb=tb_logger is None and parallel.rank() == 0
        )
        self._tb_logger = own_tb_logger if tb_logger is None else tb_logger
        keep_off_screen(self._logger)
        table = CompletionTable(os.path.join(folder, 'completions'), cfg.table_rows)
        self._log = CollectLog(instance_name, cfg, self._logger, self._tb_logger, table)
        self._collect_iter = None
        self._groups = 0  # in this update
        self._started = 0  # before this update
        self._envstep = 0
        self._closed = False
        self._ahead: Optional['AheadSampler'] = None  # noqa  with ``collect.stale``
        self._policy: Optional[NamedTuple] = None
        self.reset(policy, env)

    def reset_env(self, _env: Optional[BaseEnvManager] = None) -> None:
        if _env is None:
            self._env.reset()
            return
        self._env = _env
        disable_auto_reset(self._env)
        try:
            self._env.launch()
        except RuntimeError as error:
            unwrap_task_error(error)
        if self._policy is not None:
            self._player = self._make_player()

    def reset_policy(self, _policy: Optional[NamedTuple] = None) -> None:
        if _policy is not None:
            self._policy = _policy
            self._learns = group_policy(_policy)
            if self._learns is None:
                kind = _policy.get_attribute('cfg').get('type')
                raise ConfigError(
                    f"create_config.collector.type = 'group': policy.type = {kind!r} does not learn "
                    'from groups. Remove the collector, or use grpo.'
                )
            cfg, self._seed = self._learns.cfg, self._learns.seed
            extra = cfg.collect.extra_rows
            self._rows = cfg.group_size + extra  # of a group, as they are sampled
            self._n_sample = cfg.collect.groups
            if self._env.env_num % self._rows != 0:
                of_extra = f' + policy.collect.extra_rows = {self._rows}' if extra else f' = {self._rows}'
                raise ConfigError(
                    f'env.collector_env_num = {self._env.env_num}: must be a multiple of policy.group_size'
                    f'{of_extra}, because a group uses {self._rows} environments at once.'
                )
            self._check_episodes(cfg.collect.max_episodes_per_env)
            self._ahead = self._make_ahead() if cfg.collect.stale > 0 else None
            self._needs_greedy = self._learns.needs_greedy
            self._order = make_order(self._seed, getattr(self._env.env_ref, 'num_problems', None), cfg.collect)
            spaces = self._env.observation_space, self._env.action_space
            self._learns.bind(getattr(self._env.env_ref, 'token_spec', None), spaces)
            self._player = self._make_player()
        self._policy.reset()

    def _make_player(self) -> GroupPlayer:
        return GroupPlayer(self._env, self._policy, self._seed, self._rows, self._cfg.max_restarts, self._logger)

    def _check_episodes(self, most: int) -> None:
        episodes = self._n_sample * self._rows
        if episodes > most * self._env.env_num:
            raise ConfigError(
                f'policy.collect.groups = {self._n_sample}: counts groups, not steps. {self._n_sample} groups x '
                f'{self._rows} = {episodes:,} episodes in a collect are {episodes / self._env.env_num:g} for '
                f'each of {self._env.env_num} environments, more than policy.collect.max_episodes_per_env = {most}. '
                'Lower groups, or raise max_episodes_per_env.'
            )

    def _make_ahead(self) -> 'AheadSampler':  # noqa
        if isinstance(self._env, AsyncSubprocessEnvManager):
            raise ConfigError(
                "create_config.env_manager.type = 'subprocess': must be 'base' with policy.collect.stale = 1, whose "
                'environments are in the process that samples.'
            )
        return load('ding_grpo.extras.ahead:AheadSampler')(self._learns.whole_model)

    def probe(self, problems: int) -> List[Dict[str, Any]]:
        """Score texts that no policy wrote, of some problems, see ``ding_grpo.collect.probe``."""
        return probe(self._env, problems)

    def reset(self, _policy: Optional[NamedTuple] = None, _env: Optional[BaseEnvManager] = None) -> None:
        if _env is not None:
            self.reset_env(_env)
        if _policy is not None:
            self.reset_policy(_policy)

    @property
    def envstep(self) -> int:
        """Number of environment steps so far; for a token environment, of tokens."""
        return self._envstep

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._envstep = value

    def state_dict(self) -> Dict[str, Any]:
        return dict(self.counters(), **({} if self._ahead is None else self._ahead.state_dict()))

    def counters(self) -> Dict[str, Any]:
        """``state_dict`` without what is being sampled ahead, for which it waits."""
        return dict(self._counters(), **self._log.state_dict(), **self._pools())

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._set_counters(state)
        self._log.load_state_dict(state)
        if isinstance(self._order, ProblemPools) and 'pools' in state:
            self._order.load_state_dict(state['pools'])
        if self._ahead is not None:
            self._ahead.load_state_dict(state)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._ahead is not None:
            self._ahead.close()
        self._env.close()
        if self._tb_logger is not None:
            try:
                self._tb_logger.flush()
                self._tb_logger.close()
            except (OSError, ValueError) as error:  # its thread has ended because the disk is full
                self._logger.warning(f'closing the log: {error!r}')

    def __del__(self) -> None:
        if hasattr(self, '_env'):
            self.close()

    def collect(
            self,
            n_sample: Optional[int] = None,
            train_iter: int = 0,
            drop_extra: bool = True,
            random_collect: bool = False,
            record_random_collect: bool = True,
            policy_kwargs: Optional[Dict] = None,
            level_seeds: Optional[List] = None,
    ) -> List[Dict[str, Any]]:
        """
        Overview:
            Collect whole groups.
        Arguments:
            - n_sample (:obj:`Optional[int]`): Number of groups; None uses ``policy.collect.groups``.
            - train_iter (:obj:`int`): Number of updates of the collecting policy so far.
            - policy_kwargs (:obj:`Optional[Dict]`): Further arguments of the policy's forward.
        Returns:
            - samples (:obj:`List[Dict]`): One sample per group, ordered by the groups' numbers, which start at 0 \
                with each update. See ``fold_group`` for the keys; further keys are ``group_id``, ``collect_iter``, \
                ``seconds_sampling``, ``seconds_scoring``, ``replaced_groups`` and ``dropped_tokens`` (the group's \
                share), and ``memory_mib_sampling`` and ``memory_mib_scoring`` of the collect.
        Raises:
            - TaskError: If the share of completions that could not be scored is larger than ``max_failed``.

        The other arguments exist because DI-engine's pipelines pass them. Groups are never cut, and a random policy
        makes no groups.
        """
        if random_collect and self._collect_iter is not None:  # a resumed run has already done this
            return []
        target = self._n_sample if n_sample is None else n_sample
        found = None if self._ahead is None else self._ahead.take(train_iter)
        if found is not None:
            self._set_counters(found.counters)
        sampled = found.sampled if found else self._sample(target, train_iter, policy_kwargs or {})
        done, replaced, clock, memory = sampled
        self._rate_problems([*done, *replaced])
        infos = [info for group in [*done, *replaced] for info in group.infos]
        scored = [info for info in infos if 'return' in info and info.get('failed') is None]
        self._learns.observers.sampled([info['return'] for info in scored])
        failures = [info.get('failed') for info in infos]
        check_failures(failures, self._cfg.max_failed, 'policy.collect.collector.max_failed', 'are dropped')
        shares = dict(replaced_groups=len(replaced), **{f'seconds_{part}': value for part, value in clock.items()})
        shares['dropped_tokens'] = sum(group.dropped_tokens for group in [*done, *replaced])
        for group in done:
            group.sample.update({name: value / target for name, value in shares.items()})
            group.sample.update({f'memory_mib_{part}': value for part, value in memory.items()})
        sizes = self._order.sizes() if isinstance(self._order, ProblemPools) else {}
        self._log.write(done, clock, train_iter, self._envstep, self._learns.advantages, sizes)
        if self._ahead is not None:
            further = self._learns.optimizer_steps, target, train_iter + 1, policy_kwargs or {}
            self._ahead.begin(self._sample_ahead, (self._counters(), self._pools(), *further))
        return [group.sample for group in done]

    def _sample(self, target: int, train_iter: int, policy_kwargs: Dict) -> Sampled:
        """Sample groups until there are ``target`` to learn from."""
        if train_iter != self._collect_iter:
            self._started += self._groups
            self._collect_iter, self._groups = train_iter, 0
        clock, memory = dict(sampling=0., scoring=0.), MemoryMeter(self._learns.device)
        done: List[Collected] = []
        replaced: List[Collected] = []
        while len(done) < target:
            for group in self._run(target - len(done), train_iter, policy_kwargs, clock, memory):
                group.filter(self._cfg.reward_range)
                useless = group.sample['equal'] or group.sample['filtered']
                replace = useless and len(replaced) < self._cfg.max_replacements
                (replaced if replace else done).append(group)
        return Sampled(done, replaced, clock, memory.most)

    def _counters(self) -> Dict[str, Any]:
        return {name: getattr(self, f'_{name}') for name in COUNTERS}

    def _set_counters(self, counters: Dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, f'_{name}', counters.get(name, 0))  # checkpoints of older versions lack ``started``

    def _pools(self) -> Dict[str, Any]:
        return dict(pools=self._order.state_dict()) if isinstance(self._order, ProblemPools) else {}

    def _sample_ahead(self, request: Tuple) -> Tuple[int, Sampled, Dict[str, int]]:
        """Sample for the next update, in the process of ``AheadSampler``."""
        counters, pools, steps, target, train_iter, policy_kwargs = request
        self._set_counters(counters)
        if pools:
            self._order.load_state_dict(pools['pools'])
        sampled = self._sample(target, train_iter, policy_kwargs)
        for group in [*sampled.done, *sampled.replaced]:
            group.sample.update(sampled_after=steps, staleness=1)
        return train_iter, sampled, self._counters()

    def _run(self, number: int, train_iter: int, policy_kwargs: Dict, clock: Dict[str, float],
             memory: MemoryMeter) -> List[Collected]:
        """Run the next ``number`` groups. Each process runs its share, and every process gets all groups."""
        numbers = [self._groups + i for i in parallel.share(number)]
        self._groups += number
        seconds = dict.fromkeys(clock, 0.)
        play = partial(self._player.play, numbers, self._collect_iter, self._problem, policy_kwargs, seconds, memory)
        groups, greedy = play(), play(greedy=True) if self._needs_greedy else []
        self._player.score([group for group in [*groups, *greedy] if group.unscored], seconds, memory)
        for group, row in zip(groups, greedy):
            group.compare_with(row)
        mine = [group.fold(self._policy, train_iter) for group in groups]
        # Environments seed the generators of Python and NumPy, so that these differ between processes here. What draws
        # from them next, such as a replay buffer, must draw the same numbers in all processes.
        groups, states = [group._asdict() for group in mine], (random.getstate(), np.random.get_state())
        shares = parallel.all_gather(plain(dict(groups=groups, seconds=seconds, memory=memory.most, random=states)))
        if parallel.rank() > 0:
            random.setstate(shares[0]['random'][0])
            np.random.set_state(shares[0]['random'][1])
        for part in clock:
            clock[part] += max(share['seconds'][part] for share in shares)  # the slowest process
            memory.most[part] = max(share['memory'].get(part, 0.) for share in shares)
        collected = [Collected(**group) for share in shares for group in share['groups']]
        self._envstep += sum(group.steps for group in collected)
        return collected

    def _problem(self, number: int) -> Optional[int]:
        """The problem of a group of this update; None if the environment draws it from its seed."""
        return None if self._order is None else self._order.problem(self._started + number)

    def _rate_problems(self, groups: List[Collected]) -> None:
        if not isinstance(self._order, ProblemPools):
            return
        least, rates = self._learns.cfg.collect.pools.success_from, []
        for group in sorted(groups, key=lambda group: group.sample['group_id']):
            returns = group.returns()
            if len(returns):
                rates.append((self._problem(group.sample['group_id']), (returns >= least).float().mean().item()))
        self._order.finish(self._started + self._groups, rates)
