import copy
import pickle

import pytest
import torch

from ding_grpo.rl_utils import (
    LOSS_PRESETS, SURROGATES, LossConfig, efficient_method, grpo_data, grpo_error, grpo_policy_data, grpo_policy_error,
    kl_estimate, less_efficient_method, naive_method, rloo_policy_data, rloo_policy_error, sequence_mean
)
from tests.rl_utils.peers import assert_recorded, double, recorded, tensors

DING = recorded('ding_main_llm')
METHODS = {f.__name__: f for f in (naive_method, efficient_method, less_efficient_method)}
OF_TRL = dict(
    grpo=dict(reduction='sequence'),
    bnpo=dict(reduction='token'),
    dr_grpo=dict(reduction='constant'),
    dapo=dict(reduction='token'),
    cispo=dict(reduction='token', surrogate='cispo'),
    sapo=dict(reduction='sequence', surrogate='sapo'),
    luspo=dict(reduction='sum'),
)


@pytest.mark.usefixtures('on_device')
class TestAgainstPeers:

    @pytest.mark.parametrize('case', DING['cases'], ids=range(len(DING['cases'])))
    def test_ding_main(self, case):
        """Also RLOO."""
        names = ('logit_new', 'logit_old', 'logit_ref', 'adv', 'reward', 'weight')
        new, old, ref, adv, reward, weight = tensors(DING['inputs'], *names)
        action, weight = torch.tensor(DING['inputs']['action']), weight if case['use_weight'] else None
        new.requires_grad_()
        options = dict(case['kwargs'], mask_metrics=False)
        if case['fn'] == 'rloo_policy_error':
            loss, info = rloo_policy_error(rloo_policy_data(new, old, action, reward, weight), **options)
        else:
            options['log_prob_fn'] = METHODS[options['log_prob_fn']]
            loss, info = grpo_policy_error(grpo_policy_data(new, old, ref, action, adv, weight), **options)
        assert_recorded(loss, new, case, 'grad_logit_new')
        assert info._asdict() == pytest.approx(case['info'], abs=1e-6)

    @pytest.mark.parametrize('name', OF_TRL)
    def test_trl(self, name):
        cases = [(d, c) for d in recorded('trl_grpo_loss')['data'] for c in d['cases']]
        cases = [(data, case) for data, case in cases if case['options']['loss_type'] == name]
        assert len(cases) >= 6
        for data, case in cases:
            new, *others = tensors(data, 'logp_new', 'logp_old', 'logp_ref', 'adv', 'mask')
            options = case['options']
            loss, info = grpo_error(
                grpo_data(new.requires_grad_(), *others),
                clip_ratio=options['epsilon'],
                clip_ratio_high=options['epsilon_high'],
                beta=options['beta'],
                ratio=options['importance_sampling_level'],
                delta=options['delta'],
                max_length=options['max_completion_length'],
                kl_ratio_correction=options['use_bias_correction_kl'],
                **OF_TRL[name]
            )
            assert_recorded(loss, new, case, 'grad_logp_new')
            ours = {
                'clip_ratio/low_mean': info.clipfrac_low,
                'clip_ratio/high_mean': info.clipfrac_high,
                'clip_ratio/region_mean': info.clipfrac_low + info.clipfrac_high,
                'cispo_clip_ratio': info.clipfrac_high,
                'kl': info.kl
            }
            assert {metric: ours[metric] for metric in case['metrics']} == pytest.approx(case['metrics'], abs=1e-6)

    def test_notebook(self):
        case = recorded('notebook_verl')['notebook']
        new, old, ref, adv = tensors(case, 'pi_logprob', 'pi_old_logprob', 'pi_ref_logprob', 'adv')
        weight = (torch.arange(old.shape[1]) >= case['input_len']).double().expand_as(old)
        data = grpo_data(new.requires_grad_(), old, ref, adv, weight)
        loss, _ = grpo_error(data, clip_ratio=case['epsilon'], beta=case['beta'])
        assert_recorded(loss, new, case, 'grad_pi_logprob')


class TestByHand:

    def test_one_token(self):
        # ratio = 0.6 / 0.4 = 1.5, clipped at 1.2; adv 2: -2.4. KL: r = 0.3 / 0.6 = 1/2, k3 = 1/2 - 1 + log 2
        new, old, ref = (double([[p]]).log() for p in (0.6, 0.4, 0.3))
        loss, info = grpo_error(grpo_data(new, old, ref, double([2.]), None), beta=0.1)
        assert loss.item() == pytest.approx(-2.4 + 0.1 * (0.6931471805599453 - 0.5))
        assert (info.clipfrac, info.clipfrac_high, info.clipfrac_low) == (1, 1, 0)
        assert info.effective_sample_size == pytest.approx(1)
        assert info.ratio_max == pytest.approx(1.5)

    def test_effective_sample_size(self):
        new, old = torch.tensor([[1., 3.]]).log(), torch.zeros(1, 2)  # (1 + 3)^2 / (2 * (1 + 9))
        _, info = grpo_error(grpo_data(new, old, None, torch.ones(1), None), beta=0)
        assert info.effective_sample_size == pytest.approx(0.8)


