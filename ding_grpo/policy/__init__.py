from .grpo import GRPOCommandModePolicy, GRPOPolicy, is_grpo
from .config_keys import check_exp_name, check_main_config, check_sections
from .grpo_check import check_replay
from .ppo_kl import PPOKLCommandModePolicy, PPOKLPolicy
