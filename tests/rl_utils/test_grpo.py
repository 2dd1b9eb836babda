import copy
import json
import os
import pickle

import pytest
import torch

from ding_grpo.rl_utils import (
    LOSS_PRESETS, SURROGATES, TOKEN_RATIO_SURROGATES, LossConfig, efficient_method, grpo_data, grpo_error,
    grpo_policy_data, grpo_policy_error, kl_estimate, less_efficient_method, naive_method, sequence_mean
)

HERE = os.path.join(os.path.dirname(__file__), '..', 'data')
DING = json.load(open(os.path.join(HERE, 'ding_main_llm.json')))
TRL = json.load(open(os.path.join(HERE, 'trl_grpo_loss.json')))['data']
CASES = [c for c in DING['cases'] if c['fn'] == 'grpo_policy_error']
NOTEBOOK = json.load(open(os.path.join(HERE, 'notebook_verl.json')))['notebook']
METHODS = dict(
    naive_method=naive_method, efficient_method=efficient_method, less_efficient_method=less_efficient_method
)


def tensors(names, source):
    return [torch.tensor(source[name], dtype=torch.float64) for name in names]


@pytest.mark.unittest
@pytest.mark.usefixtures('on_device')
class TestAgainstPeers:

    @pytest.mark.parametrize('case', CASES, ids=range(len(CASES)))
    def test_ding_main(self, case):
        new, old, ref, adv, weight = tensors(['logit_new', 'logit_old', 'logit_ref', 'adv', 'weight'], DING['inputs'])
        new.requires_grad_()
        data = grpo_policy_data(
            new, old, ref, torch.tensor(DING['inputs']['action']), adv, weight if case['use_weight'] else None
        )
        options = dict(case['kwargs'], log_prob_fn=METHODS[case['kwargs']['log_prob_fn']])
        loss, info = grpo_policy_error(data, **options, mask_metrics=False)
        loss.backward()
        assert loss.item() == pytest.approx(case['loss'], abs=1e-9)
        assert torch.allclose(new.grad, torch.tensor(case['grad_logit_new'], dtype=torch.float64), atol=1e-8, rtol=0)
        assert info.approx_kl == pytest.approx(case['info']['approx_kl'], abs=1e-6)
        assert info.clipfrac == pytest.approx(case['info']['clipfrac'], abs=1e-6)

    @pytest.mark.parametrize('name', ['grpo', 'bnpo', 'dr_grpo', 'dapo', 'cispo', 'sapo', 'luspo'])
    def test_trl(self, name):
        choices = dict(
            grpo=dict(reduction='sequence'),
            bnpo=dict(reduction='token'),
            dr_grpo=dict(reduction='constant'),
            dapo=dict(reduction='token'),
            cispo=dict(reduction='token', surrogate='cispo'),
            sapo=dict(reduction='sequence', surrogate='sapo'),
            luspo=dict(reduction='sum')
        )[name]
        cases = [(d, c) for d in TRL for c in d['cases'] if c['options']['loss_type'] == name]
        assert len(cases) >= 6
        for data, case in cases:
            new, old, ref, adv, weight = tensors(['logp_new', 'logp_old', 'logp_ref', 'adv', 'mask'], data)
            new.requires_grad_()
            options = case['options']
            loss, info = grpo_error(
                grpo_data(new, old, ref, adv, weight),
                clip_ratio=options['epsilon'],
                clip_ratio_high=options['epsilon_high'],
                beta=options['beta'],
                ratio=options['importance_sampling_level'],
                delta=options['delta'],
                max_length=options['max_completion_length'],
                kl_ratio_correction=options['use_bias_correction_kl'],
                **choices
            )
            loss.backward()
            assert loss.item() == pytest.approx(case['loss'], abs=1e-9)
            assert torch.allclose(new.grad, torch.tensor(case['grad_logp_new'], dtype=torch.float64), atol=1e-8, rtol=0)
            ours = {
                'clip_ratio/low_mean': info.clipfrac_low,
                'clip_ratio/high_mean': info.clipfrac_high,
                'clip_ratio/region_mean': info.clipfrac_low + info.clipfrac_high,
                'cispo_clip_ratio': info.clipfrac_high,
                'kl': info.kl
            }
            for metric, value in case['metrics'].items():
                assert ours[metric] == pytest.approx(value, abs=1e-6), metric

    def test_notebook(self):
        new, old, ref, adv = tensors(['pi_logprob', 'pi_old_logprob', 'pi_ref_logprob', 'adv'], NOTEBOOK)
        new.requires_grad_()
        weight = torch.ones_like(old)
        weight[:, :NOTEBOOK['input_len']] = 0
        loss, _ = grpo_error(
            grpo_data(new, old, ref, adv, weight), clip_ratio=NOTEBOOK['epsilon'], beta=NOTEBOOK['beta']
        )
        loss.backward()
        assert loss.item() == pytest.approx(NOTEBOOK['loss'], abs=1e-9)
        assert torch.allclose(
            new.grad, torch.tensor(NOTEBOOK['grad_pi_logprob'], dtype=torch.float64), atol=1e-8, rtol=0
        )


