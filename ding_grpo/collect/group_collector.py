import os
from typing import Any, Dict, List, NamedTuple, Optional

from ding.envs import BaseEnvManager
from ding.envs.env_manager.base_env_manager import timeout_wrapper
from ding.utils import SERIAL_COLLECTOR_REGISTRY, build_logger
from ding.worker.collector.base_serial_collector import ISerialCollector

from ding_common import ConfigError, TaskError, parallel, unwrap_task_error
from ding_common.processes.ding_private import disable_auto_reset, step_timeout
from ding_common.processes.random_state import random_state_kept
from ding_grpo.data.capability import group_policy
from ding_grpo.learn.extra_loss import load
from ding_grpo.logs.screen import keep_off_screen, run_folder, show

from .collect_log import CollectLog
from .failures import check_failures
from .records import NAME, write_records
from .source import GroupSource, PlayedGroups


@SERIAL_COLLECTOR_REGISTRY.register('group')
class GroupCollector(ISerialCollector):
    """Collects whole groups. A group is assembled by its environments' ids, never by position. Its G environments get
    one seed, and each runs exactly one episode. The G episodes are folded into one sample at once, so that nothing can
    separate them. All environments of the running groups step together, so that tokens and rewards depend neither on
    which of them finishes first nor on the number of processes. A registered subclass with another ``make_source`` has
    its groups from elsewhere."""

    makes_groups = True
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
        self._records = os.path.join(folder, NAME)
        self._log = CollectLog(instance_name, cfg, folder, self._logger, self._tb_logger)
        self._closed = False
        self._policy: Optional[NamedTuple] = None
        self._source: Optional[GroupSource] = None
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
            self._renew_source()

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
            self._renew_source()
            self._learns.bind(self.token_spec, (self._env.observation_space, self._env.action_space))
        self._policy.reset()

    def _renew_source(self) -> None:
        """Other environments or another policy go on where the ones before were."""
        before, self._source = self._source, self.make_source()
        if before is not None:
            self._source.load_state_dict(before.state_dict())
            before.close()

    def make_source(self) -> GroupSource:
        """Where the groups come from, given the environments and the policy."""
        ahead = self._learns.cfg.collect.max_staleness > 0
        make = load('ding_grpo.extras.ahead:AheadGroups') if ahead else PlayedGroups
        return make(self._cfg, self._env, self._policy, self._logger)

    def probe(self, problems: int) -> List[Dict[str, Any]]:
        """Score texts that no policy wrote, of some problems, in environments that can (``dizoo_llm/envs/probe.py``).
        The random numbers of the run stay as they are. Returns what ``of_probes`` takes; empty for other environments,
        and if a problem has no prompt, which the environments report when they get to it."""
        own = getattr(self._env.env_ref, 'probe', None)
        if own is None:
            return []
        limit = step_timeout(self._env)
        with random_state_kept():
            try:
                return timeout_wrapper(own, limit)(problems)
            except TaskError:
                return []
            except TimeoutError:
                show(
                    f'env.manager.step_timeout = {limit}: the scorer took longer for the demonstrations and junk of '
                    f'{problems} problems, so they are not compared'
                )
                return []

    def reset(self, _policy: Optional[NamedTuple] = None, _env: Optional[BaseEnvManager] = None) -> None:
        if _env is not None:
            self.reset_env(_env)
        if _policy is not None:
            self.reset_policy(_policy)

    @property
    def token_spec(self) -> Optional[Any]:
        """Tokenizer and limits of a token environment; None of others."""
        return getattr(self._env.env_ref, 'token_spec', None)

    @property
    def num_problems(self) -> Optional[int]:
        """Number of training problems; None if the environment does not count them."""
        return getattr(self._env.env_ref, 'num_problems', None)

    @property
    def envstep(self) -> int:
        """Number of environment steps so far; for a token environment, of tokens."""
        return self._source.envstep

    @envstep.setter
    def envstep(self, value: int) -> None:
        self._source.envstep = value

    def state_dict(self, waits: bool = True) -> Dict[str, Any]:
        """``waits``: also of what is being sampled ahead, for which it waits."""
        return dict(self._source.state_dict(waits), **self._log.state_dict())

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._log.load_state_dict(state)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._source is not None:
            self._source.close()
            self._learns.close()
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
        if random_collect and self._source.collect_iter is not None:  # a resumed run has already done this
            return []
        target = self._learns.cfg.collect.groups if n_sample is None else n_sample
        done, replaced, clock, memory = self._source.sample(target, train_iter)
        self._learns.observers.sampled([*done, *replaced])
        failures = [info.get('failed') for group in [*done, *replaced] for info in group.infos]
        check_failures(failures, self._cfg.max_failed, 'policy.collect.collector.max_failed', 'are dropped')
        shares = dict(replaced_groups=len(replaced), **{f'seconds_{part}': value for part, value in clock.items()})
        shares['dropped_tokens'] = sum(group.dropped_tokens for group in [*done, *replaced])
        for group in done:
            group.sample.update({name: value / target for name, value in shares.items()})
            group.sample.update({f'memory_mib_{part}': value for part, value in memory.items()})
        write_records(self._records, [*done, *replaced])
        self._log.write(done, clock, train_iter, self.envstep, self._learns.advantages, self._source.sizes())
        return [group.sample for group in done]
