"""
Pure functions on tensors, in DI-engine's convention: a namedtuple of inputs to ``(loss, info)``. B is the number of
rows, S that of their tokens or steps, V the size of the vocabulary. ``weight`` is 1 where a token counts, else 0;
``group`` has integer ids in any order, and groups may differ in size. A wrong shape, type or option raises a
``ValueError`` that names it.
"""
from .advantage import ADVANTAGE_METHODS, STEP_ADVANTAGE_METHODS, anchor_advantage, equal_groups, group_advantage, \
    return_to_go, step_advantage
from .distillation import DIVERGENCES, LinearOutput, distillation_data, distillation_error, distillation_info, \
    linear_divergence, sampled_divergence
from .grpo import grpo_data, grpo_error, grpo_info, grpo_policy_data, grpo_policy_error
from .kl import KL_TYPES, calculate_kl_div, exact_kl, kl_estimate, straight_through_kl
from .log_probs.linear_log_prob import linear_log_prob
from .log_probs.log_prob import LogProbFunction, efficient_method, entropy, less_efficient_method, naive_method, \
    sum_of_squares
from .log_probs.token_rules import TokenRules, unpack_bits
from .loss_config import RATIOS, LossConfig
from .off_policy import CORRECTIONS, OUTSIDE, divergent_rows, far_rows, sampler_correction
from .ppo_losses.continuous import ppo_error_continuous, ppo_policy_error_continuous
from .ppo_losses.discrete import ppo_error, ppo_policy_error, shape_fn_ppo
from .ppo_losses.fields import ppo_data, ppo_data_continuous, ppo_policy_data, ppo_policy_data_continuous, \
    ppo_value_data
from .ppo_losses.ppo_loss import PPOLoss
from .ppo_losses.shared import ppo_info, ppo_loss, ppo_policy_loss, ppo_value_error
from .preference import preference_data, preference_error, preference_info
from .presets import LOSS_PRESETS, Preset
from .reduce import REDUCTIONS, masked_mean, reduce_loss, row_mean, sequence_mean
from .rloo import rloo_info, rloo_policy_data, rloo_policy_error
from .supervised import supervised_data, supervised_error, supervised_info
from .surrogates import SURROGATES, Limits, Surrogate, Traits, check_surrogate_options, cispo_surrogate, \
    clip_cov_surrogate, clip_surrogate, cpgd_surrogate, dppo_kl_surrogate, dppo_tv_surrogate, dro_surrogate, \
    fipo_surrogate, flash_reinforce_surrogate, geo_mean_surrogate, gpg_surrogate, kl_cov_surrogate, \
    m2po_surrogate, real_surrogate, register_surrogate, sapo_surrogate, surrogate_arguments, surrogate_function, \
    surrogate_traits, vespo_surrogate
from .token_advantage import TOKEN_ADVANTAGE_METHODS, high_entropy, token_advantage
from .tree_advantage import nodes, tree_advantage
from .value import explained_variance, gae_advantage, value_error, value_info
