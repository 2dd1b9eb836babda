"""An optimizer whose states lie in the memory of the host, for weights of a GPU."""
from typing import Any, Dict, List

import torch
from torch import nn
from torch.optim import Optimizer


def host_copies(weights: List[nn.Parameter]) -> List[nn.Parameter]:
    """The weights on the host, each with room for its gradient."""
    copies = [nn.Parameter(torch.empty_like(p, device='cpu', pin_memory=p.is_cuda)) for p in weights]
    for copy in copies:
        copy.grad = torch.empty_like(copy, pin_memory=copy.is_pinned())
    return copies


class OnHost(Optimizer):
    """Takes the steps of an optimizer of ``host_copies`` for the weights: gradients and weights go to the host, and the
    new weights back. Its state is that of the other one."""

    def __init__(self, optimizer: Optimizer, weights: List[nn.Parameter], copies: List[nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._pairs = [(p, copy, copy.grad) for p, copy in zip(weights, copies)]
        of_copy = dict(zip(copies, weights))
        sections = [dict(x, params=[of_copy[copy] for copy in x['params']]) for x in optimizer.param_groups]
        super().__init__(sections, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for p, copy, grad in self._pairs:
            copy.copy_(p)  # others may have changed it
            copy.grad = None if p.grad is None else grad.copy_(p.grad)
        self._tell(self, self.optimizer)
        self.optimizer.step()
        for p, copy, _ in self._pairs:
            if p.grad is not None:
                p.copy_(copy, non_blocking=True)  # the next copy in the other direction waits for it

    def state_dict(self) -> Dict[str, Any]:
        self._tell(self, self.optimizer)
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        self._tell(self.optimizer, self)

    @staticmethod
    def _tell(source: Optimizer, target: Optimizer) -> None:
        """Give the settings of all sections, such as the learning rate, to another optimizer."""
        for given, taken in zip(source.param_groups, target.param_groups):
            taken.update({name: value for name, value in given.items() if name != 'params'})