@pytest.mark.usefixtures('on_device')
@pytest.mark.parametrize('reward', [[3., 0., 0.], [3, 0, 0], [[3.], [0.], [0.]]], ids=str)
def test_rloo_of_one_prompt_by_hand(reward):
    # rewards 3, 0, 0: minus the mean of the others 3, -1.5, -1.5; ratio 1
    logit, action = torch.zeros(3, 2, 4, dtype=torch.float64, requires_grad=True), torch.zeros(3, 2).long()
    data = rloo_policy_data(logit, logit.detach(), action, torch.tensor(reward), None)
    loss, _ = rloo_policy_error(data)
    grad, = torch.autograd.grad(loss, logit)
    # of the loss: -adv / 3 rows / 2 tokens x (1 - 1/4)
    assert loss.item() == pytest.approx(0)
    assert grad[:, 0, 0].tolist() == pytest.approx([-3 / 8, 1.5 / 8, 1.5 / 8])


def test_rloo_counts_padding_in_its_metrics_only_where_asked():
    # the first token has the ratio 0.6 / 0.4, the second, padding, 1
    new, old = (torch.tensor([[[p, 1 - p], [0.5, 0.5]]] * 2).double().log() for p in (0.6, 0.4))
    data = rloo_policy_data(new, old, torch.zeros(2, 2).long(), torch.tensor([1., 0.]), torch.tensor([[1., 0.]] * 2))
    kl = -0.4054651081  # log 0.4 - log 0.6
    assert list(rloo_policy_error(data)[1]) == pytest.approx([kl, 1])
    assert list(rloo_policy_error(data, mask_metrics=False)[1]) == pytest.approx([kl / 2, 0.5])


class Random:
    """Four uneven rows of up to five tokens."""

    def setup_method(self):
        torch.manual_seed(0)
        self.new, self.old, self.ref = (-torch.rand(4, 5, dtype=torch.float64) for _ in range(3))
        self.new.requires_grad_()
        self.adv = double([1., -2., 0.5, 0.5])  # mean 0
        self.group = torch.tensor([0, 0, 1, 1])
        self.weight = double([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])

    def error(self, logp_old=None, weight=None, **options):
        return grpo_error(grpo_data(self.new, logp_old, self.ref, self.adv, weight, self.group), **options)

    def from_logits(self):
        logit, action = torch.randn(4, 5, 3).double().requires_grad_(), torch.randint(0, 3, (4, 5))
        old = logit.detach() + 0.1 * torch.randn(4, 5, 3)
        return grpo_policy_data(logit, old, None, action, self.adv, self.weight)


class TestLoss(Random):

    def test_without_logp_old_the_ratio_is_exactly_one(self):
        loss, info = self.error(beta=0.3)
        assert (info.ratio_mean, info.ratio_max, info.clipfrac, info.approx_kl) == (1, 1, 0, 0)
        assert loss.item() == pytest.approx(0.3 * info.kl, abs=1e-12)  # the advantages sum to 0

    def test_on_policy_gradient(self):
        # section 4.1 of the paper: (adv + beta * (pi_ref / pi - 1)) * grad log pi, averaged
        loss, _ = self.error(weight=self.weight, beta=0.3)
        loss.backward()
        factor = self.adv[:, None] + 0.3 * ((self.ref - self.new.detach()).exp() - 1)
        expected = -factor * self.weight / self.weight.sum(1, keepdim=True) / 4
        assert torch.allclose(self.new.grad, expected, atol=1e-12)

    @pytest.mark.parametrize('kl_type', ['k1', 'k2'])
    def test_kl_types(self, kl_type):
        loss, _ = self.error(weight=self.weight, beta=1., kl_type=kl_type)
        policy, _ = self.error(weight=self.weight, beta=0.)
        expected = sequence_mean(kl_estimate(self.new, self.ref, kl_type), self.weight)
        assert (loss - policy).item() == pytest.approx(expected.item())

    @pytest.mark.parametrize('name', ['grpo', 'gspo', 'gmpo', 'cpgd'])
    @pytest.mark.parametrize('options', [dict(kl_type='k1', kl_ratio_correction=True), dict(kl_type='k2')])
    def test_gradcheck(self, name, options):

        def loss(new, ref):
            data = grpo_data(new, self.old, ref, self.adv, self.weight)
            return grpo_error(data, LOSS_PRESETS[name], max_length=5, **options)[0]

        assert torch.autograd.gradcheck(loss, (self.new, self.ref.requires_grad_()))

    def test_advantages_per_token_and_integer_ones(self):
        per_row, _ = self.error(self.old, self.weight)
        data = grpo_data(self.new, self.old, self.ref, self.adv[:, None].expand(4, 5), self.weight)
        assert grpo_error(data)[0].item() == pytest.approx(per_row.item())
        logit, action = torch.randn(2, 5, 3).half(), torch.zeros(2, 5).long()
        for adv in ([3001, -1], [3001., -1.]):  # 3001 is not a number of float16
            loss, _ = grpo_policy_error(grpo_policy_data(logit, None, None, action, torch.tensor(adv), None), beta=0)
            assert loss.item() == pytest.approx(-1500)

    def test_half_types_are_computed_in_float32(self):
        half = [x.detach().to(torch.bfloat16) for x in (self.new, self.old, self.ref, self.adv, self.weight)]
        loss, info = grpo_error(grpo_data(*half))
        expected, expected_info = grpo_error(grpo_data(*(x.float() for x in half)))
        assert loss.dtype == torch.float32 and loss == expected and info.metrics() == expected_info.metrics()

    @pytest.mark.parametrize('reduction', ['sequence', 'token', 'constant', 'sum'])
    def test_gradient_accumulation_is_the_gradient_of_the_whole(self, reduction):
        options = dict(reduction=reduction, max_length=7 if reduction == 'constant' else None)
        self.error(self.old, self.weight, **options)[0].backward()
        whole, self.new.grad = self.new.grad, None
        for rows in (slice(0, 1), slice(1, 4)):  # uneven micro-batches
            part = grpo_data(*(x[rows] for x in (self.new, self.old, self.ref, self.adv, self.weight)))
            if reduction == 'token':
                loss, _ = grpo_error(part, num_tokens=self.weight.sum().item(), **options)
            else:
                loss = grpo_error(part, **options)[0] * len(part.adv) / len(self.adv)
            loss.backward()
        assert torch.allclose(self.new.grad, whole, atol=1e-12)

    def test_options_by_name_replace_those_of_the_config(self):
        found, _ = self.error(self.old, self.weight, config=LossConfig(beta=0.3, kl_type='k2'), kl_type='k1')
        assert found == self.error(self.old, self.weight, beta=0.3, kl_type='k1')[0]


