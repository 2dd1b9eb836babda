import json
import os

import pytest
import torch

from ding_grpo.rl_utils import rloo_policy_data, rloo_policy_error

DING = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'ding_main_llm.json')))
CASES = [c for c in DING['cases'] if c['fn'] == 'rloo_policy_error']


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestRLOO:

    @pytest.mark.parametrize('case', CASES, ids=range(len(CASES)))
    def test_ding_main(self, case):
        tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in DING['inputs'].items() if k != 'action'}
        new = tensors['logit_new'].requires_grad_()
        weight = tensors['weight'] if case['use_weight'] else None
        action = torch.tensor(DING['inputs']['action'])
        loss, info = rloo_policy_error(
            rloo_policy_data(new, tensors['logit_old'], action, tensors['reward'], weight),
            mask_metrics=False,
            **case['kwargs']
        )
        loss.backward()
        assert loss.item() == pytest.approx(case['loss'], abs=1e-9)
        assert torch.allclose(new.grad, torch.tensor(case['grad_logit_new'], dtype=torch.float64), atol=1e-8, rtol=0)
        assert info.approx_kl == pytest.approx(case['info']['approx_kl'], abs=1e-6)
        assert info.clipfrac == pytest.approx(case['info']['clipfrac'], abs=1e-6)

    @pytest.mark.parametrize(
        'shape, message',
        [((1, 4), 'K = 1'), ((2, 3), 'K P = B = 4'), ((3, ), r'reward \(3,\)'), ((2, 2, 1), r'\(K, P\)')]
    )
    def test_wrong_rewards(self, shape, message):
        logit, action = torch.zeros(4, 2, 3), torch.zeros(4, 2).long()
        with pytest.raises(ValueError, match=message):
            rloo_policy_error(rloo_policy_data(logit, logit, action, torch.zeros(shape), None))

    def test_completions_of_one_prompt_by_hand(self):
        # rewards 3, 0, 0: minus the mean of the others 3, -1.5, -1.5; ratio 1
        logit, action = torch.zeros(3, 2, 4, dtype=torch.float64, requires_grad=True), torch.zeros(3, 2).long()
        for reward in (torch.tensor([3., 0., 0.]), torch.tensor([3, 0, 0]), torch.tensor([[3.], [0.], [0.]])):
            loss, _ = rloo_policy_error(rloo_policy_data(logit, logit.detach(), action, reward, None))
            grad, = torch.autograd.grad(loss, logit)
            # of the loss: -adv / 3 rows / 2 tokens x (1 - 1/4)
            assert loss.item() == pytest.approx(0)
            assert grad[:, 0, 0].tolist() == pytest.approx([-3 / 8, 1.5 / 8, 1.5 / 8])

    def test_gradcheck(self):
        torch.manual_seed(0)
        new, old = (torch.randn(4, 2, 3, dtype=torch.float64) for _ in range(2))
        action, reward = torch.randint(0, 3, (4, 2)), torch.randn(2, 2, dtype=torch.float64)
        assert torch.autograd.gradcheck(
            lambda x: rloo_policy_error(rloo_policy_data(x, old, action, reward, None))[0], (new.requires_grad_(), )
        )
