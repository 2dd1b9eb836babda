from .grpo import GRPOCommandModePolicy, GRPOPolicy
from .grpo_config import check_exp_name, check_main_config, check_sections
from .ppo_kl import PPOKLCommandModePolicy, PPOKLPolicy
