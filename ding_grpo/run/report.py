"""Learner hooks that report a run: progress and metrics during it, models and curves at its end."""
import logging
import os
import sys
import time
from functools import partial
from numbers import Real
from typing import Any, Dict, List, Optional, Tuple

import click
from ding.worker import LearnerHook, register_learner_hook
from easydict import EasyDict

from ding_common import CheckpointError, Rule, append_json, check_config
from ding_grpo.data.capability import group_policy
from ding_grpo.logs.curve import draw_curves
from ding_grpo.logs.hook import CallHook
from ding_grpo.logs.logger import LOGGER_REGISTRY
from ding_grpo.logs.mirror import MirrorHook
from ding_grpo.logs.scalars import add_scalars
from ding_grpo.logs.screen import keep_off_screen, log_file, run_folder, show, show_progress

from .checkpoint import read_checkpoint, whole_folder
from .parts import UNLIMITED, Limits, Parts

SILENCE = 10.  # seconds after which an update prints its line, whatever its number


class ReportHook(LearnerHook):
    """
    The only hook that a config names. Before the run it registers the other hooks. Runs of DI-engine's own policies
    have it too: they keep DI-engine's output on the screen, and get the same files. Keys of ``ext_args``:

    - ``progress_freq``: Number of updates between two progress lines when the output is not a terminal. After ten
      seconds without a line, the next update prints one in any case.
    - ``export``: Whether to write the models as Hugging Face folders at the end.
    - ``wandb``, ``mlflow``, ``trackio``, or another name in ``LOGGER_REGISTRY``: Copies what is written to TensorBoard.
      A dict of the logger's options; None makes no copy.
    """

    default = dict(progress_freq=10, export=True)
    rules = dict(progress_freq=Rule.integer(1))
    parts: Optional[Parts] = None  # of the run, if this package has built it

    def __init__(self, *args, ext_args: Dict = EasyDict(), **kwargs) -> None:
        super().__init__(*args, **kwargs)
        where = 'policy.learn.learner.hook.report.ext_args'
        check_config(ext_args, {**self.default, **dict.fromkeys(LOGGER_REGISTRY)}, self.rules, where)
        self._args = {**self.default, **ext_args}
        loggers = {name: cfg for name, cfg in ext_args.items() if name in LOGGER_REGISTRY and cfg is not None}
        self._mirror = MirrorHook('mirror', 130, position='after_run', cfg=loggers, where=where) if loggers else None

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        parts, policy = self.parts, group_policy(engine.policy)
        if policy is not None:
            for logger in (engine.logger, logging.getLogger('buffer_logger')):  # DI-engine's names
                keep_off_screen(logger)
            for hook in policy.observers.hooks():  # in every process
                engine.register_hook(hook)
        if engine.rank != 0:
            return
        if policy is not None:
            show(f'{engine.exp_name}: learning; Ctrl-C saves and stops')
            show(_sizes(parts))
            freq = self._args['progress_freq']
            parts.metrics = MetricsHook('metrics', 10, position='after_iter', freq=freq, limits=parts.limits)
            engine.register_hook(parts.metrics)
        elif parts is not None:
            parts.metrics = UpdateLog()
        if self._args['export'] and parts is not None:
            export_run = partial(export, parts=parts)
            engine.register_hook(CallHook('export', 100, position='after_run', function=export_run))
        engine.register_hook(CallHook('curve', 110, position='after_run', function=draw_curve))
        if self._mirror is not None:
            self._mirror.begin(engine)
            engine.register_hook(self._mirror)


def _sizes(parts: Parts) -> str:
    cfg = parts.cfg.policy
    groups, rows = cfg.collect.groups, cfg.group_size + cfg.collect.extra_rows
    per = 'an update' if parts.buffer is None else 'a collect'
    steps = cfg.learn.batch_steps
    batches = f'{cfg.learn.batch_groups} groups' if steps is None else f'{steps} steps'
    return f'{groups} groups x {rows} = {groups * rows:,} episodes {per}, batches of {batches}'


# Tags that DI-engine's PPO has in TensorBoard for the same numbers, so that both are in one chart.
OF_PPO = dict(entropy='entropy_loss_avg')


