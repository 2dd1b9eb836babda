"""Whole runs with reward models."""
import re
import time

import pytest

from dizoo_llm.models import reward_model
from tests.dizoo_llm.models.test_reward_model import save_model
from tests.pipelines.test_score_batch import finished
from tests.runs import distance
from tests.same import same

pytestmark = pytest.mark.envtest


def test_in_one_process_and_in_many_by_one_model(think_answer, tmp_path, monkeypatch):
    folder, _ = save_model(tmp_path / 'model', hidden_size=32)
    loads, load = [], reward_model.load_reward_model
    monkeypatch.setattr(reward_model, 'load_reward_model', lambda *args: loads.append(1) or load(*args))
    model = dict(pretrained=folder, weight=2.0)
    runs = [finished(name, manager=name, updates=2, reward_models=[model]) for name in ('base', 'subprocess')]
    same(*runs)
    assert len(loads) == 1  # for collectors, evaluators and all environments
    weights, evaluations, metrics = runs[0]
    assert all('reward_reward_model_mean' in line for line in metrics) and 'reward_model' in evaluations[0]
    assert distance(weights, finished('without', updates=2)[0]) > 0


def test_the_update_shows_its_seconds(think_answer, tmp_path, monkeypatch, capsys):
    folder, _ = save_model(tmp_path / 'model')
    read = reward_model.read_rows
    monkeypatch.setattr(reward_model, 'read_rows', lambda *args: time.sleep(0.2) or read(*args))
    finished('slow', updates=1, reward_models=[dict(pretrained=folder)])
    line, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('update 1 ')]
    assert float(re.search(r'  scoring (\S+) s', line)[1]) >= 0.2
