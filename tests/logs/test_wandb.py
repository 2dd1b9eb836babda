import glob
import json

import pytest
from easydict import EasyDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

from ding_common import ConfigError
from ding_grpo.logs.wandb_mirror import AXES
from ding_grpo.run.report import ReportHook
from tests.runs import train


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
            axis = next((axis for axis in AXES.values() if axis in values), None)
            found += [(tag, axis, values[axis], values[tag]) for tag in values if '/' in tag]
    return found, ids


@pytest.mark.envtest
def test_has_what_tensorboard_has(think_answer, monkeypatch):
    monkeypatch.setenv('WANDB_SILENT', 'true')
    copied = dict(hook=dict(report=dict(ext_args=dict(wandb=dict(project='p'), export=False))))
    train(think_answer, 2, learner=copied)
    found, ids = recorded('run')
    events = EventAccumulator('run/log/serial', size_guidance=dict(scalars=0)).Reload()
    expected = [(tag, e.step, e.value) for tag in events.Tags()['scalars'] for e in events.Scalars(tag)]
    assert sorted((tag, step, value) for tag, _, step, value in found) == sorted(expected) and len(expected) > 100
    axes = {tag.split('/')[0]: axis for tag, axis, _, _ in found}
    assert axes['learner_iter'] == 'update' and axes['learner_step'] == 'envstep' and len(ids) == 1
    train(think_answer, 3, resume_training=True)
    assert recorded('run')[1] == ids  # the same run goes on


@pytest.mark.unittest
@pytest.mark.parametrize(
    'wandb, message', [
        (True, 'wandb = True: must be a dict'),
        (dict(mode='on'), "wandb.mode = 'on': must be one of 'offline', 'online'"),
        (dict(projekt='p'), "wandb.projekt = 'p': unknown key; did you mean 'project'"),
    ]
)
def test_wrong_keys_are_refused_before_the_run(wandb, message):
    with pytest.raises(ConfigError, match=message):
        ReportHook('report', 90, position='before_run', ext_args=EasyDict(wandb=wandb))