@pytest.mark.unittest
class TestGRPOError:

    def setup_method(self):
        torch.manual_seed(0)
        self.new, self.old, self.ref = (-torch.rand(4, 5, dtype=torch.float64) for _ in range(3))
        self.new.requires_grad_()
        self.adv = torch.tensor([1., -2., 0.5, 0.5], dtype=torch.float64)  # mean 0
        self.weight = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]).double()

    def error(self, logp_old=None, weight=None, **options):
        return grpo_error(grpo_data(self.new, logp_old, self.ref, self.adv, weight), **options)

    def test_one_token_by_hand(self):
        # ratio = 0.6 / 0.4 = 1.5, clipped at 1.2; adv 2: -2.4. KL: r = 0.3 / 0.6 = 1/2, k3 = 1/2 - 1 + log 2
        new, old, ref = (torch.tensor([[p]]).double().log() for p in (0.6, 0.4, 0.3))
        loss, info = grpo_error(grpo_data(new, old, ref, torch.tensor([2.]).double(), None), beta=0.1)
        assert loss.item() == pytest.approx(-2.4 + 0.1 * (0.6931471805599453 - 0.5))
        assert (info.clipfrac, info.clipfrac_high, info.clipfrac_low) == (1, 1, 0)
        assert info.effective_sample_size == pytest.approx(1)
        assert info.ratio_max == pytest.approx(1.5)

    def test_clip_takes_the_pessimistic_side(self):
        # ratio 0.5 with a negative advantage is clipped to 0.8, with a positive one it is not
        new, old = (torch.tensor([[p]]).double().log() for p in (0.2, 0.4))
        for adv, expected in ((-1., 0.8), (1., -0.5)):
            loss, _ = grpo_error(grpo_data(new, old, None, torch.tensor([adv]).double(), None), beta=0)
            assert loss.item() == pytest.approx(expected)

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

    @pytest.mark.parametrize('fn', [naive_method, efficient_method])
    def test_from_logits_with_the_usual_padding(self, fn):
        logit = torch.randn(4, 5, 3).double().requires_grad_()
        action = torch.randint(0, 3, (4, 5))
        data = grpo_policy_data(logit, logit.detach() + 0.1 * torch.randn(4, 5, 3), None, action, self.adv, self.weight)
        clean, _ = grpo_policy_error(data, fn, beta=0)
        action = action.masked_fill(self.weight == 0, -100)
        assert grpo_policy_error(data._replace(action=action), fn, beta=0)[0] == clean
        with pytest.raises(ValueError, match='logit_old'):
            grpo_policy_error(data._replace(logit_old=logit[..., :2]), fn, beta=0)

    def test_padding_in_the_logits_reaches_no_gradient(self):
        logit = torch.randn(4, 5, 3).double().requires_grad_()
        with torch.no_grad():
            logit[self.weight == 0] = float('nan')
        data = grpo_policy_data(logit, None, None, torch.zeros(4, 5).long(), self.adv, self.weight)
        grad, = torch.autograd.grad(grpo_policy_error(data, efficient_method, beta=0)[0], logit)
        assert torch.isfinite(grad).all()

    def test_info_is_a_tuple_of_the_two_metrics_of_di_engine_main(self):
        _, info = self.error(self.old, self.weight)
        approx_kl, clipfrac = info
        assert info._asdict() == dict(approx_kl=approx_kl, clipfrac=clipfrac)
        assert list(info.metrics()) == [
            'approx_kl', 'clipfrac', 'clipfrac_low', 'clipfrac_high', 'kl', 'ratio_mean', 'ratio_max',
            'effective_sample_size'
        ]
        for name, value in info.metrics().items():
            assert type(value) is float and getattr(info, name) == value
        for copied in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
            assert copied == info and copied.metrics() == info.metrics()

    def test_integer_advantages_with_logits(self):
        logit, action = torch.randn(2, 5, 3).half(), torch.zeros(2, 5).long()
        for adv in ([3001, -1], [3001., -1.]):  # 3001 is not a number of float16
            loss, _ = grpo_policy_error(grpo_policy_data(logit, None, None, action, torch.tensor(adv), None), beta=0)
            assert loss.item() == pytest.approx(-1500)

    def test_unmasked_metrics_leave_the_loss_alone(self):
        self.old[self.weight == 0] = float('-inf')
        loss, _ = self.error(self.old, self.weight, mask_metrics=False)
        assert loss == self.error(self.old, self.weight)[0]
        assert torch.isfinite(torch.autograd.grad(loss, self.new)[0]).all()

    def test_an_empty_micro_batch(self):
        loss, _ = self.error(self.old, torch.zeros(4, 5), reduction='token', num_tokens=0)
        assert loss == 0
        with pytest.raises(ValueError, match='num_tokens = 0'):
            self.error(self.old, self.weight, reduction='token', num_tokens=0)

    def test_all_masked(self):
        loss, info = self.error(self.old, torch.zeros(4, 5))
        assert loss.item() == 0 and all(value == 0 for value in info.metrics().values())

    def test_metrics_wear_the_mask(self):
        padded = self.old.clone()
        padded[self.weight == 0] = -100.  # padding: a ratio of e^100
        _, masked = self.error(padded, self.weight)
        _, clean = self.error(self.old, self.weight)
        assert masked.metrics() == clean.metrics()
        _, unmasked = self.error(padded, self.weight, mask_metrics=False)
        assert unmasked.ratio_max > 1e30 and unmasked.clipfrac != clean.clipfrac

    @pytest.mark.parametrize('kl_type', ['k1', 'k2', 'k3'])
    def test_kl_types_are_used(self, kl_type):
        loss, _ = self.error(weight=self.weight, beta=1., kl_type=kl_type)
        policy, _ = self.error(weight=self.weight, beta=0.)
        expected = sequence_mean(kl_estimate(self.new, self.ref, kl_type), self.weight)
        assert (loss - policy).item() == pytest.approx(expected.item())

    def test_advantage_per_token(self):
        per_row, _ = self.error(self.old, self.weight)
        data = grpo_data(self.new, self.old, self.ref, self.adv[:, None].expand(4, 5), self.weight)
        assert grpo_error(data)[0].item() == pytest.approx(per_row.item())

    def test_effective_sample_size_by_hand(self):
        new, old = torch.tensor([[1., 3.]]).log(), torch.zeros(1, 2)  # (1 + 3)^2 / (2 * (1 + 9))
        _, info = grpo_error(grpo_data(new, old, None, torch.ones(1), None), beta=0)
        assert info.effective_sample_size == pytest.approx(0.8)

    # in the others a part is a constant by design
    @pytest.mark.parametrize('name', sorted(set(LOSS_PRESETS) - {'cispo', 'dppo_tv', 'dppo_kl', 'vespo'}))
    @pytest.mark.parametrize('options', [dict(), dict(kl_type='k1', kl_ratio_correction=True), dict(kl_type='k2')])
    def test_gradcheck(self, name, options):

        def loss(new, ref):
            data = grpo_data(new, self.old, ref, self.adv, self.weight)
            return grpo_error(data, LOSS_PRESETS[name], max_length=5, **options)[0]

        assert torch.autograd.gradcheck(loss, (self.new, self.ref.requires_grad_()))

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

    @pytest.mark.parametrize(
        'surrogate, ratio', [
            *((name, 'token') for name in SURROGATES),
            *((name, 'sequence') for name, f in SURROGATES.items() if f not in TOKEN_RATIO_SURROGATES),
        ]
    )
    def test_what_stands_behind_a_rows_end_reaches_no_gradient(self, surrogate, ratio):
        options = dict(surrogate=surrogate, ratio=ratio)
        expected = torch.autograd.grad(self.error(self.old, self.weight, **options)[0], self.new)[0]
        with torch.no_grad():
            self.new[self.weight == 0] = float('-inf')
            self.ref[self.weight == 0] = float('nan')
        loss, info = self.error(self.old, self.weight, **options)
        assert torch.allclose(torch.autograd.grad(loss, self.new)[0], expected)
        assert all(value == value for value in info.metrics().values())

    def test_options_by_name_replace_those_of_the_config(self):
        found, _ = self.error(self.old, self.weight, config=LossConfig(beta=0.3, kl_type='k2'), kl_type='k1')
        assert found == self.error(self.old, self.weight, beta=0.3, kl_type='k1')[0]
        logit, action = torch.randn(4, 5, 3).double(), torch.randint(0, 3, (4, 5))
        data = grpo_policy_data(logit, logit + 1, None, action, self.adv, self.weight)
        from_logits = [
            grpo_policy_error(data, naive_method, *args, **options)[0]
            for args, options in (((), dict(clip_ratio=0.1, beta=0)), ((LossConfig(clip_ratio=0.1, beta=0), ), {}))
        ]
        assert from_logits[0] == from_logits[1]

    @pytest.mark.parametrize(
        'options, message', [
            (dict(ratio='row'), "ratio = 'row'"),
            (dict(surrogate='clp'), "surrogate = 'clp'"),
            (dict(reduction='mean'), "reduction = 'mean'"),
            (dict(reduction='constant'), 'max_length = None'),
            (dict(num_tokens=5), "num_tokens = 5"),
            (dict(surrogate='sapo', delta=2.), 'delta = 2.0'),
            (dict(delta=1.1), 'delta = 1.1.*1.2'),
            (dict(surrogate=['clip']), 'surrogate'),
            (dict(clip_ratio='0.2'), "clip_ratio = '0.2'"),
            (dict(clip_ratio=-0.1), 'clip_ratio = -0.1'),
            (dict(clip_ratio_high=float('nan')), 'clip_ratio_high = nan'),
            (dict(beta=-1.), 'beta = -1'),
            (dict(kl_type='k4'), "kl_type = 'k4'"),
            (dict(clip_range=0.1), 'clip_range = 0.1: is not an option of the loss; its options are ratio, surrogate'),
            (dict(config=0.2), 'config of float: must be a LossConfig; pass single options by name'),
        ]
    )
    def test_wrong_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            self.error(self.old, self.weight, **options)

    def test_wrong_use_names_the_field(self):
        for name, value, message in [
            ('logp_old', self.old[:2], r'logp_old.*\(4, 5\)'),
            ('adv', self.adv[:2], 'adv'),
            ('weight', self.weight[:, :2], 'weight'),
            ('logp_new', self.new.long(), 'logp_new.*int64.*floats'),
            ('logp_ref', self.ref[0], r'logp_ref \(5,\)'),
            ('adv', self.adv.long(), 'adv.*int64.*floats'),
            ('weight', [1.], 'weight of list'),
            ('adv', None, 'adv of NoneType'),
            ('logp_ref', None, 'beta'),
        ]:
            data = grpo_data(self.new, self.old, self.ref, self.adv, self.weight)._replace(**{name: value})
            with pytest.raises(ValueError, match=message):
                grpo_error(data)
