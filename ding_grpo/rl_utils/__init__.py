"""Pure functions on tensors in DI-engine's conventions: a namedtuple goes in, ``(loss, info)`` comes out."""
from .advantage import ADVANTAGE_METHODS, equal_groups, group_advantage
from .grpo import grpo_data, grpo_error, grpo_info, grpo_policy_data, grpo_policy_error
from .kl import KL_TYPES, calculate_kl_div, kl_estimate
from .log_prob import LogProbFunction, efficient_method, entropy, less_efficient_method, naive_method
from .reduce import masked_mean, sequence_mean
