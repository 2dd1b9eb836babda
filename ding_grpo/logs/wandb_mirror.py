"""Weights & Biases: a copy of what a run writes to TensorBoard, under the same names."""
import os
import uuid
from typing import Any, Dict, Optional

from ding.worker import LearnerHook

from ding_common import ConfigError, Rule, check_config, describe, require_dict
from ding_common.config.total_config import as_literals

from .screen import run_folder, show

WHERE = 'policy.learn.learner.hook.report.ext_args.wandb'
OPTIONS = dict(
    # (str) 'offline', or 'online', which needs an account. ``wandb sync`` sends an offline run later.
    mode='offline',
    # (str) Project of the run.
    project='ding-grpo',
)
RULES = dict(mode=Rule.one_of('offline', 'online'))
AXES = dict(iter='update', step='envstep')  # of tags WORKER_AXIS/NAME


class WandbHook(LearnerHook):
    """Begins a run of ``wandb`` in the folder of the run, and ends it after the last update. A resumed run continues
    its run of ``wandb``. The axes are ``update`` and ``envstep``."""

    def __init__(self, *args, cfg: Dict, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        require_dict(cfg, WHERE)
        check_config(cfg, OPTIONS, RULES, WHERE)
        self._cfg = {**OPTIONS, **cfg}
        self._run: Any = None

    def begin(self, engine: 'BaseLearner') -> None:  # noqa
        """Begin, and copy from now on. Raises ``ConfigError`` if that fails, for example online without an account."""
        import wandb  # takes a second, and few runs need it
        folder = os.path.abspath(run_folder(engine.exp_name))
        settings = wandb.Settings(silent=True, console='off', disable_git=True, save_code=False)
        try:
            self._run = wandb.init(
                project=self._cfg['project'],
                name=os.path.basename(folder),
                id=_identity(folder),
                resume='allow' if self._cfg['mode'] == 'online' else None,
                dir=folder,
                mode=self._cfg['mode'],
                config=as_literals(engine.policy.get_attribute('cfg')),
                settings=settings,
            )
        except Exception as error:  # wandb raises its own errors and those of its process
            mode = self._cfg['mode']
            raise ConfigError(f'{WHERE}.mode = {mode!r}: wandb cannot begin ({describe(error)})') from error
        show(f"wandb, {self._cfg['mode']}: {os.path.relpath(os.path.dirname(self._run.dir))}")
        self.copy(engine.tb_logger)

    def copy(self, tb_logger: 'SummaryWriter') -> None:  # noqa
        """Copy all scalars that are written from now on. A further writer is found by the attribute ``mirror``."""
        tb_logger.mirror, writer = self, tb_logger.file_writer
        write, known = writer.add_summary, set()

        def add_summary(summary: Any, global_step: Optional[int] = None, walltime: Optional[float] = None) -> None:
            write(summary, global_step, walltime)
            scalars = {v.tag: v.simple_value for v in summary.value if v.HasField('simple_value')}
            for tag in scalars.keys() - known:
                self._run.define_metric(tag, step_metric=_axis(tag))
                known.add(tag)
            for axis in {_axis(tag) for tag in scalars}:
                of_axis = {tag: value for tag, value in scalars.items() if _axis(tag) == axis}
                self._run.log({**of_axis, axis: global_step})

        writer.add_summary = add_summary

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        self._run.finish()


def _axis(tag: str) -> str:
    return AXES.get(tag.split('/')[0].rsplit('_', 1)[-1], 'update')


def _identity(folder: str) -> str:
    path = os.path.join(folder, 'wandb', 'id.txt')
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(uuid.uuid4().hex[:8])
    with open(path, encoding='utf-8') as f:
        return f.read()
