"""A wrong argument raises a ValueError that names it and its value."""
import re

import pytest
import torch

from ding_grpo.rl_utils import (
    SURROGATES, LinearOutput, PPOLoss, TokenRules, efficient_method, equal_groups, exact_kl, gae_advantage, grpo_data,
    grpo_error, grpo_policy_data, grpo_policy_error, group_advantage, kl_estimate, less_efficient_method, high_entropy,
    linear_divergence, linear_log_prob, naive_method, ppo_data, ppo_error, ppo_policy_data, ppo_policy_data_continuous,
    ppo_policy_error, ppo_policy_error_continuous, ppo_value_data, ppo_value_error, preference_data, preference_error,
    return_to_go, rloo_policy_data, rloo_policy_error, sampled_divergence, sampler_correction, sequence_mean,
    step_advantage, token_advantage, tree_advantage, value_error
)

B, S, V, H = 2, 3, 7, 4
zeros, ones = torch.zeros, torch.ones


def ids(*shape):
    return zeros(shape, dtype=torch.long)


def refuses(function, right, *special, **wrong):
    """Cases of a function: each of the wrong values of an argument, and special changes with their message."""
    changes = [({name: value}, named(name, value)) for name, values in wrong.items() for value in values]
    return [(function, {**right, **change}, message) for change, message in (*changes, *special)]


def named(name, value):
    given = rf'( = {re.escape(repr(value))}| of {type(value).__name__})'
    return name if isinstance(value, torch.Tensor) else name + given


def of_data(error, data):
    """A loss as a function of the fields of its data and of its options."""

    def call(**given):
        return error(data(*(given.pop(name, None) for name in data._fields)), **given)

    return call


def of_torchtune(**given):
    names = ('epsilon', 'value_clip_range', 'value_coeff')
    return PPOLoss(**{name: given.pop(name) for name in names if name in given})(**given)


