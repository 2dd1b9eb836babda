"""The hook that copies the scalars of TensorBoard to other loggers."""
import os
from importlib.util import find_spec
from typing import Any, Dict, Optional

from ding.worker import LearnerHook

from ding_common import ConfigError, check_config, config_errors, require_dict
from ding_common.config.total_config import as_literals

from . import to_mlflow, to_trackio, to_wandb  # noqa: F401  registers them
from .logger import LOGGER_REGISTRY, RunLogger
from .screen import run_folder, show


class MirrorHook(LearnerHook):
    """Begins loggers, whose options ``cfg`` contains by their names, and ends them after the last update. wandb's
    ``sync_tensorboard`` is not used: it has one axis, ``global_step``, for both, and 0.19 writes each value twice."""

    def __init__(self, *args, cfg: Dict[str, Dict], where: str, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._loggers = {f'{where}.{name}': _make(f'{where}.{name}', name, options) for name, options in cfg.items()}

    def begin(self, engine: 'BaseLearner') -> None:  # noqa
        """Begin, and copy from now on. Raises ``ConfigError`` if that fails, for example online without an account."""
        folder, config = os.path.abspath(run_folder(engine.exp_name)), as_literals(engine.policy.get_attribute('cfg'))
        for where, logger in self._loggers.items():
            with config_errors(f'{where} = {logger.cfg}: cannot begin'):
                show(f"{where.rpartition('.')[2]}: {logger.begin(folder, config)}")
        self.copy(engine.tb_logger)

    def copy(self, tb_logger: 'SummaryWriter') -> None:  # noqa
        """Copy all scalars that are written from now on. A further writer is found by the attribute ``mirror``."""
        tb_logger.mirror, writer = self, tb_logger.file_writer
        write = writer.add_summary

        def add_summary(summary: Any, global_step: Optional[int] = None, walltime: Optional[float] = None) -> None:
            write(summary, global_step, walltime)
            scalars: Dict[str, Dict[str, float]] = {}
            for item in summary.value:  # of tags WORKER_iter/NAME and WORKER_step/NAME
                if item.HasField('simple_value'):
                    axis = 'envstep' if item.tag.split('/')[0].endswith('_step') else 'update'
                    scalars.setdefault(axis, {})[item.tag] = item.simple_value
            for axis, values in scalars.items():
                for logger in self._loggers.values():
                    logger.scalars(values, axis, global_step)

        writer.add_summary = add_summary

    def __call__(self, engine: 'BaseLearner') -> None:  # noqa
        for logger in self._loggers.values():
            logger.end()


def _make(where: str, name: str, cfg: Dict) -> RunLogger:
    kind = LOGGER_REGISTRY.get(name)
    require_dict(cfg, where)
    check_config(cfg, kind.options, kind.rules, where)
    if kind.package is not None and find_spec(kind.package) is None:
        raise ConfigError(f'{where}: the package {kind.package} is not installed. Run: pip install {kind.package}')
    return kind({**kind.options, **cfg})
