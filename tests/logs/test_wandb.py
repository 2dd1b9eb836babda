import glob
import json

import pytest
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

from tests.runs import tensorboard, train


def recorded(folder):
    """All (tag, axis, step, value) of the offline runs in a folder, and their ids."""
    found, ids = [], set()
    for path in glob.glob(f'{folder}/wandb/offline-run-*/*.wandb'):
        store = DataStore()
        store.open_for_scan(path)
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.run.run_id:
                ids.add(record.run.run_id)
            values = {
                item.key or '/'.join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            axis = next((axis for axis in ('update', 'envstep') if axis in values), None)
            found += [(tag, axis, values[axis], values[tag]) for tag in values if '/' in tag]
    return found, ids


@pytest.mark.envtest
def test_has_what_tensorboard_has(think_answer, monkeypatch):
    monkeypatch.setenv('WANDB_SILENT', 'true')
    copied = dict(hook=dict(report=dict(ext_args=dict(wandb=dict(project='p'), export=False))))
    train(think_answer, 2, learner=copied)
    found, ids = recorded('run')
    expected = tensorboard()
    assert sorted((tag, step, value) for tag, _, step, value in found) == expected and len(expected) > 100
    axes = {tag.split('/')[0]: axis for tag, axis, _, _ in found}
    assert axes['learner_iter'] == 'update' and axes['learner_step'] == 'envstep' and len(ids) == 1
    train(think_answer, 3, resume_training=True)
    assert recorded('run')[1] == ids  # the same run goes on
