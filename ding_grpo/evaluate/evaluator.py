import os
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
from ding.envs import BaseEnvManager
from ding.utils import SERIAL_EVALUATOR_REGISTRY
from ding.worker import InteractionSerialEvaluator
from tensorboardX import SummaryWriter

from ding_common import ConfigError, append_json, config_errors, parallel, unwrap_task_error
from ding_grpo.collect.deferred import ScoringManager
from ding_grpo.collect.failures import check_failures
from ding_grpo.data.capability import group_policy
from ding_grpo.logs.screen import keep_off_screen, run_folder, show

from .evaluation import Evaluation
from .sampled_episodes import Results, sampled_episodes

END_SUFFIX = '.end'  # ending of TensorBoard's file with the evaluation at the end


@SERIAL_EVALUATOR_REGISTRY.register('group')
class GroupEvaluator(InteractionSerialEvaluator):
    """DI-engine's evaluator, which also reports each evaluation: one line on the screen, and one record in
    ``log/evaluator/evaluations.jsonl``. The record contains the return, every other number that the environment reports
    and, for token environments, each problem with its completion."""

    _end_flag = True  # nothing to close until DI-engine has built it

    def __init__(self, *args, **kwargs) -> None:
        self._since, self._evaluating = time.monotonic(), 0.
        self.last: Optional[Tuple[float, int]] = None  # return and update of the last evaluation
        self._returns: List[float] = []  # of its episodes
        self.record: Dict[str, Any] = {}  # of it, in the first process
        super().__init__(*args, **kwargs)
        self._check_pictures()

    def _check_pictures(self) -> None:
        """Try requested pictures when the run starts, because many environments provide none."""
        if self._render.render_freq != -1:
            self._env.reset()
            key = f'policy.eval.evaluator.render.render_freq = {self._render.render_freq}'
            with config_errors(f'{key}: the environment gives no pictures to DI-engine', '. Remove render.'):
                self._env.ready_imgs
        figure_path = self._cfg.get('figure_path')
        if figure_path is not None and not hasattr(self._env.env_ref, 'enable_save_figure'):
            raise ConfigError(
                f'policy.eval.evaluator.figure_path = {figure_path!r}: the environment saves no figures. Remove '
                'figure_path.'
            )

    def reset_env(self, _env: Optional[BaseEnvManager] = None) -> None:
        super().reset_env(_env and ScoringManager.around(_env))

    def reset_policy(self, _policy: Optional[Any] = None) -> None:
        super().reset_policy(_policy)
        self._learns = group_policy(self._policy)  # None for DI-engine's own policies
        if self._learns is not None:
            self._learns.bind(self.token_spec, (self._env.observation_space, self._env.action_space))
        elif self._samples > 0:
            key = 'sample' if self._decides_by_samples else 'samples_per_start'
            kind = self._policy_cfg.type.removesuffix('_command')
            raise ConfigError(
                f'policy.eval.evaluator.{key} = {self._cfg[key]}: policy.type = {kind!r} only evaluates greedily. '
                f'Remove {key}, or use grpo.'
            )
        if parallel.rank() == 0:
            keep_off_screen(self._logger)

    def eval(
            self,
            save_ckpt_fn: Callable = None,
            train_iter: int = -1,
            envstep: int = -1,
            *args,
            **kwargs,
    ) -> Tuple[bool, Dict]:
        best, begun = self._max_episode_return, time.monotonic()
        if self._learns is not None:  # seeding may change global random states, which other policies train with
            self._seed_starts(train_iter)
        to_save: List[str] = []  # saved below, once the share of failures is known to be small enough
        try:
            stop, info = super().eval(to_save.append, train_iter, envstep, *args, **kwargs)
        except Exception as error:  # an environment may raise anything
            _check_return(error)
            unwrap_task_error(error)
        value = greedy = float(np.mean(info['eval_episode_return']))
        sampled, sampled_value = self._sample(train_iter) if self._samples > 0 else (None, None)
        if self._decides_by_samples:
            value, info = sampled_value, dict(info, eval_episode_return=[sampled_value])
            stop = value >= self._stop_value and train_iter > 0
            if parallel.rank() == 0:
                to_save = ['ckpt_best.pth.tar'] if value > best else []
                self._max_episode_return = max(value, best)
        self.last, self._returns = (value, train_iter), info['eval_episode_return']
        watched = self._learns is not None and train_iter >= 0 and not self._decides_by_samples
        paid = np.ravel(info['eval_episode_return']) >= self._stop_value
        cut_at_bar = float(np.mean(paid * np.ravel(info.get('truncated', 0.0)))) if stop else 0.0
        if parallel.rank() == 0:  # only the first process evaluates
            seconds = begun - self._since - self._evaluating
            own_greedy = greedy if self._decides_by_samples else None
            found = Evaluation(train_iter, envstep, seconds, value, own_greedy, info, sampled, self._cfg)
            self._write(found)
            self._evaluating += time.monotonic() - begun
        if watched:
            self._learns.observers.evaluated(greedy, sampled_value, cut_at_bar)
        self._save(save_ckpt_fn, to_save)
        if parallel.rank() == 0:
            show(found.line(best))
        return stop, info

    def _write(self, found: Evaluation) -> None:
        """Log an evaluation; raises ``TaskError`` if too many of its completions could not be scored."""
        for tag, number, step in found.tagged(self._instance_name):
            self._tb_logger.add_scalar(tag, number, step)
        log = os.path.join(run_folder(self._exp_name), 'log', self._instance_name, 'evaluations.jsonl')
        append_json(log, found.record)
        self.record = found.record
        most = self._cfg.get('max_failed', 0.1)
        check_failures(found.failures, most, 'policy.eval.evaluator.max_failed', 'count as 0')

    def _save(self, save_ckpt_fn: Optional[Callable], names: List[str]) -> None:
        """Save checkpoints under the names of the first process. Where the model is divided, each saves its part."""
        if save_ckpt_fn is None:
            return
        for name in parallel.broadcast_object(names) if self._policy_cfg.get('shard', False) else names:
            save_ckpt_fn(name)

    def should_eval(self, train_iter: int) -> bool:
        due = super().should_eval(train_iter)
        if self.last is None and not due:  # a run has at least one evaluation
            self._last_eval_iter, due = train_iter, True
        return due

    @property
    def reached(self) -> bool:
        """Whether the last evaluation ends the run."""
        return self.last is not None and self.last[0] >= self._stop_value and self.last[1] > 0

    @property
    def best(self) -> float:
        """The highest return of an evaluation."""
        return float(self._max_episode_return)

    def result(self) -> Tuple[List[float], bool]:
        """The returns of the last evaluation, of a resumed run its mean, and whether it ends the run."""
        return self._returns or [self.last[0]], self.reached

    @property
    def token_spec(self) -> Optional[Any]:
        return getattr(self._env.env_ref, 'token_spec', None)

    def evaluate_end(self, save_ckpt_fn: Callable, train_iter: int, envstep: int) -> None:
        """Evaluate the weights at the end of a run, unless the last evaluation was of them. TensorBoard's values go
        into a file of their own, which a resumed run deletes if it goes on."""
        value, evaluated = self.last or (None, None)
        if evaluated == train_iter:
            if value >= self._stop_value and parallel.rank() == 0:
                what = getattr(self.token_spec, 'return_name', 'the return')
                show(f'env.stop_value = {self._stop_value:g} reached by {what} = {value:.4g} at update {train_iter}')
            return
        writer = self._tb_logger
        if writer is not None:
            self._tb_logger = SummaryWriter(writer.logdir, filename_suffix=END_SUFFIX)
            if hasattr(writer, 'mirror'):
                writer.mirror.copy(self._tb_logger)
        try:
            self.eval(save_ckpt_fn, train_iter, envstep)
        finally:
            if writer is not None:
                self._tb_logger.close()
                self._tb_logger = writer

    def state_dict(self) -> Dict[str, Any]:
        return dict(
            best=self.best,
            last=self.last,
            last_eval_iter=self._last_eval_iter,
            seconds=time.monotonic() - self._since,
            evaluating=self._evaluating,
        )

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._max_episode_return, self._last_eval_iter = state['best'], state['last_eval_iter']
        self.last = state['last'] and tuple(state['last'])
        self._since, self._evaluating = time.monotonic() - state['seconds'], state['evaluating']

    def _seed_starts(self, train_iter: int) -> None:
        """Seed by (run seed, update), so that a resumed run evaluates the same starts as an uninterrupted one."""
        seeds = np.random.SeedSequence([self._learns.seed, max(train_iter, 0)]).generate_state(self._env.env_num)
        # below 2^30; the group collector's seeds are above
        self._env.seed({i: int(s >> 2) for i, s in enumerate(seeds)}, dynamic_seed=False)

    @property
    def _decides_by_samples(self) -> bool:
        return self._cfg.get('sample', False)

    @property
    def _samples(self) -> int:
        return max(self._cfg.get('samples_per_start', 0), int(self._decides_by_samples))

    def _sample(self, train_iter: int) -> Tuple[Optional[Results], float]:
        """The results of ``sampled_episodes`` in the first process, and their mean return in all."""
        if parallel.rank() > 0:
            return None, parallel.broadcast_object(None)
        episodes = self._default_n_episode, self._samples
        try:
            found = sampled_episodes(self._env, self._policy, *episodes, max(train_iter, 0))
        except Exception as error:
            unwrap_task_error(error)
        return found, parallel.broadcast_object(float(found[0]['return'].mean()))


def _check_return(error: Exception) -> None:
    """Name the environment as the reason of the error that its info has no return."""
    if error.args == ('eval_episode_return', ):
        raise ConfigError(
            "create_config.env.type: at the end of an episode the environment's info must contain eval_episode_return, "
            'the sum of its rewards as a float. It has no such key.'
        ) from error