LOGIT = zeros(B, S, V)
PAIR = dict(mu=zeros(6, 3), sigma=ones(6, 3))
ROWS = dict(reward=zeros(2), group=ids(2))
PPO = dict(adv=[zeros(5)], weight=[zeros(6, 2)], kl_type=['k4'], dual_clip=[0.5], clip_ratio=[-1])
WHOLE_PPO = dict(
    zip(
        ppo_data._fields,
        (zeros(6, V), zeros(6, V), ids(6), zeros(6), zeros(6), zeros(6), zeros(6), None, None),
    )
)
TUNED = dict.fromkeys(('pi_old_logprobs', 'pi_logprobs', 'advantages'), zeros(B, S))
TUNED.update(dict.fromkeys(('phi_old_values', 'phi_values', 'returns'), zeros(B, S + 1)))
OF_SURROGATES = [
    ('dro', dict(bet=1.), r"surrogate_options = {'bet': 1.0}: 'bet' is not an option of 'dro'.* beta"),
    ('clip', dict(delta=2.), "'delta' is not an option of 'clip'; its options are dual_clip"),
    ('gpg', dict(beta=1.), "'beta' is not an option of 'gpg'; it has no options"),
    ('clip', dict(dual_clip=1.), r"surrogate_options\['dual_clip'\] = 1.0: .* above 1"),
    ('dppo_tv', dict(ratio_cap=0.5), r"surrogate_options\['ratio_cap'\] = 0.5: .* of at least 1"),
    ('dro', dict(beta=None), r"surrogate_options\['beta'\] = None"),
    ('kl_cov', dict(share=0.), r"surrogate_options\['share'\] = 0.0: .* above 0"),
    ('kl_cov', dict(share=1.5), r"surrogate_options\['share'\] = 1.5: must be at most 1"),
    ('clip_cov', dict(low=5.), r"surrogate_options\['low'\] = 5.0: must be below 'high', 5.0"),
    ('clip_cov', dict(generator=3), r"options\['generator'\] of int: must be a torch.Generator"),
    ('vespo', dict(k_neg=0), r"surrogate_options\['k_neg'\] = 0"),
    ('cpgd', dict(drift=True), r"surrogate_options\['drift'\] = True"),
    ('fipo', dict(half_life=0.), 'half_life'),
    ('fipo', dict(range_low=1.5), 'range_low'),
    ('fipo', dict(safety=0.5), 'safety'),
    ('fipo', dict(dual_clip=1.), 'dual_clip'),
    ('m2po', dict(budget=0.), 'budget'),
    ('real', dict(tau=0.), 'tau'),
    ('flash_reinforce', dict(delta=-1.), 'delta'),
]
CASES = [
    case for method in (naive_method, efficient_method, less_efficient_method) for case in refuses(
        method,
        dict(logits=zeros(B, S, 5), index=ids(B, S)),
        (dict(logits=zeros(5), index=ids()), r'logits \(5,\)'),
        logits=[ids(B, S, 5), None],
        index=[ids(B, 4), zeros(B, S), ids(B, S) - 100, ids(B, S) + 5],
    )
] + [
    *refuses(
        linear_log_prob,
        dict(hidden=zeros(B, S, H), weight=zeros(V, H), index=ids(B, S)),
        (dict(hidden=zeros(4, H), state=zeros(B, S)), 'state of torch.float32'),
        (dict(hidden=zeros(4, H), state=ids(B, S) + 4), 'state from 4 to 4.*M - 1 = 3'),
        (dict(state=ids(B, S)), r'hidden.*\(M, H\)'),
        (dict(rules=TokenRules(penalty=0.)), 'rules.penalty = 0.0'),
        (dict(rules=TokenRules(bias=zeros(V + 1))), r'rules.bias \(8,\)'),
        (dict(rules=TokenRules(first_seen=zeros(B, V + 1).int())), 'rules.first_seen'),
        (dict(rules=TokenRules(kept_bits=zeros(B, S, 1).int())), 'rules.kept_bits .* of torch.int32'),
        (dict(rules=TokenRules(kept_bits=zeros(B, S, 0).byte())), 'at least V = 7'),
        (dict(rules=TokenRules(kept_bits=zeros(B, S, 1).byte())), 'must contain the sampled token'),
        (dict(kept=ids(B, S, 2) + V), 'kept.*sampled token'),
        hidden=[zeros(2, 3), None],
        weight=[zeros(V, H + 1), zeros(V, H).double()],
        index=[zeros(B, S), ids(B, S) + V, ids(B, S) - 100],
        mask=[zeros(B)],
        bias=[zeros(3), zeros(V).double()],
        softcap=[float('inf'), -1.],
        scale=[None],
        temperature=[0],
        chunk_size=[2.5, 0],
        kept=[torch.tensor([[[V, 0]] * S] * B), ids(B, S)],
    ),
    *refuses(
        linear_divergence,
        dict(
            student=LinearOutput(zeros(B, S, H), zeros(V, H)),
            teacher=LinearOutput(zeros(B, S, H + 1), zeros(V, H + 1))
        ),
        (dict(teacher=LinearOutput(zeros(B, S, H), zeros(V + 1, H))), r'teacher.weight \(8, 4\)'),
        (dict(teacher=LinearOutput(zeros(B, S + 1, H), zeros(V, H))), 'teacher.hidden'),
        divergence=['kl'],
        mix=[1., 0],
        temperature=[0.],
        mask=[ones(B)],
    ),
    *refuses(
        sampled_divergence,
        dict.fromkeys(('logp_new', 'logp_old', 'logp_teacher'), zeros(1)),
        divergence=['kl'],
    ),
    *refuses(
        of_data(grpo_error, grpo_data),
        dict(logp_new=zeros(4, 5), logp_old=zeros(4, 5), logp_ref=zeros(4, 5), adv=zeros(4), weight=ones(4, 5)),
        (dict(reduction='constant'), 'max_length = None'),
        (dict(num_tokens=5), 'num_tokens = 5'),
        (dict(reduction='token', num_tokens=0), 'num_tokens = 0'),
        (dict(surrogate='sapo', delta=2.), 'delta = 2.0'),
        (dict(clip_range=0.1), 'clip_range = 0.1: is not an option of the loss; its options are ratio, surrogate'),
        (dict(logp_ref=None), 'beta'),
        (dict(surrogate='real'), 'group'),
        *((dict(surrogate=name, surrogate_options=options), message) for name, options, message in OF_SURROGATES),
        *(
            (dict(ratio='sequence', surrogate=surrogate), "ratio = 'sequence': must be 'token' for surrogate")
            for name in sorted(set(SURROGATES) - {'clip', 'cispo', 'sapo'}) for surrogate in (name, SURROGATES[name])
        ),
        ratio=['row'],
        surrogate=['clp', ['clip']],
        reduction=['mean'],
        delta=[1.1],
        clip_ratio=['0.2', -0.1],
        clip_ratio_high=[float('nan')],
        beta=[-1.],
        kl_type=['k4'],
        config=[0.2],
        logp_old=[zeros(2, 5)],
        logp_new=[ids(4, 5)],
        logp_ref=[zeros(5)],
        adv=[zeros(2), ids(4), None],
        weight=[ones(4, 2), [1.]],
    ),
    *refuses(
        of_data(grpo_policy_error, grpo_policy_data),
        dict(logit_new=LOGIT, logit_old=LOGIT, action=ids(B, S), adv=zeros(B), beta=0),
        logit_old=[LOGIT[..., :2]],
    ),
    *refuses(
        of_data(rloo_policy_error, rloo_policy_data),
        dict(logit_new=zeros(4, S, V), logit_old=zeros(4, S, V), action=ids(4, S)),
        (dict(reward=zeros(1, 4)), 'K = 1'),
        (dict(reward=zeros(2, 3)), 'K P = B = 4'),
        reward=[zeros(3), zeros(2, 2, 1)],
    ),
    *refuses(
        of_data(ppo_policy_error, ppo_policy_data),
        dict(logit_new=zeros(6, V), logit_old=zeros(6, V), action=ids(6), adv=zeros(6)),
        **PPO,
        action=[zeros(6) + 0.5],
    ),
    *refuses(
        of_data(ppo_policy_error_continuous, ppo_policy_data_continuous),
        dict(mu_sigma_new=PAIR, mu_sigma_old=PAIR, action=zeros(6, 3), adv=zeros(6)),
        (dict(mu_sigma_old=dict(PAIR, mu=zeros(6))), 'mu_sigma_old'),
        (dict(mu_sigma_old=dict(PAIR, sigma=ones(6))), 'mu_sigma_old'),
        (dict(mu_sigma_new=dict(PAIR, sigma=ones(2))), r"mu_sigma_new\['sigma'\] \(2,\): must broadcast.*\(6, 3\)"),
        **PPO,
        mu_sigma_new=[zeros(6, 3)],
        action=[zeros(3)],
    ),
    *refuses(
        of_data(ppo_error, ppo_data),
        WHOLE_PPO,
        **{name: [None]
           for name, value in WHOLE_PPO.items() if value is not None},
    ),
    *refuses(
        of_data(ppo_value_error, ppo_value_data),
        dict.fromkeys(('value_new', 'value_old'), zeros(2)),
        return_=[zeros(3)],
    ),
    *refuses(
        of_data(value_error, ppo_value_data),
        dict.fromkeys(ppo_value_data._fields, zeros(4, 6)),
        value_clip=[0.],
        return_=[zeros(4)],
    ),
    *refuses(
        of_torchtune,
        TUNED,
        **{name: [TUNED[name][:, :2]]
           for name in TUNED if name not in ('pi_logprobs', 'phi_values')},
        padding_masks=[ones(B, 2).bool()],
        value_padding_masks=[ones(B, 2).bool()],
        epsilon=[-1],
    ),
    *refuses(
        gae_advantage,
        dict(reward=zeros(2, 3), value=zeros(2, 3), weight=zeros(2, 3)),
        value=[zeros(2, 2)],
        weight=[zeros(3)],
        final_value=[zeros(2, 1)],
        discount_factor=[1.1],
        gae_lambda=[-1],
        reward=[zeros(2)],
    ),
    *refuses(
        return_to_go,
        dict(reward=zeros(2, 3), discount_factor=0.9),
        discount_factor=[1.1],
        reward=[zeros(2), ids(2, 3)],
    ),
    *refuses(
        group_advantage,
        ROWS,
        (dict(method='opo', length=torch.tensor([1, -1])), 'length.*negative'),
        (dict(method='opo'), 'length = None'),
        method=['gpro'],
        eps=[-1],
        group=[zeros(2)],
        reward=[zeros(2, 2)],
    ),
    *refuses(equal_groups, ROWS, group=[ids(1), ids(3)]),
    *refuses(
        step_advantage,
        dict(return_=ones(2, 3), weight=ones(2, 3), group=ids(2), method='grpo'),
        method=['opo'],
        return_=[ones(2)],
        weight=[ones(2, 4)],
        group=[ids(3)],
    ),
    *refuses(
        token_advantage,
        dict(return_=zeros(2, 3), weight=ones(2, 3)),
        (dict(method='remax'), 'baseline of NoneType'),
        (dict(method='optimal_token_baseline'), 'group of NoneType'),
        (dict(method='optimal_token_baseline', group=ids(2)), 'score_norm of NoneType'),
        (dict(method='remax', baseline=zeros(3)), r'baseline \(3,\)'),
        method=['remx'],
    ),
    *refuses(
        tree_advantage,
        dict(return_=zeros(2), leader=ids(2, 3), group=ids(2)),
        method=['batch'],
        leader=[zeros(2, 3), ids(1, 3)],
    ),
    *refuses(
        of_data(preference_error, preference_data),
        dict(logp=zeros(2, 2), logp_ref=zeros(2, 2), weight=ones(2, 2), **ROWS),
        beta=[0],
        weight=[ones(1, 1)],
        group=[zeros(2)],
    ),
    *refuses(high_entropy, dict(entropy=zeros(2, 3), weight=ones(2, 3)), share=[1.5]),
    *refuses(
        sampler_correction,
        dict(logp=zeros(2, 3), logp_sampler=zeros(2, 3), weight=ones(2, 3)),
        level=['row'],
        bound=[0.5],
        logp_sampler=[zeros(1, 3)],
    ),
    *refuses(sequence_mean, dict(x=zeros(3), weight=zeros(3)), ({}, r'\(B, S\)')),
    *refuses(kl_estimate, dict(logp_new=zeros(3), logp_ref=zeros(3), kl_type='k3'), kl_type=['k4'], logp_ref=[ids(3)]),
    *refuses(exact_kl, dict(logit_new=zeros(1, 3), logit_ref=zeros(1, 2)), ({}, 'logit_ref')),
]


@pytest.mark.parametrize('function, arguments, message', CASES)
def test_it_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments)


@pytest.mark.parametrize('data', [(), range(5), None])
def test_another_number_of_fields(data):
    with pytest.raises(ValueError, match='must be a tuple of logit_new, logit_old, action, adv, weight'):
        ppo_policy_error(data)


def test_another_namedtuple():
    with pytest.raises(ValueError, match='grpo_policy_data.*unknown field logit_ref'):
        ppo_policy_error(grpo_policy_data(LOGIT, LOGIT, LOGIT, ids(B, S), ones(B, S), None), log_prob_fn=naive_method)
