"""A policy that derives from grpo, under a name of its own, and an optimizer that is set by hand."""
import sys

import pytest
import torch
from click.testing import CliRunner
from ding.entry import serial_pipeline_onpolicy
from ding.utils import POLICY_REGISTRY
from easydict import EasyDict

from ding_common import ConfigError, read_json_lines
from ding_grpo.check import examine
from ding_grpo.replay.command import main as replay
from tests.shipped import small

MODULE = '''
import torch
from ding.utils import POLICY_REGISTRY
from ding_grpo.policy import GRPOPolicy


class CountingSGD(torch.optim.SGD):
    steps = 0

    def step(self, *args, **kwargs):
        type(self).steps += 1
        return super().step(*args, **kwargs)


@POLICY_REGISTRY.register('own_grpo', force_overwrite=True)
class OwnGRPO(GRPOPolicy):
    config = dict(GRPOPolicy.config, type='own_grpo', own_key=0.5)

    def _init_learn(self):
        super()._init_learn()
        assert self._cfg.own_key == 0.25
        self._optimizer = CountingSGD(self._model.parameters(), lr=1.0, momentum=0.5)
'''


@pytest.fixture
def own(own_folder, tmp_path, monkeypatch):
    """A config of the subclass, which has a key of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'own_policy.py').write_text(MODULE)
    main, create = small('think_answer_grpo', policy=dict(own_key=0.25))
    create.policy = dict(type='own_grpo', import_names=['ding_grpo', 'own_policy'])
    yield main, create
    sys.modules.pop('own_policy', None)


@pytest.mark.envtest
class TestSubclass:

    def test_learns_with_its_optimizer_and_resumes_as_if_it_had_not_stopped(self, own):
        main, create = own
        with pytest.raises(ConfigError, match='policy.own_kye = 1.0: unknown key; did you mean .own_key'):
            serial_pipeline_onpolicy((EasyDict(main, policy=dict(main.policy, own_kye=1.0)), create), seed=0)
        main.policy.learn.learner = dict(hook=dict(save_ckpt_after_iter=2))
        whole = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=4)
        steps = sum(m['optimizer_steps'] for m in read_json_lines('run/log/learner/metrics.jsonl'))
        assert sys.modules['own_policy'].CountingSGD.steps == steps > 0
        main.policy.learn.update(
            resume_training=True,
            learner=dict(hook=dict(load_ckpt_before_run='run/ckpt/iteration_2.pth.tar', save_ckpt_after_iter=2))
        )
        main.exp_name = 'again'
        again = serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=4)
        assert all(map(torch.equal, whole._model.parameters(), again._model.parameters()))

    def test_is_refused_under_torchrun_without_multi_gpu_and_can_be_examined_and_replayed(self, own, monkeypatch):
        main, create = own
        main.policy.learn.learner = dict(hook=dict(save_ckpt_after_iter=1))
        monkeypatch.setenv('WORLD_SIZE', '2')
        with pytest.raises(ConfigError, match='policy.multi_gpu = False: torchrun started 2 processes'):
            serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        monkeypatch.delenv('WORLD_SIZE')
        serial_pipeline_onpolicy((main, create), seed=0, max_train_iter=1)
        POLICY_REGISTRY.pop('own_grpo')
        sys.modules.pop('own_policy')
        shown = CliRunner().invoke(replay, ['run/ckpt/iteration_1.pth.tar', '--group', '0', '--trust'])
        assert shown.exit_code == 0, shown.output
        assert examine(main, create, seed=0) == []
