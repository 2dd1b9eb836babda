import atexit
import os
import re
import time
from typing import Any, Dict, List

from .logger import LOGGER_REGISTRY, RunLogger, run_id

SECONDS = 5.  # between transactions; one takes 5 to 20 ms of processor time
MOST = 1000  # values of a transaction, MLflow's limit


@LOGGER_REGISTRY.register('mlflow')
class MlflowLogger(RunLogger):
    """MLflow, in a database in the folder of the run, or at ``uri``, the address of a server or of a database."""
    package = 'mlflow'
    options = dict(project='ding-grpo', uri='')

    def begin(self, folder: str, config: Dict) -> str:
        os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
        os.environ.setdefault('MLFLOW_LOGGING_LEVEL', 'WARNING')
        import mlflow  # takes seconds
        own, project, self._mlflow = os.path.join(folder, 'mlflow'), self.cfg['project'], mlflow
        uri, artifacts = (self.cfg['uri'], None) if self.cfg['uri'] else (f'sqlite:///{own}/mlflow.db', own)
        os.makedirs(own, exist_ok=True)
        client = self._client = mlflow.MlflowClient(uri)
        found = client.get_experiment_by_name(project)
        number = found.experiment_id if found else client.create_experiment(project, artifacts)
        self._run = run_id(own, lambda: client.create_run(number, run_name=os.path.basename(folder)).info.run_id)
        client.log_dict(self._run, config, 'config.json')
        self._waiting: List[Any] = []
        self._sent = time.time()
        atexit.register(self._send)  # after an error
        return f'mlflow ui --backend-store-uri {uri}'

    def scalars(self, values: Dict[str, float], axis: str, at: int) -> None:
        now, make = time.time(), self._mlflow.entities.Metric
        for tag, value in values.items():
            self._waiting.append(make(re.sub(r'[^/\w.\- :]', '_', tag), value, int(1000 * now), at))
        if now > self._sent + SECONDS:
            self._send()

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, self._waiting[:MOST])
            del self._waiting[:MOST]
        self._sent = time.time()

    def end(self) -> None:
        self._send()
        self._client.set_terminated(self._run)
