"""
Saves, resumes and stops a run, at the top of its loop, the only point where nothing is in progress. Every update is
counted, the updates from a replay buffer are complete, and no evaluation runs.
"""
import os
import signal
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ding_common import CheckpointError, ConfigError, parallel, read_json_lines
from ding_common.content import check_content, taking
from ding_common.processes.ding_private import pushed
from ding_common.processes.random_state import random_state_kept
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.screen import run_folder, show

from .checkpoint import Found, lock, newest, numbered, prune, save_checkpoint
from .interrupt import Interrupt
from .parts import Parts
from .run_state import BEFORE_END, RESULT, RunState
from .sharded_checkpoint import ENTRY, read_shards, write_shards


class DingSaver:
    """As ``Saver``, of a run of one of DI-engine's own policies, whose learner saves and loads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.save = parts.learner.save_checkpoint

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def begin(self) -> bool:
        parts = self._parts
        # between its hooks that save and those that write what comes of the run
        parts.learner.register_hook(CallHook('evaluate_end', 30, position='after_run', function=self._evaluate_end))
        parts.learner.call_hook('before_run')
        if parts.cfg.policy.learn.get('resume_training', False):
            parts.collector.envstep = parts.learner.collector_envstep
        return False

    def top(self) -> None:
        pass

    def after_update(self, metrics: List[Dict[str, Any]]) -> None:
        if self._parts.metrics is not None:
            self._parts.metrics(self._parts.learner, metrics)

    def end(self) -> None:
        self._parts.learner.call_hook('after_run')

    def _evaluate_end(self, learner: Any) -> None:
        with random_state_kept():
            self._parts.evaluator.evaluate_end(
                learner.save_checkpoint, learner.train_iter, self._parts.collector.envstep
            )


class Saver:
    """Writes and reads checkpoints from which a run resumes bit-identically, and stops the run after Ctrl-C or SIGTERM.
    At the end of a run it evaluates the last weights."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._cfg, self._policy = parts, parts.cfg.policy, parts.policy
        self._learner, self._evaluator = parts.learner, parts.evaluator
        self._run = run_folder(parts.cfg.exp_name)
        self._folder = os.path.join(self._run, 'ckpt')
        self._resumes = self._cfg.learn.get('resume_training', False)
        self._asked = self._cfg.learn.learner.hook.get('load_ckpt_before_run', '')
        self._interrupt = Interrupt()
        self._state = RunState(self._run, self._cfg.cuda, parts)
        # at the last top of the loop, from which a run can resume that an error ends before the next
        self._top: Optional[Tuple[Tuple[int, ...], Dict[str, Any]]] = None
        self._saved = 0  # updates at the last periodic checkpoint
        self._pruned = False  # whether a checkpoint has been deleted
        # State of the run after its last update. Checkpoints that are saved later contain it: a run that goes on from
        # them has no evaluation at its former end.
        self._end_state: Optional[Dict[str, Any]] = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context of the run: its folder is locked, signals are caught from ``begin`` on, and before an error ends the
        run, it is saved."""
        locked = lock(self._run) if parallel.rank() == 0 else None
        try:
            yield
        except CheckpointError:
            raise
        except Exception:
            self._save_before_error()
            raise
        finally:
            self._interrupt.release()
            if locked is not None:
                locked.close()

    def begin(self, catches: bool = True) -> bool:
        """Load the checkpoint that the config names, or the newest of the run's folder if it is to resume. Returns
        whether the run had ended there. ``catches``: whether signals are caught from now on, see ``top``."""
        found = self._load()
        self._learner.call_hook('before_run')
        if self._resumes:
            self._parts.collector.envstep = self._learner.collector_envstep
        self._saved = self._learner.train_iter
        if catches:
            self._interrupt.catch()
        ended = self._restore(found) if found is not None and self._resumes else False
        self._policy.observers.begin(self._learner, self._parts.collector)
        return ended

    def top(self) -> None:
        """Save if it is due, and stop after a signal."""
        self._top = self._progress, self._state.state_dict(waits=False)
        number, freq = self._learner.train_iter, self._cfg.learn.learner.hook.get('save_ckpt_after_iter', 0)
        if isinstance(freq, int) and freq > 0 and number // freq > self._saved // freq:
            self._saved = number
            self._check_same()
            self.save()
        name = next(filter(None, parallel.all_gather(self._interrupt.name)), None)
        if name is not None:
            show(f'{name}: saving after update {number}')
            self.end()
            raise SystemExit(128 + signal.Signals[name])  # the exit status that shells use for a signal

    def after_update(self, metrics: List[Dict[str, Any]]) -> None:
        pass

    def end(self) -> None:
        """Save and evaluate the last weights, and let the hooks write what comes of the run."""
        self._save_end()
        if not any(parallel.all_gather(self._interrupt.name)):
            with random_state_kept():
                self._evaluator.evaluate_end(self._save_best, self._learner.train_iter, self._parts.collector.envstep)
        self._interrupt.release()
        self._learner.call_hook('after_run')

    def _load(self) -> Optional[Found]:
        """Load the checkpoint that the config names; if ``resume_training`` is set, the newest of the run's folder.
        Weights are not returned: the model has a copy of them."""
        if not self._asked and not self._resumes:
            return None
        # The first process chooses and reads the checkpoint; the others do not need access to its folder.
        chosen = self._choose() if parallel.rank() == 0 else None
        found = parallel.broadcast_object(chosen and tuple(chosen))
        if found is None:
            self._state.cut_logs({})
            show(
                f'policy.learn.resume_training = True: no checkpoint in {os.path.normpath(self._folder)}. Starting a '
                'new run.'
            )
            return None
        found = Found(*found)
        state, learner = found.state, self._learner
        if self._policy.mesh is not None:
            if ENTRY not in state:
                raise ConfigError(
                    f'policy.shard = {self._cfg.shard!r}: the run of the checkpoint {found.path} did not set '
                    'it, so that it is not divided. Set it to False.'
                )
            buffers = [name for name, _ in self._policy.whole_model.named_buffers()]
            state = read_shards(found.path, state, self._policy.mesh, buffers)
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
        return Found(found.path, dict(run=state.get('run')))

    def _choose(self) -> Optional[Found]:
        asked = self._asked
        if self._resumes and numbered(self._folder) and \
                os.path.realpath(os.path.dirname(asked)) != os.path.realpath(self._folder):
            asked = ''  # a checkpoint of another run, from which this run started
        return newest(self._folder, asked, parts=self._policy.mesh is None)

    def save(self, name: Optional[str] = None) -> None:
        """Write a checkpoint, see ``_write``, and let the observers know."""
        path = self._write(name)
        if path is not None:
            self._policy.observers.saved(path)

    def _write(self, name: Optional[str] = None, run: Optional[Dict[str, Any]] = None) -> Optional[str]:
        """Write a checkpoint from which the run resumes bit-identically; without a name it is a periodic one. ``run``
        is the run's state; None is that of now. With ``policy.shard`` all processes call this together; otherwise it
        has no effect in the others than the first. Returns its path, None where none was written."""
        learner, divided = self._learner, self._cfg.shard
        if learner.rank != 0 and not divided:
            return None
        path = os.path.join(self._folder, name or f'iteration_{learner.train_iter}.pth.tar')
        state = learner.policy.state_dict()
        if divided:
            state = write_shards(path, state)
        if learner.rank != 0:
            return None
        learner.tb_logger.flush()  # so that TensorBoard's files reach the checkpoint whatever happens next
        run = run or self._end_state or self._state.state_dict()
        run = {**run, **self._state.buffer()}
        state.update(last_iter=learner.train_iter, last_step=learner.collector_envstep, run=run)
        save_checkpoint(path, state)
        keep = self._cfg.run.keep_ckpt
        old = prune(self._folder, keep)
        if old and not self._pruned:
            show(f'policy.run.keep_ckpt = {keep}: {os.path.basename(old[0])} was deleted, and others will be')
        self._pruned = self._pruned or bool(old)
        return path

    def _save_end(self) -> None:
        self._check_same()
        try:
            self._end_state = self._end_state or self._state.state_dict()
        except Exception:  # of what samples ahead
            self._write(run=self._state.state_dict(waits=False))
            raise
        self.save()

    @property
    def _progress(self) -> Tuple[int, ...]:
        """Numbers of updates, of steps of the optimizer, and of what was pushed into the replay buffer."""
        return self._learner.train_iter, self._policy.age[1], pushed(self._parts.buffer)

    def _save_before_error(self) -> None:
        """Save the run as it was at the last ``top``, unless weights or the buffer have changed since, nothing has
        been learned, or this checkpoint exists. A model that is divided among processes is not saved, since all would
        have to, nor what has been sampled ahead."""
        number, name = self._learner.train_iter, f'iteration_{self._learner.train_iter}.pth.tar'
        if self._top is None or self._top[0] != self._progress or number == 0 or self._cfg.shard or \
                parallel.rank() > 0 or os.path.exists(os.path.join(self._folder, name)):
            return
        try:
            self._write(name, self._top[1])
        except Exception as error:  # NaN, a full disk, a GPU that has failed: the first error counts
            show(f'the run could not be saved after update {number}: {error}')
        else:
            show(f'saved after update {number}, from where policy.learn.resume_training=True continues')

    def _save_best(self, name: str) -> None:
        """Save the last weights as the best, and keep the former best for a run that goes on from here."""
        path = os.path.join(self._folder, name)
        if os.path.exists(path):
            os.replace(path, f'{path}{BEFORE_END}')
        self.save(name)

    def _check_same(self) -> None:
        model = self._policy.whole_model
        sums = parallel.all_gather([p.detach().double().sum().item() for p in model.parameters()])
        if any(repr(s) != repr(sums[0]) for s in sums):  # NaN equals NaN here
            raise CheckpointError('the weights differ between the processes of this run; no checkpoint was saved')

    def _restore(self, found: Found) -> bool:
        """Restore the run; whether it had ended at this checkpoint."""
        run = found.state.get('run')
        if run is None:
            raise ConfigError(
                f'policy.learn.resume_training = True: {found.path} does not contain the whole state of its run, so '
                'the run cannot resume. To start a new run with its weights, remove resume_training.'
            )
        seed = run.get('seed')
        if seed != self._parts.seed:
            raise ConfigError(
                f'seed = {self._parts.seed}: the run of {found.path} has seed {seed}, and resumes only with that seed '
                f'(ding -s {seed}).'
            )
        own = self._state.state_dict(waits=False)
        del own['random']  # whose types depend on what was drawn last
        with taking(f'the checkpoint {found.path}'):
            check_content(run, own, f'the checkpoint {found.path}')
            self._state.load_state_dict(run)
            sizes = run['logs']
        finished = self._parts.limits.reached(self._learner.train_iter, self._learner.collector_envstep)
        own = os.path.realpath(os.path.dirname(found.path)) == os.path.realpath(self._folder)
        last = parallel.broadcast_object(self._end_evaluation() if own else None) if finished else None
        if last is not None:
            self._evaluator.last = tuple(last)
            self._end_state = run
        elif own:
            self._state.return_to(self._learner.train_iter, sizes)
        return finished or self._evaluator.reached

    def _end_evaluation(self) -> Optional[Tuple[float, int]]:
        """Return and update of the evaluation at the end of this run, if the run has ended at this checkpoint."""
        records = read_json_lines(os.path.join(self._run, 'log', 'evaluator', 'evaluations.jsonl'))
        if not records or not os.path.exists(os.path.join(self._run, RESULT)):
            return None
        value, update = records[-1].get('eval_episode_return'), records[-1].get('train_iter')
        return (value, update) if value is not None and update == self._learner.train_iter else None
