import json
import os

import pytest
import torch

from ding_grpo.rl_utils import KL_TYPES, calculate_kl_div, kl_estimate

VERL = json.load(open(os.path.join(os.path.dirname(__file__), '..', 'data', 'notebook_verl.json')))['verl']


@pytest.mark.unittest
class TestKL:

    @pytest.mark.parametrize('kl_type', KL_TYPES)
    def test_equals_verl(self, kl_type):
        logp, ref = (torch.tensor(VERL[k], dtype=torch.float64) for k in ('logp', 'logp_ref'))
        assert torch.allclose(kl_estimate(logp, ref, kl_type), torch.tensor(VERL['kl'][kl_type]).double(), atol=1e-9)

    def test_by_hand(self):
        # p_new = 1/2, p_ref = 1/4: r = 1/2, k1 = log 2, k2 = log(2)^2 / 2, k3 = 1/2 - 1 + log 2
        new, ref = torch.tensor([0.5]).double().log(), torch.tensor([0.25]).double().log()
        log2 = torch.tensor([2.]).double().log()
        assert torch.allclose(kl_estimate(new, ref, 'k1'), log2)
        assert torch.allclose(kl_estimate(new, ref, 'k2'), log2 ** 2 / 2)
        assert torch.allclose(kl_estimate(new, ref, 'k3'), log2 - 0.5)

    def test_k1_and_k3_are_unbiased(self):
        new, ref = torch.randn(6).double().log_softmax(0), torch.randn(6).double().log_softmax(0)
        exact = (new.exp() * (new - ref)).sum()
        for kl_type in ('k1', 'k3'):  # the expectation over all six tokens, not a sample
            assert torch.allclose((new.exp() * kl_estimate(new, ref, kl_type)).sum(), exact)

    @pytest.mark.parametrize('kl_type', KL_TYPES)
    def test_mean_over_all_elements(self, kl_type):
        ratio = torch.randn(3, 4)
        per_token = kl_estimate(ratio, torch.zeros(3, 4), kl_type)
        assert torch.allclose(calculate_kl_div(ratio, kl_type), per_token.mean())

    def test_unknown_type(self):
        with pytest.raises(ValueError, match='k4'):
            kl_estimate(torch.zeros(1), torch.zeros(1), 'k4')
