"""Loggers besides TensorBoard."""
import glob
import json
import math
import os
from importlib.util import find_spec

import pytest
from easydict import EasyDict

from ding_common import ConfigError
from ding_grpo.logs.logger import LOGGER_REGISTRY, RunLogger
from ding_grpo.run.report import ReportHook
from tests.runs import tensorboard, train


def recorded_mlflow(folder):
    from mlflow import MlflowClient
    client = MlflowClient(f'sqlite:///{folder}/mlflow/mlflow.db')
    run, = client.search_runs([client.get_experiment_by_name('p').experiment_id])
    assert run.info.run_name == 'run' and run.info.status == 'FINISHED'
    found = [m for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)]
    return [(m.key, m.step, m.value) for m in found]


def recorded_trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage
    name, = SQLiteStorage.get_runs('p')
    rows = SQLiteStorage.get_logs('p', name)
    return [(tag, row['step'], value) for row in rows for tag, value in row.items() if tag not in ('step', 'timestamp')]


def recorded_wandb(folder):
    """Of the offline run. Its axes are values of their own."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
    found = []
    for path in glob.glob(f'{folder}/wandb/offline-run-*/*.wandb'):
        store = DataStore()
        store.open_for_scan(path)
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = record.history.item
            values = {item.key or '/'.join(item.nested_key): json.loads(item.value_json) for item in items}
            axis, tags = 'update' if 'update' in values else 'envstep', [tag for tag in values if '/' in tag]
            assert {tag.split('/')[0].endswith('_step') for tag in tags} <= {axis == 'envstep'}
            found += [(tag, values[axis], values[tag]) for tag in tags]
    return found


RECORDED = dict(mlflow=recorded_mlflow, trackio=recorded_trackio, wandb=recorded_wandb)


def with_loggers(**loggers):
    return dict(hook=dict(report=dict(ext_args=dict(loggers, export=False))))


@LOGGER_REGISTRY.register('memory')
class Memory(RunLogger):
    options = dict(level=1)
    calls = []

    def begin(self, folder, config):
        self.calls.append(('begin', os.path.relpath(folder), 6 / self.cfg['level'], config['group_size']))
        return 'in memory'

    def scalars(self, values, axis, at):
        self.calls.extend((tag, axis, at, value) for tag, value in values.items())

    def end(self):
        self.calls.append(('end', ))


@pytest.mark.envtest
def test_each_receives_all_scalars_of_tensorboard_between_begin_and_end(think_answer, monkeypatch, capfd):
    monkeypatch.setenv('TRACKIO_DIR', os.path.abspath('trackio'))  # which trackio reads when it is imported
    monkeypatch.setenv('WANDB_SILENT', 'true')
    installed = [name for name in RECORDED if find_spec(name)]
    packages = {name: dict(project='p') for name in installed}
    train(think_answer, 2, learner=with_loggers(memory=dict(level=3), **packages))
    expected = tensorboard()
    (*begun, size), *scalars, last = Memory.calls
    assert begun == ['begin', 'run', 2] and size == think_answer[0].policy.group_size and last == ('end', )
    assert sorted((tag, at, value) for tag, _, at, value in scalars) == expected and len(scalars) > 100
    axes = {(tag.split('/')[0], axis) for tag, axis, _, _ in scalars}
    assert {('learner_iter', 'update'), ('learner_step', 'envstep')} <= axes and len(axes) == 6
    assert 'memory: in memory\n' in capfd.readouterr().out
    for name in installed:
        assert sorted(RECORDED[name](os.path.abspath('run'))) == expected
        goes_on(name)


def goes_on(name):
    """A package's logger, in the run that it began before, gets what is not finite and many values."""
    logger = LOGGER_REGISTRY.get(name)(dict(LOGGER_REGISTRY.get(name).options, project='p'))
    logger.begin(os.path.abspath('run'), {})
    logger.scalars({'kind/a+b': 0.5, 'c': math.nan, 'd': math.inf}, 'update', 9)
    logger.scalars({f'many{i}': 0. for i in range(1001)}, 'update', 10)  # more than MLflow takes at once
    logger.end()
    if name == 'wandb':  # writes its files later
        runs = glob.glob('run/wandb/offline-run-*')
        assert len(runs) == 2 and len({path.rpartition('-')[2] for path in runs}) == 1
        return
    added = RECORDED[name](os.path.abspath('run'))
    assert sum(step == 10 for _, step, _ in added) == 1001
    added = [tag for tag, step, _ in added if step == 9]
    assert sorted(added) == ['c', 'd', 'kind/a+b' if name == 'trackio' else 'kind/a_b']


@LOGGER_REGISTRY.register('broken')
class Broken(Memory):
    package = 'not_there'


@pytest.mark.parametrize(
    'given, message', [
        (dict(wandb=True), 'ext_args.wandb = True: must be a dict'),
        (dict(wandb=dict(mode='on')), "wandb.mode = 'on': must be one of 'offline', 'online'"),
        (dict(wandb=dict(projekt='p')), "wandb.projekt = 'p': unknown key; did you mean 'project'"),
        (dict(mlflow=dict(uri=1)), 'ext_args.mlflow.uri = 1: must be of type str'),
        (dict(mlfow=dict()), "ext_args.mlfow = {}: unknown key; did you mean 'mlflow'"),
        (dict(broken=dict()), 'broken: the package not_there is not installed. Run: pip install not_there$'),
    ]
)
def test_wrong_keys_are_refused_before_the_run(given, message):
    with pytest.raises(ConfigError, match=message):
        ReportHook('report', 90, position='before_run', ext_args=EasyDict(given))


@pytest.mark.envtest
def test_logger_that_cannot_begin_ends_the_run_in_one_line(think_answer):
    with pytest.raises(ConfigError, match=r"memory = {'level': 0}: cannot begin \(ZeroDivisionError: "):
        train(think_answer, 2, learner=with_loggers(memory=dict(level=0)))
