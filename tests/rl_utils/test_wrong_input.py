"""A wrong argument raises a ValueError that names it."""

import pytest
import torch

from ding_grpo.rl_utils import (
    SURROGATES, LinearOutput, PPOLoss, TokenRules, efficient_method, equal_groups, exact_kl, gae_advantage, grpo_data,
    grpo_error, grpo_policy_data, grpo_policy_error, group_advantage, kl_estimate, less_efficient_method,
    linear_divergence, linear_log_prob, naive_method, ppo_data, ppo_error, ppo_policy_data, ppo_policy_data_continuous,
    ppo_policy_error, ppo_policy_error_continuous, ppo_value_data, ppo_value_error, return_to_go, rloo_policy_data,
    rloo_policy_error, sampled_divergence, sampler_correction, sequence_mean, step_advantage, token_advantage,
    value_error
)

pytestmark = pytest.mark.unittest
B, S, V, H = 2, 3, 7, 4
zeros, ones = torch.zeros, torch.ones


def ids(*shape):
    return zeros(shape, dtype=torch.long)


def of_data(error, data):
    """A loss as a function of the fields of its data and of its options."""

    def call(**given):
        return error(data(*(given.pop(name, None) for name in data._fields)), **given)

    return call


def of_torchtune(**given):
    names = ('epsilon', 'value_clip_range', 'value_coeff')
    return PPOLoss(**{name: given.pop(name) for name in names if name in given})(**given)


