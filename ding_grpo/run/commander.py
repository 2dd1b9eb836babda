"""
Saves, resumes and stops a run. DI-engine's pipelines call their commander at the top of the loop, the only point where
nothing is in progress. Every update is counted, the updates from a replay buffer are complete, and no evaluation runs.
"""
import os
import signal
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from ding.worker import BaseSerialCommander, LearnerHook
from torch.distributed.device_mesh import DeviceMesh

from ding_common import CheckpointError, ConfigError, parallel, read_json_lines
from ding_common.content import check_content, taking
from ding_common.random_state import random_state_kept
from ding_grpo.compat import private
from ding_grpo.data.capability import learns_from_groups
from ding_grpo.evaluate.evaluator import GroupEvaluator
from ding_grpo.instruments.findings import FindingsHook
from ding_grpo.logs.metrics_log import ReportHook
from ding_grpo.logs.screen import run_folder, show

from .checkpoint import Found, lock, newest, numbered, prune, save_checkpoint
from .interrupt import Interrupt
from .run_state import BEFORE_END, RESULT, RunState
from .sharded_checkpoint import ENTRY, read_shards, write_shards


class RunCommander(BaseSerialCommander):
    """
    Overview:
        DI-engine's commander, which has references to all parts of a run. At the end of a run it evaluates the last
        weights. For ``grpo`` it also writes and reads checkpoints from which a run resumes bit-identically, and stops
        the run after Ctrl-C or SIGTERM. For other policies it adds the report hook.
    Interfaces:
        As ``BaseSerialCommander``; ``load``, ``save``, ``last_save``, ``evaluate_end``.
    """

    _running = weakref.WeakSet()  # the commander of the running pipeline

    def __init__(
            self,
            cfg: Dict,
            learner: 'BaseLearner',  # noqa
            collector: 'ISerialCollector',  # noqa
            evaluator: 'ISerialEvaluator',  # noqa
            replay_buffer: Optional['IBuffer'],  # noqa
            policy: Optional[NamedTuple] = None,
    ) -> None:
        super().__init__(cfg, learner, collector, evaluator, replay_buffer, policy)
        self._policy_cfg = learner.policy.get_attribute('cfg')
        self._saves = learns_from_groups(learner.policy)
        self._run = run_folder(learner.exp_name)
        self._folder = os.path.join(self._run, 'ckpt')
        self._interrupt = Interrupt()
        learner.register_hook(CommanderHook('evaluate_end', 30, position='after_run', method=self.evaluate_end))
        if not self._saves:
            self._add_report()
            return
        self._lock = lock(self._run) if parallel.rank() == 0 else None
        RunCommander._running.add(self)
        self._limits = private.limits(self._policy_cfg.learn)  # the pipelines check them only after one more update
        self._seed = learner.policy.get_attribute('seed')
        parts = learner, collector, evaluator, replay_buffer
        self._state = RunState(self._run, self._seed, self._policy_cfg.cuda, *parts)
        # at the last step, from which a run can resume that an error ends before the next
        self._top: Optional[Tuple[Tuple[int, ...], Dict[str, Any]]] = None
        self._found: Optional[Found] = None
        self._begun = False
        self._saved = 0  # updates at the last periodic checkpoint
        self._pruned = False  # whether a checkpoint has been deleted
        # State of the run after its last update. Checkpoints that are saved later contain it: a run that goes on from
        # them has no evaluation at its former end.
        self._end_state: Optional[Dict[str, Any]] = None
        # DI-engine's hooks save before the update is counted, and load the policy's state only. Metrics are equal in
        # all processes, and DI-engine's reduction of them needs a GPU.
        private.remove_hooks(
            learner, 'load_ckpt', 'save_ckpt_after_iter', 'save_ckpt_after_run', 'log_reduce_after_iter'
        )
        learner.register_hook(CommanderHook('load_ckpt', 20, position='before_run', method=self.load))
        # DI-engine calls it at the end of the run, and when its evaluator finds a new best policy
        learner.register_hook(CommanderHook('save_ckpt_after_run', 20, position='after_run', method=self._save_asked))

    def step(self) -> Any:
        if self._saves:
            if not self._begun:
                self._begin()
            self._top = self._progress, self._state.state_dict(waits=False)
            self._save_if_due()
            self._end_if_asked()
            if self._learner.train_iter >= self._limits.get('max_train_iter', float('inf')):
                self._evaluator.finish()
        return super().step()

    def load(self) -> None:
        """
        Overview:
            Load the checkpoint that the config names. If it names none and ``resume_training`` is set, load the \
            newest checkpoint in the run's folder. Called before the run.
        """
        resumes = self._policy_cfg.learn.get('resume_training', False)
        if not self._asked and not resumes:
            return
        # The first process chooses and reads the checkpoint; the others do not need access to its folder.
        chosen = self._choose() if parallel.rank() == 0 else None
        found = parallel.broadcast_object(chosen and tuple(chosen))
        if found is None:
            self._state.cut_logs({})
            show(
                f'policy.learn.resume_training = True: no checkpoint in {os.path.normpath(self._folder)}. Starting a '
                'new run.'
            )
            return
        found = Found(*found)
        state, learner = found.state, self._learner
        if self._mesh is not None:
            if ENTRY not in state:
                raise ConfigError(
                    f'policy.shard = {self._policy_cfg.shard!r}: the run of the checkpoint {found.path} did not set '
                    'it, so that it is not divided. Set it to False.'
                )
            buffers = [name for name, _ in learner.policy.get_attribute('model').named_buffers()]
            state = read_shards(found.path, state, self._mesh, buffers)
        if 'model' not in state:
            raise ConfigError(
                f'policy.learn.learner.hook.load_ckpt_before_run = {found.path!r}: contains no model of grpo, only '
                f"{', '.join(map(str, state))}."
            )
        ours, path = 'shuffle' in state, os.path.normpath(found.path)
        show(
            f"resuming from {path}, after update {state.get('last_iter', 0)}"
            if ours else f'starting with the weights of {path}, which another policy trained'
        )
        learner.policy.load_state_dict(state)
        if ours:  # else its updates are not those of this run
            learner.last_iter.update(state.get('last_iter', 0))
            learner.collector_envstep = state.get('last_step', 0)
        self._found = Found(found.path, dict(run=state.get('run')))  # without weights, which the model has a copy of

    @property
    def _mesh(self) -> Optional[DeviceMesh]:
        """The processes among which the model is divided; None if each has it whole."""
        return self._learner.policy.get_attribute('mesh')

    @property
    def _asked(self) -> str:
        return self._policy_cfg.learn.learner.hook.get('load_ckpt_before_run', '')

    def _choose(self) -> Optional[Found]:
        """The checkpoint to load; None for a new run."""
        resumes, asked = self._policy_cfg.learn.get('resume_training', False), self._asked
        if resumes and numbered(self._folder) and \
                os.path.realpath(os.path.dirname(asked)) != os.path.realpath(self._folder):
            asked = ''  # a checkpoint of another run, from which this run started
        return newest(self._folder, asked, parts=self._mesh is None)

    def save(self, name: Optional[str] = None, run: Optional[Dict[str, Any]] = None) -> None:
        """
        Overview:
            Write a checkpoint from which the run resumes bit-identically. With ``policy.shard`` all processes call \
            this together; otherwise it has no effect in the others than the first.
        Arguments:
            - name (:obj:`Optional[str]`): File name; None uses the name of a periodic checkpoint.
            - run (:obj:`Optional[Dict[str, Any]]`): The run's state; None is that of now.
        """
        learner, divided = self._learner, self._policy_cfg.shard
        if learner.rank != 0 and not divided:
            return
        path = os.path.join(self._folder, name or f'iteration_{learner.train_iter}.pth.tar')
        state = learner.policy.state_dict()
        if divided:
            state = write_shards(path, state)
        if learner.rank != 0:
            return
        learner.tb_logger.flush()  # so that TensorBoard's files reach the checkpoint whatever happens next
        run = run or self._end_state or self._state.state_dict()
        run = {**run, **self._state.buffer()}
        state.update(last_iter=learner.train_iter, last_step=learner.collector_envstep, run=run)
        save_checkpoint(path, state)
        keep = self._policy_cfg.learn.keep_ckpt
        old = prune(self._folder, keep)
        if old and not self._pruned:
            show(f'policy.learn.keep_ckpt = {keep}: {os.path.basename(old[0])} was deleted, and others will be')
        self._pruned = self._pruned or bool(old)

    def _save_asked(self) -> None:
        if self._learner.ckpt_name is not None:  # set by the evaluator, in the first process only
            self.save(self._learner.ckpt_name)
            return
        self._check_same()
        try:
            self._end_state = self._end_state or self._state.state_dict()
        except Exception:  # of what samples ahead
            self.save(run=self._state.state_dict(waits=False))
            raise
        self.save()

    @classmethod
    @contextmanager
    def last_save(cls) -> Iterator[None]:
        """
        Overview:
            Context of a pipeline: before an error ends a run, its commander saves. At the end the folder is unlocked.
        """
        try:
            yield
        except Exception as error:
            for commander in () if isinstance(error, CheckpointError) else cls._running:
                commander._save_before_error()
            raise
        finally:
            for commander in cls._running:
                if commander._lock is not None:
                    commander._lock.close()
            cls._running.clear()

    @property
    def _progress(self) -> Tuple[int, ...]:
        """Numbers of updates, of steps of the optimizer, and of what was pushed into the replay buffer."""
        steps = self._learner.policy.get_attribute('optimizer_steps')
        return self._learner.train_iter, steps, private.pushed(self._replay_buffer)

    def _save_before_error(self) -> None:
        """Save the run as it was at the last ``step``, unless weights or the buffer have changed since, nothing has
        been learned, or this checkpoint exists. A model that is divided among processes is not saved, since all would
        have to, nor what has been sampled ahead."""
        number, name = self._learner.train_iter, f'iteration_{self._learner.train_iter}.pth.tar'
        if self._top is None or self._top[0] != self._progress or number == 0 or self._policy_cfg.shard or \
                parallel.rank() > 0 or os.path.exists(os.path.join(self._folder, name)):
            return
        try:
            self.save(name, self._top[1])
        except Exception as error:  # NaN, a full disk, a GPU that has failed: the first error counts
            show(f'the run could not be saved after update {number}: {error}')
        else:
            show(f'saved after update {number}, from where policy.learn.resume_training=True continues')

    def evaluate_end(self) -> None:
        """
        Overview:
            Evaluate the last weights, unless a signal has asked the run to stop.
        """
        stopped = any(parallel.all_gather(self._interrupt.name))
        if isinstance(self._evaluator, GroupEvaluator) and not stopped:
            save = self._save_best if self._saves else self._learner.save_checkpoint
            with random_state_kept():
                self._evaluator.evaluate_end(save, self._learner.train_iter, self._collector.envstep)
        self._interrupt.release()

    def _save_best(self, name: str) -> None:
        """Save the last weights as the best, and keep the former best for a run that goes on from here."""
        path = os.path.join(self._folder, name)
        if os.path.exists(path):
            os.replace(path, f'{path}{BEFORE_END}')
        self._learner.save_checkpoint(name)

    def _add_report(self) -> None:
        hook = private.find_hook(self._learner, 'before_run', ReportHook)
        if hook is None:
            hook = ReportHook('report', 90, position='before_run')
            self._learner.register_hook(hook)
        hook.token_spec = getattr(self._evaluator, 'token_spec', None)

    def _check_same(self) -> None:
        """Raise a ``CheckpointError`` if the processes of the run have different weights."""
        model = self._learner.policy.get_attribute('model')
        sums = parallel.all_gather([p.detach().double().sum().item() for p in model.parameters()])
        if any(repr(s) != repr(sums[0]) for s in sums):  # NaN equals NaN here
            raise CheckpointError('the weights differ between the processes of this run; no checkpoint was saved')

    def _begin(self) -> None:
        """At the first step, catch signals and, if the run resumes, restore the pipeline's parts."""
        self._begun = True
        self._saved = self._learner.train_iter
        self._interrupt.catch()
        if self._found is not None and self._policy_cfg.learn.get('resume_training', False):
            self._restore(self._found)
        self._found = None
        findings = private.find_hook(self._learner, 'after_iter', FindingsHook)
        if findings is not None:
            findings.begin(self._learner, self._collector)

    def _save_if_due(self) -> None:
        freq = self._policy_cfg.learn.learner.hook.get('save_ckpt_after_iter', 0)
        if isinstance(freq, int) and freq > 0 and self._learner.train_iter // freq > self._saved // freq:
            self._saved = self._learner.train_iter
            self._check_same()
            self.save()

    def _end_if_asked(self) -> None:
        name = next(filter(None, parallel.all_gather(self._interrupt.name)), None)
        if name is not None:
            show(f'{name}: saving after update {self._learner.train_iter}')
            self._learner.call_hook('after_run')
            raise SystemExit(128 + signal.Signals[name])  # the exit status that shells use for a signal

    def _restore(self, found: Found) -> None:
        run = found.state.get('run')
        if run is None:
            raise ConfigError(
                f'policy.learn.resume_training = True: {found.path} does not contain the whole state of its run, so '
                'the run cannot resume. To start a new run with its weights, remove resume_training.'
            )
        seed = run.get('seed')
        if seed != self._seed:
            raise ConfigError(
                f'seed = {self._seed}: the run of {found.path} has seed {seed}, and resumes only with that seed '
                f'(ding -s {seed}).'
            )
        own = self._state.state_dict(waits=False)
        del own['random']  # whose types depend on what was drawn last
        with taking(f'the checkpoint {found.path}'):
            check_content(run, own, f'the checkpoint {found.path}')
            self._state.load_state_dict(run)
            sizes = run['logs']
        done = dict(max_train_iter=self._learner.train_iter, max_env_step=self._learner.collector_envstep)
        finished = any(done[name] >= limit for name, limit in self._limits.items())
        own = os.path.realpath(os.path.dirname(found.path)) == os.path.realpath(self._folder)
        last = parallel.broadcast_object(self._end_evaluation() if own else None) if finished else None
        if finished:
            self._evaluator.finish(last)
        if last is not None:
            self._end_state = run
        elif own:
            self._state.return_to(self._learner.train_iter, sizes)

    def _end_evaluation(self) -> Optional[Tuple[float, int]]:
        """Return and update of the evaluation at the end of this run, if the run has ended at this checkpoint."""
        records = read_json_lines(os.path.join(self._run, 'log', 'evaluator', 'evaluations.jsonl'))
        if not records or not os.path.exists(os.path.join(self._run, RESULT)):
            return None
        value, update = records[-1].get('eval_episode_return'), records[-1].get('train_iter')
        return (value, update) if value is not None and update == self._learner.train_iter else None


class CommanderHook(LearnerHook):
    """
    Overview:
        Calls a method of the commander. The reference is weak: a cycle with the evaluator would keep it and the \
        environments' processes alive after a run.
    """

    def __init__(self, *args, method: Callable[[], None], **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._method = weakref.WeakMethod(method)

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        self._method()()
