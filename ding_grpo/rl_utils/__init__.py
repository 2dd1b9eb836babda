"""Pure functions on tensors, in DI-engine's convention: a namedtuple of inputs to ``(loss, info)``."""
from .advantage import ADVANTAGE_METHODS, STEP_ADVANTAGE_METHODS, anchor_advantage, equal_groups, group_advantage, \
    return_to_go, step_advantage
from .grpo import LOSS_PRESETS, RATIOS, SURROGATES, Surrogate, cispo_surrogate, clip_surrogate, grpo_data, grpo_error, \
    grpo_info, grpo_policy_data, grpo_policy_error, sapo_surrogate
from .kl import KL_TYPES, calculate_kl_div, exact_kl, kl_estimate, straight_through_kl
from .linear_log_prob import linear_log_prob
from .log_prob import LogProbFunction, efficient_method, entropy, less_efficient_method, naive_method
from .ppo import ppo_data, ppo_data_continuous, ppo_error, ppo_error_continuous, ppo_info, ppo_loss, ppo_policy_data, \
    ppo_policy_data_continuous, ppo_policy_error, ppo_policy_error_continuous, ppo_policy_loss, ppo_value_data, \
    ppo_value_error, shape_fn_ppo
from .ppo_loss import PPOLoss
from .reduce import REDUCTIONS, masked_mean, reduce_loss, row_mean, sequence_mean
from .rloo import rloo_info, rloo_policy_data, rloo_policy_error
from .value import explained_variance, gae_advantage, value_error, value_info
