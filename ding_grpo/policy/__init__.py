from .grpo import GRPOCommandModePolicy, GRPOPolicy
from .grpo_config import check_sections
