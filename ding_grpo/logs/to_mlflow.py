import os
import re
import time
from collections import deque
from typing import Any, Deque, Dict

from .logger import LOGGER_REGISTRY, RunLogger, run_id

# The last one: its thread writes the values of two seconds at once. Else each needs a transaction of about 5 ms.
VARIABLES = ('DISABLE_TELEMETRY', 'true'), ('LOGGING_LEVEL', 'WARNING'), ('ASYNC_LOGGING_BUFFERING_SECONDS', '2')


@LOGGER_REGISTRY.register('mlflow')
class MlflowLogger(RunLogger):
    """MLflow, in a database in the folder of the run, or at ``uri``, the address of a server or of a database."""
    package = 'mlflow'
    options = dict(project='ding-grpo', uri='')

    def begin(self, folder: str, config: Dict) -> str:
        for name, value in VARIABLES:
            os.environ.setdefault(f'MLFLOW_{name}', value)
        import mlflow  # takes seconds
        own, project, self._mlflow = os.path.join(folder, 'mlflow'), self.cfg['project'], mlflow
        uri, artifacts = (self.cfg['uri'], None) if self.cfg['uri'] else (f'sqlite:///{own}/mlflow.db', own)
        os.makedirs(own, exist_ok=True)
        client = self._client = mlflow.MlflowClient(uri)
        found = client.get_experiment_by_name(project)
        number = found.experiment_id if found else client.create_experiment(project, artifacts)
        self._run = run_id(own, lambda: client.create_run(number, run_name=os.path.basename(folder)).info.run_id)
        client.log_dict(self._run, config, 'config.json')
        self._sent: Deque[Any] = deque(maxlen=1000)  # of these, some may not be written yet
        return f'mlflow ui --backend-store-uri {uri}'

    def scalars(self, values: Dict[str, float], axis: str, at: int) -> None:
        named = {re.sub(r'[^/\w.\- :]', '_', tag): value for tag, value in values.items()}
        metrics = [self._mlflow.entities.Metric(*item, int(1000 * time.time()), at) for item in named.items()]
        self._sent.append(self._client.log_batch(self._run, metrics, synchronous=False))

    def end(self) -> None:
        for operation in self._sent:
            operation.wait()
        self._client.set_terminated(self._run)
