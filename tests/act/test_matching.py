"""Every kind of spaces in whole runs."""
import pytest
from ding.entry import serial_pipeline_onpolicy

from tests.act.matching import MODELS, STEPS, config
from tests.runs import evaluations

pytestmark = pytest.mark.envtest
UPDATES = 60


def best(kind, seed, updates):
    """The best mean return of an evaluation."""
    serial_pipeline_onpolicy(config(kind, seed), seed=seed, max_train_iter=updates)
    return max(record['eval_episode_return'] for record in evaluations(f'matching_{kind}_{seed}'))


@pytest.mark.parametrize('kind', MODELS)
def test_two_updates(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert 0 <= best(kind, 0, 2) <= STEPS


@pytest.mark.algotest
@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('kind', MODELS)
def test_learned(kind, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert best(kind, seed, UPDATES) >= 0.9 * STEPS
