"""Whole runs with reward models."""
import re
import time

import pytest
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel

from tests.dizoo_llm.models.test_reward_model import save_model
from tests.pipelines.test_score_batch import finished
from tests.runs import distance
from tests.same import same

pytestmark = pytest.mark.envtest


def each_use(function):
    """A context in which ``function`` gets a reward model of this process each time that it reads rows."""

    def used(module, args):
        if isinstance(module, PreTrainedModel) and hasattr(module, 'score'):
            function(module)

    return register_module_forward_pre_hook(used)


def test_in_one_process_and_in_many_by_one_model(think_answer, tmp_path):
    folder, _ = save_model(tmp_path / 'model', hidden_size=32)
    model, used = dict(pretrained=folder, weight=2.0), []
    with each_use(used.append):
        runs = [finished(name, manager=name, updates=2, reward_models=[model]) for name in ('base', 'subprocess')]
    same(*runs)
    assert len(set(map(id, used))) == 1  # for collectors, evaluators and all environments
    weights, evaluations, metrics = runs[0]
    assert all('reward_reward_model_mean' in line for line in metrics) and 'reward_model' in evaluations[0]
    assert distance(weights, finished('without', updates=2)[0]) > 0


def test_the_update_shows_its_seconds(think_answer, tmp_path, capsys):
    folder, _ = save_model(tmp_path / 'model')
    with each_use(lambda model: time.sleep(0.2)):
        finished('slow', updates=1, reward_models=[dict(pretrained=folder)])
    line, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('update 1 ')]
    assert float(re.search(r'  scoring (\S+) s', line)[1]) >= 0.2
