"""Every kind of spaces is learned; ``envs/test_rows.py`` has short runs of all of them."""
import pytest
from ding.entry import serial_pipeline_onpolicy

from tests.act.matching import MODELS, STEPS, config
from tests.runs import evaluations


@pytest.mark.algotest
@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('kind', MODELS)
def test_learned(kind, seed, own_folder):
    serial_pipeline_onpolicy(config(kind, seed), seed=seed, max_train_iter=60)
    assert max(record['eval_episode_return'] for record in evaluations(f'matching_{kind}_{seed}')) >= 0.9 * STEPS
