import os
from contextlib import redirect_stdout
from io import StringIO
from typing import Dict

from .logger import LOGGER_REGISTRY, RunLogger, run_id


@LOGGER_REGISTRY.register('trackio')
class TrackioLogger(RunLogger):
    """Trackio, which writes to a folder of its own: ``TRACKIO_DIR``, or one in the cache of Hugging Face."""
    package = 'trackio'

    def begin(self, folder: str, config: Dict) -> str:
        import trackio
        self._trackio, name = trackio, f"{os.path.basename(folder)}-{run_id(os.path.join(folder, 'trackio'))}"
        with redirect_stdout(StringIO()):
            trackio.init(**self.cfg, name=name, config=config, resume='allow', auto_log_gpu=False, auto_log_cpu=False)
        return f"trackio show --project {self.cfg['project']}"

    def scalars(self, values: Dict[str, float], axis: str, at: int) -> None:
        self._trackio.log(values, step=at)

    def end(self) -> None:
        with redirect_stdout(StringIO()):
            self._trackio.finish()