TOKENS = dict(logits=zeros(B, S, 5), index=ids(B, S))
LOG_PROB = [
    (dict(index=ids(B, 4)), r'index \(2, 4\).*\(2, 3\)'),
    (dict(index=zeros(B, S)), 'index.*int64'),
    (dict(logits=ids(B, S, 5)), 'logits.*floats'),
    (dict(logits=zeros(5), index=ids()), r'logits \(5,\)'),
    (dict(index=ids(B, S) - 100), 'index from -100.*V - 1 = 4'),
    (dict(index=ids(B, S) + 5), 'index from 5'),
    (dict(logits=None), 'logits of NoneType'),
]
LOGIT = zeros(B, S, V)
PAIR = dict(mu=zeros(6, 3), sigma=ones(6, 3))
ROWS = dict(reward=zeros(2), group=ids(2))
GROUPS = dict(return_=ones(2, 3), weight=ones(2, 3), group=ids(2), method='grpo')
PPO = [
    (dict(adv=zeros(5)), r'adv \(5,\)'),
    (dict(weight=zeros(6, 2)), r'weight \(6, 2\)'),
    (dict(kl_type='k4'), "kl_type = 'k4'"),
    (dict(dual_clip=0.5), 'dual_clip = 0.5'),
    (dict(clip_ratio=-1), 'clip_ratio = -1'),
]
WHOLE_PPO = dict(
    zip(
        ppo_data._fields,
        (zeros(6, V), zeros(6, V), ids(6), zeros(6), zeros(6), zeros(6), zeros(6), None, None),
    )
)
TUNED = dict.fromkeys(('pi_old_logprobs', 'pi_logprobs', 'advantages'), zeros(B, S))
TUNED.update(dict.fromkeys(('phi_old_values', 'phi_values', 'returns'), zeros(B, S + 1)))
CASES = [
    *((method, TOKENS, LOG_PROB) for method in (naive_method, efficient_method, less_efficient_method)),
    (
        linear_log_prob, dict(hidden=zeros(B, S, H), weight=zeros(V, H), index=ids(B, S)), [
            (dict(hidden=zeros(2, 3)), 'hidden'),
            (dict(weight=zeros(V, H + 1)), 'weight.*H = 4'),
            (dict(weight=zeros(V, H).double()), 'weight.*float32'),
            (dict(index=zeros(B, S)), 'index.*int64'),
            (dict(mask=zeros(B)), r'mask \(2,\)'),
            (dict(bias=zeros(3)), 'bias'),
            (dict(bias=zeros(V).double()), 'bias of torch.float64'),
            (dict(hidden=None), 'hidden of NoneType'),
            (dict(softcap=float('inf')), 'softcap = inf'),
            (dict(softcap=-1.), 'softcap = -1.0'),
            (dict(scale=None), 'scale = None'),
            (dict(temperature=0), 'temperature = 0'),
            (dict(chunk_size=2.5), 'chunk_size = 2.5'),
            (dict(chunk_size=0), 'chunk_size = 0'),
            (dict(kept=torch.tensor([[[V, 0]] * S] * B)), 'kept'),
            (dict(kept=ids(B, S)), 'kept'),
            (dict(kept=ids(B, S, 2) + V), 'kept.*sampled token'),
            (dict(index=ids(B, S) + V), 'index from 7 to 7.*V - 1 = 6'),
            (dict(index=ids(B, S) - 100), 'index from -100'),
            (dict(hidden=zeros(4, H), state=zeros(B, S)), 'state of torch.float32'),
            (dict(hidden=zeros(4, H), state=ids(B, S) + 4), 'state from 4 to 4.*M - 1 = 3'),
            (dict(state=ids(B, S)), r'hidden.*\(M, H\)'),
            (dict(rules=TokenRules(penalty=0.)), 'rules.penalty = 0.0'),
            (dict(rules=TokenRules(bias=zeros(V + 1))), r'rules.bias \(8,\)'),
            (dict(rules=TokenRules(first_seen=zeros(B, V + 1).int())), 'rules.first_seen'),
            (dict(rules=TokenRules(kept_bits=zeros(B, S, 1).int())), 'rules.kept_bits .* of torch.int32'),
            (dict(rules=TokenRules(kept_bits=zeros(B, S, 0).byte())), 'at least V = 7'),
            (dict(rules=TokenRules(kept_bits=zeros(B, S, 1).byte())), 'must contain the sampled token'),
        ]
    ),
    (
        linear_divergence,
        dict(
            student=LinearOutput(zeros(B, S, H), zeros(V, H)),
            teacher=LinearOutput(zeros(B, S, H + 1), zeros(V, H + 1))
        ), [
            (dict(divergence='kl'), "divergence = 'kl': must be one of"),
            (dict(mix=1.), 'mix = 1.0: must be below 1'),
            (dict(mix=0), 'mix = 0'),
            (dict(temperature=0.), 'temperature = 0.0'),
            (dict(mask=ones(B)), r'mask \(2,\)'),
            (dict(teacher=LinearOutput(zeros(B, S, H), zeros(V + 1, H))), r'teacher.weight \(8, 4\)'),
            (dict(teacher=LinearOutput(zeros(B, S + 1, H), zeros(V, H))), 'teacher.hidden'),
        ]
    ),
    (
        sampled_divergence, dict.fromkeys(('logp_new', 'logp_old', 'logp_teacher'), zeros(1)), [
            (dict(divergence='kl'), "divergence = 'kl'"),
        ]
    ),
    (
        of_data(grpo_error, grpo_data),
        dict(logp_new=zeros(4, 5), logp_old=zeros(4, 5), logp_ref=zeros(4, 5), adv=zeros(4), weight=ones(4, 5)), [
            (dict(ratio='row'), "ratio = 'row'"),
            (dict(surrogate='clp'), "surrogate = 'clp'"),
            (dict(surrogate=['clip']), 'surrogate'),
            (dict(reduction='mean'), "reduction = 'mean'"),
            (dict(reduction='constant'), 'max_length = None'),
            (dict(num_tokens=5), 'num_tokens = 5'),
            (dict(reduction='token', num_tokens=0), 'num_tokens = 0'),
            (dict(surrogate='sapo', delta=2.), 'delta = 2.0'),
            (dict(delta=1.1), 'delta = 1.1.*1.2'),
            (dict(clip_ratio='0.2'), "clip_ratio = '0.2'"),
            (dict(clip_ratio=-0.1), 'clip_ratio = -0.1'),
            (dict(clip_ratio_high=float('nan')), 'clip_ratio_high = nan'),
            (dict(beta=-1.), 'beta = -1'),
            (dict(kl_type='k4'), "kl_type = 'k4'"),
            (dict(clip_range=0.1), 'clip_range = 0.1: is not an option of the loss; its options are ratio, surrogate'),
            (dict(config=0.2), 'config of float: must be a LossConfig; pass single options by name'),
            (dict(logp_old=zeros(2, 5)), r'logp_old.*\(4, 5\)'),
            (dict(adv=zeros(2)), 'adv'),
            (dict(weight=ones(4, 2)), 'weight'),
            (dict(logp_new=ids(4, 5)), 'logp_new.*int64.*floats'),
            (dict(logp_ref=zeros(5)), r'logp_ref \(5,\)'),
            (dict(adv=ids(4)), 'adv.*int64.*floats'),
            (dict(weight=[1.]), 'weight of list'),
            (dict(adv=None), 'adv of NoneType'),
            (dict(logp_ref=None), 'beta'),
            *(
                (dict(surrogate=name, surrogate_options=options), message) for name, options, message in (
                    ('dro', dict(bet=1.), r"surrogate_options = {'bet': 1.0}: 'bet' is not an option of 'dro'.* beta"),
                    ('clip', dict(delta=2.), "'delta' is not an option of 'clip'; its options are dual_clip"),
                    ('gpg', dict(beta=1.), "'beta' is not an option of 'gpg'; it has no options"),
                    ('clip', dict(dual_clip=1.), r"surrogate_options\['dual_clip'\] = 1.0: .* above 1"),
                    ('dppo_tv', dict(ratio_cap=0.5), r"surrogate_options\['ratio_cap'\] = 0.5: .* of at least 1"),
                    ('dro', dict(beta=None), r"surrogate_options\['beta'\] = None"),
                    ('dro', dict(beta=float('nan')), r"surrogate_options\['beta'\] = nan"),
                    ('kl_cov', dict(share=0.), r"surrogate_options\['share'\] = 0.0: .* above 0"),
                    ('kl_cov', dict(share=1.5), r"surrogate_options\['share'\] = 1.5: must be at most 1"),
                    ('clip_cov', dict(low=5.), r"surrogate_options\['low'\] = 5.0: must be below 'high', 5.0"),
                    ('clip_cov', dict(generator=3), r"options\['generator'\] of int: must be a torch.Generator"),
                    ('vespo', dict(k_neg=0), r"surrogate_options\['k_neg'\] = 0"),
                    ('cpgd', dict(drift=True), r"surrogate_options\['drift'\] = True"),
                )
            ),
            *(
                (dict(ratio='sequence', surrogate=surrogate), "ratio = 'sequence': must be 'token' for surrogate")
                for name in sorted(set(SURROGATES) - {'clip', 'cispo', 'sapo'})
                for surrogate in (name, SURROGATES[name])
            ),
        ]
    ),
    (
        of_data(grpo_policy_error,
                grpo_policy_data), dict(logit_new=LOGIT, logit_old=LOGIT, action=ids(B, S), adv=zeros(B), beta=0), [
                    (dict(logit_old=LOGIT[..., :2]), 'logit_old'),
                ]
    ),
    (
        of_data(rloo_policy_error,
                rloo_policy_data), dict(logit_new=zeros(4, S, V), logit_old=zeros(4, S, V), action=ids(4, S)), [
                    (dict(reward=zeros(1, 4)), 'K = 1'),
                    (dict(reward=zeros(2, 3)), 'K P = B = 4'),
                    (dict(reward=zeros(3)), r'reward \(3,\)'),
                    (dict(reward=zeros(2, 2, 1)), r'\(K, P\)'),
                ]
    ),
    (
        of_data(ppo_policy_error,
                ppo_policy_data), dict(logit_new=zeros(6, V), logit_old=zeros(6, V), action=ids(6), adv=zeros(6)), [
                    *PPO,
                    (dict(action=zeros(6) + 0.5), 'action of torch.float32: must contain integers'),
                ]
    ),
    (
        of_data(ppo_policy_error_continuous, ppo_policy_data_continuous),
        dict(mu_sigma_new=PAIR, mu_sigma_old=PAIR, action=zeros(6, 3), adv=zeros(6)), [
            *PPO,
            (dict(mu_sigma_old=dict(PAIR, mu=zeros(6))), 'mu_sigma_old'),
            (dict(mu_sigma_old=dict(PAIR, sigma=ones(6))), 'mu_sigma_old'),
            (dict(mu_sigma_new=dict(PAIR, sigma=ones(2))), r"mu_sigma_new\['sigma'\] \(2,\): must broadcast.*\(6, 3\)"),
            (dict(mu_sigma_new=zeros(6, 3)), 'mu_sigma_new of Tensor: must be a dict of mu and sigma'),
            (dict(action=zeros(3)), r'action \(3,\): must be numbers of shape \(..., N\)'),
        ]
    ),
    (
        of_data(ppo_error, ppo_data), WHOLE_PPO, [
            (dict({name: None}), name)
            for name in ('logit_new', 'logit_old', 'action', 'adv', 'value_new', 'value_old', 'return_')
        ]
    ),
    (
        of_data(ppo_value_error, ppo_value_data), dict.fromkeys(('value_new', 'value_old'), zeros(2)), [
            (dict(return_=zeros(3)), 'return_'),
        ]
    ),
    (
        of_data(value_error, ppo_value_data), dict.fromkeys(ppo_value_data._fields, zeros(4, 6)), [
            (dict(value_clip=0.), 'value_clip'),
            (dict(return_=zeros(4)), 'return_'),
        ]
    ),
    (
        of_torchtune, TUNED, [
            *((dict({name: TUNED[name][:, :2]}), name) for name in TUNED if name not in ('pi_logprobs', 'phi_values')),
            (dict(padding_masks=ones(B, 2).bool()), 'padding_masks'),
            (dict(value_padding_masks=ones(B, 2).bool()), 'value_padding_masks'),
            (dict(epsilon=-1), 'epsilon = -1'),
        ]
    ),
    (
        gae_advantage, dict(reward=zeros(2, 3), value=zeros(2, 3), weight=zeros(2, 3)), [
            (dict(value=zeros(2, 2)), 'value'),
            (dict(weight=zeros(3)), 'weight'),
            (dict(final_value=zeros(2, 1)), 'final_value'),
            (dict(discount_factor=1.1), 'discount_factor = 1.1'),
            (dict(gae_lambda=-1), 'gae_lambda = -1'),
            (dict(reward=zeros(2)), 'reward'),
        ]
    ),
    (
        return_to_go, dict(reward=zeros(2, 3), discount_factor=0.9), [
            (dict(discount_factor=1.1), 'discount_factor = 1.1'),
            (dict(reward=zeros(2)), r'reward \(2,\)'),
            (dict(reward=ids(2, 3)), 'reward.*int64'),
        ]
    ),
    (
        group_advantage, ROWS, [
            (dict(method='gpro'), 'gpro'),
            (dict(eps=-1), 'eps = -1'),
            (dict(method='opo', length=torch.tensor([1, -1])), 'length.*negative'),
            (dict(method='opo'), 'length = None'),
            (dict(group=zeros(2)), 'group of torch.float32'),
            (dict(reward=zeros(2, 2)), r'\(B, \)'),
        ]
    ),
    (equal_groups, ROWS, [(dict(group=ids(n)), 'group') for n in (1, 3)]),
    (
        step_advantage, GROUPS, [
            (dict(method='opo'), "method = 'opo': must be one of"),
            (dict(return_=ones(2)), r'return_ \(2,\)'),
            (dict(weight=ones(2, 4)), r'weight \(2, 4\)'),
            (dict(group=ids(3)), r'group \(3,\)'),
        ]
    ),
    (
        token_advantage, dict(return_=zeros(2, 3), weight=ones(2, 3)), [
            (dict(method='remx'), "method = 'remx'"),
            (dict(method='remax'), 'baseline of NoneType'),
            (dict(method='optimal_token_baseline'), 'group of NoneType'),
            (dict(method='optimal_token_baseline', group=ids(2)), 'score_norm of NoneType'),
            (dict(method='remax', baseline=zeros(3)), r'baseline \(3,\)'),
        ]
    ),
    (
        sampler_correction, dict(logp=zeros(2, 3), logp_sampler=zeros(2, 3), weight=ones(2, 3)), [
            (dict(level='row'), "level = 'row': must be one of"),
            (dict(bound=0.5), 'bound = 0.5: must be a finite number of at least 1'),
            (dict(logp_sampler=zeros(1, 3)), 'logp_sampler'),
        ]
    ),
    (sequence_mean, dict(x=zeros(3), weight=zeros(3)), [({}, r'\(B, S\)')]),
    (
        kl_estimate, dict(logp_new=zeros(2, 3), logp_ref=zeros(2, 3), kl_type='k3'), [
            (dict(kl_type='k4'), 'k4'),
            (dict(logp_ref=zeros(3)), r'logp_ref \(3,\)'),
        ]
    ),
    (exact_kl, dict(logit_new=zeros(1, 3), logit_ref=zeros(1, 2)), [({}, 'logit_ref')]),
]


@pytest.mark.parametrize(
    'function, arguments, message',
    [(function, {
        **right,
        **change
    }, message) for function, right, wrong in CASES for change, message in wrong]
)
def test_it_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)


@pytest.mark.parametrize('data', [(), (1, 2, 3), range(5), None])
def test_another_number_of_fields(data):
    with pytest.raises(ValueError, match='must be a tuple of logit_new, logit_old, action, adv, weight'):
        ppo_policy_error(data)


def test_another_namedtuple():
    with pytest.raises(ValueError, match='grpo_policy_data.*unknown field logit_ref'):
        ppo_policy_error(grpo_policy_data(LOGIT, LOGIT, LOGIT, ids(B, S), ones(B, S), None), log_prob_fn=naive_method)
