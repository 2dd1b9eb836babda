"""The same on every device: an update, and a run that is resumed."""
import pytest
import torch
from ding.entry import serial_pipeline_onpolicy

from tests.policies import make_policy, sample_groups
from tests.same import same
from tests.shipped import small


@pytest.mark.envtest
class TestDevice:

    @pytest.mark.parametrize('options', [{}, dict(epoch_per_collect=2, beta=0.1, micro_batch_tokens=40)], ids=str)
    def test_an_update_is_that_of_the_cpu(self, think_answer, device, options):
        main, create = think_answer
        main.policy.learn.update(options)
        data = sample_groups(make_policy(main, create), range(4))
        found = []
        for cuda in (False, device == 'cuda'):
            main.policy.cuda = cuda
            policy = make_policy(main, create)
            metrics = policy.learn_mode.forward(data)
            weights = torch.cat([p.detach().cpu().flatten() for p in policy._model.parameters()])
            found.append((weights, {k: v for k, v in metrics.items() if 'second' not in k and 'memory' not in k}))
        (weights, metrics), (other_weights, other_metrics) = found
        assert torch.allclose(weights, other_weights, atol=1e-5)
        assert other_metrics == pytest.approx(metrics, abs=1e-4, rel=1e-3)

    @pytest.mark.parametrize('name', ['think_answer_grpo', 'cartpole_grpo'])
    def test_stopped_and_resumed_is_not_stopped(self, tmp_path, monkeypatch, device, name):
        monkeypatch.chdir(tmp_path)
        main, create = small(name)
        main.policy.cuda = device == 'cuda'
        for main.exp_name, stops in (('whole', [4]), ('run', [2, 4])):
            for stop in stops:
                main.policy.learn.resume_training = stop != stops[0]
                serial_pipeline_onpolicy((main, create), seed=3, max_train_iter=stop)
        whole, resumed = (torch.load(f'{run}/ckpt/iteration_4.pth.tar', weights_only=True) for run in ('whole', 'run'))
        same(whole, resumed)