class TestPadding(Random):

    @pytest.mark.parametrize('fn', [naive_method, efficient_method])
    def test_the_usual_action_of_padding(self, fn):
        data = self.from_logits()
        clean, _ = grpo_policy_error(data, fn, beta=0)
        padded = data._replace(action=data.action.masked_fill(self.weight == 0, -100))
        assert grpo_policy_error(padded, fn, beta=0)[0] == clean

    def test_nan_in_logits_reaches_no_gradient(self):
        data = self.from_logits()._replace(logit_old=None)
        with torch.no_grad():
            data.logit_new[self.weight == 0] = float('nan')
        grad, = torch.autograd.grad(grpo_policy_error(data, efficient_method, beta=0)[0], data.logit_new)
        assert torch.isfinite(grad).all()

    @pytest.mark.parametrize(
        'surrogate, ratio', [
            *((name, 'token') for name in SURROGATES),
            *((name, 'sequence') for name, f in SURROGATES.items() if not f.traits.token_ratio),
        ]
    )
    def test_infinities_after_a_rows_end_reach_no_gradient(self, surrogate, ratio):
        options = dict(surrogate=surrogate, ratio=ratio)
        expected = torch.autograd.grad(self.error(self.old, self.weight, **options)[0], self.new)[0]
        with torch.no_grad():
            self.new[self.weight == 0] = float('-inf')
            self.ref[self.weight == 0] = float('nan')
        loss, info = self.error(self.old, self.weight, **options)
        assert torch.allclose(torch.autograd.grad(loss, self.new)[0], expected)
        assert all(value == value for value in info.metrics().values())

    def test_metrics_count_it_only_where_asked_and_the_loss_never(self):
        padded = self.old.clone()
        padded[self.weight == 0] = -100.  # a ratio of e^100
        loss, masked = self.error(padded, self.weight)
        clean_loss, clean = self.error(self.old, self.weight)
        assert loss == clean_loss and masked.metrics() == clean.metrics()
        _, unmasked = self.error(padded, self.weight, mask_metrics=False)
        assert unmasked.ratio_max > 1e30 and unmasked.clipfrac != clean.clipfrac
        padded[self.weight == 0] = float('-inf')
        loss, _ = self.error(padded, self.weight, mask_metrics=False)
        assert loss == clean_loss and torch.isfinite(torch.autograd.grad(loss, self.new)[0]).all()

    @pytest.mark.parametrize('options', [dict(), dict(reduction='token', num_tokens=0)], ids=str)
    def test_nothing_but_padding(self, options):
        loss, info = self.error(self.old, torch.zeros(4, 5), **options)
        assert loss.item() == 0 and not any(info.metrics().values())


def test_info_is_a_tuple_of_the_two_metrics_of_di_engine_main():
    _, info = grpo_error(grpo_data(torch.randn(2, 3), torch.randn(2, 3), None, torch.ones(2), None), beta=0)
    approx_kl, clipfrac = info
    assert info._asdict() == dict(approx_kl=approx_kl, clipfrac=clipfrac)
    assert set(info.metrics()) > {'approx_kl', 'clipfrac', 'kl', 'ratio_max', 'effective_sample_size'}
    for name, value in info.metrics().items():
        assert type(value) is float and getattr(info, name) == value
    for copied in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
        assert copied == info and copied.metrics() == info.metrics()