class MetricsHook(LearnerHook):
    """Writes the exact value of every metric of every update to TensorBoard and ``log/learner/metrics.jsonl``, and
    prints the progress line. The tag in TensorBoard is ``learner_iter/NAME``; DI-engine's own ``learner_iter/NAME_avg``
    is a mean over ten updates."""

    def __init__(self, *args, freq: int, limits: Limits = Limits(), **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._freq = freq
        self._limits = {name: limit for name, limit in limits._asdict().items() if limit < UNLIMITED}
        self._first: Optional[Tuple[float, Dict[str, int]]] = None  # seconds and counts at the first update
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._printed = float('-inf')

    def state_dict(self) -> Dict[str, float]:
        return dict(seconds=time.monotonic() - self._start)

    def load_state_dict(self, state: Dict[str, float]) -> None:
        self._start = time.monotonic() - state['seconds']

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        update = engine.last_iter.val
        metrics = {name: value for name, value in engine.log_buffer['scalar'].items() if name != 'train_time'}
        for axis, step in (('iter', update), ('step', engine.collector_envstep)):
            named = {**metrics, **{tag: metrics[name] for name, tag in OF_PPO.items() if name in metrics}}
            tagged = {f'{engine.instance_name}_{axis}/{name}': value for name, value in named.items()}
            add_scalars(engine.tb_logger, tagged, step)
        seconds = time.monotonic() - self._start
        record = dict(train_iter=update, envstep=engine.collector_envstep, seconds=seconds, **metrics)
        append_json(log_file(engine, 'metrics.jsonl'), record)
        done = update + 1  # with the one that has just been made
        fields = self._place(done, engine.collector_envstep, seconds) + self._bar(done) + self._results(metrics)
        if self._terminal:
            show_progress(fields)
        elif done % self._freq == 0 or time.monotonic() - self._printed >= SILENCE:
            self._printed = time.monotonic()
            click.echo('  '.join(fields))

    def _place(self, done: int, envstep: int, seconds: float) -> List[str]:
        """Updates so far, time, and time left if the run has a limit, by the speed since the first update here."""
        most = self._limits.get('updates')
        fields = [f'update {done}' if most is None else f'update {done} of {most:.0f}', _clock(seconds)]
        counts = dict(updates=done, steps=envstep)
        if self._first is None:
            self._first = seconds, counts
        began, first = self._first
        left = [
            (seconds - began) * max(limit - counts[name], 0) / (counts[name] - first[name])
            for name, limit in self._limits.items() if counts[name] > first[name]
        ]
        return fields + [f'{_clock(min(left))} left'] if left else fields

    def _bar(self, done: int) -> List[str]:
        """A progress bar on a terminal, if the number of updates is known."""
        if not self._terminal or 'updates' not in self._limits:
            return []
        full = min(int(10 * done / self._limits['updates']), 10)
        return [f"[{'#' * full}{'-' * (10 - full)}]"]

    @staticmethod
    def _results(metrics: Dict[str, float]) -> List[str]:
        """What was sampled and learned, without metrics that have no value."""
        told = [f"reward {metrics['reward_mean']:.2f}" if 'reward_mean' in metrics else 'nothing could be scored']
        told += [
            f"{name[len('reward_'):-len('_mean')]} {value:.2f}" for name, value in metrics.items()
            if name.startswith('reward_') and name.endswith('_mean') and name != 'reward_mean'
        ]
        told += [f'length {value:.1f}' for name, value in metrics.items() if name.endswith('_length_mean')]
        for name, word, digits in (('entropy', 'entropy', 2), ('kl', 'kl', 4), ('clipfrac', 'clipped', 2)):
            if name in metrics:
                told.append(f'{word} {metrics[name]:.{digits}f}')
        total = sum(value for name, value in metrics.items() if name.startswith('seconds_'))
        if 'completion_length_mean' in metrics and metrics.get('seconds_scoring', 0) > 0.1 * total:
            told.append(f"scoring {metrics['seconds_scoring']:.2f} s")
        rate = next(name for name in metrics if name.endswith('_per_second'))
        told.append(f"{metrics[rate]:.0f} {rate[:-len('_per_second')]}/s")
        return told


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f'{minutes:02d}:{rest:02d}' if minutes < 60 else f'{minutes // 60}:{minutes % 60:02d}:{rest:02d}'


class UpdateLog:
    """Writes the metrics of every update of one of DI-engine's own policies to ``log/learner/metrics.jsonl``: the
    policy's monitored variables, each as the mean over the update's mini-batches, or as their maximum if the name ends
    in ``_max``."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, engine: 'BaseLearner', found: List[Dict[str, Any]]) -> None:  # noqa
        record = dict(
            train_iter=engine.last_iter.val - len(found),  # DI-engine counts mini-batches
            envstep=engine.collector_envstep,
            seconds=time.monotonic() - self._start,
        )
        for name in engine.policy.monitor_vars():
            values = [float(metrics[name]) for metrics in found if isinstance(metrics.get(name), Real)]
            if values:
                record[name] = max(values) if name.endswith('_max') else sum(values) / len(values)
        append_json(log_file(engine, 'metrics.jsonl'), record)


def export(engine: 'BaseLearner', parts: Parts) -> None:  # noqa
    """Write the last and the best model, as folders for ``AutoModelForCausalLM.from_pretrained``."""
    spec = parts.evaluator.token_spec
    if engine.rank != 0 or spec is None:
        return
    model = getattr(group_policy(engine.policy), 'whole_model', None) or engine.policy.get_attribute('model')
    if not hasattr(model, 'save_pretrained'):  # checkpoints contain DI-engine's own models in full
        return
    run = run_folder(engine.exp_name)
    folder = os.path.join(run, 'model')
    shared = dict(tokenizer=spec.tokenizer, max_new_tokens=spec.max_new_tokens, eos_token_ids=spec.eos_token_ids)
    with whole_folder(os.path.join(folder, 'last')) as path:
        model.save_pretrained(path, **shared)
    best = os.path.join(run, 'ckpt', 'ckpt_best.pth.tar')
    if os.path.exists(best):
        try:
            weights = read_checkpoint(best, mapped=True)['model']
        except CheckpointError as error:  # not an error of the run, which has ended normally
            show(f'{error.message}; model/best is not written')
        else:
            with whole_folder(os.path.join(folder, 'best')) as path:
                model.save_pretrained(path, state_dict=weights, **shared)
    show(f'models: {os.path.normpath(folder)}')


def draw_curve(engine: 'BaseLearner') -> None:  # noqa
    run = run_folder(engine.exp_name)
    path = os.path.join(run, 'curve.png')
    draw_curves({engine.exp_name: run}, path)
    show(f'learning curve: {os.path.normpath(path)}')


register_learner_hook('grpo_report', ReportHook)
