from .grpo import GRPOCommandModePolicy, GRPOPolicy
