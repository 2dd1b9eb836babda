from .grpo import GRPOCommandModePolicy, GRPOPolicy
from .grpo_config import check_sections
from .ppo_kl import PPOKLCommandModePolicy, PPOKLPolicy
