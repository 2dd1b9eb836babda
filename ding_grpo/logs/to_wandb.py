import os
from typing import Any, Dict, Set

from ding_common import Rule

from .logger import LOGGER_REGISTRY, RunLogger, run_id


@LOGGER_REGISTRY.register('wandb')
class WandbLogger(RunLogger):
    """Weights & Biases. Its steps must not decrease, so that positions on the axes are values of their own."""
    package = 'wandb'
    options = dict(
        # (str) 'offline', or 'online', which needs an account. ``wandb sync`` sends an offline run later.
        mode='offline',
        # (str) Project of the run.
        project='ding-grpo',
    )
    rules = dict(mode=Rule.one_of('offline', 'online'))

    def begin(self, folder: str, config: Dict) -> str:
        if self.cfg['mode'] == 'offline':
            os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
        import wandb  # takes a second, and few runs need it
        self._known: Set[str] = set()
        self._run: Any = wandb.init(
            **self.cfg,
            name=os.path.basename(folder),
            id=run_id(os.path.join(folder, 'wandb')),
            resume='allow' if self.cfg['mode'] == 'online' else None,
            dir=folder,
            config=config,
            settings=wandb.Settings(silent=True, console='off', disable_git=True, save_code=False),
        )
        return f"{self.cfg['mode']}, {os.path.relpath(os.path.dirname(self._run.dir))}"

    def scalars(self, values: Dict[str, float], axis: str, at: int) -> None:
        for tag in values.keys() - self._known:
            self._run.define_metric(tag, step_metric=axis)
            self._known.add(tag)
        self._run.log({**values, axis: at})

    def end(self) -> None:
        self._run.finish()
