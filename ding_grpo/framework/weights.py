from typing import Any, Dict

from ding_grpo.policy import GRPOPolicy


class Weights:
    """The weights of a policy with their age, for DI-engine's ``ModelExchanger(Weights(policy))``, which reads and
    loads ``state_dict``. Groups are sampled by what has arrived last, and know how old it is."""

    def __init__(self, policy: GRPOPolicy) -> None:
        self._policy = policy

    def state_dict(self) -> Dict[str, Any]:
        policy = self._policy
        # copies: a thread sends them while the next update changes the weights
        weights = {name: value.to('cpu', copy=True) for name, value in policy.whole_model.state_dict().items()}
        return dict(weights=weights, age=policy.age)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._policy.take(**state)
