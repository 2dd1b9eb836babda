from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ding_grpo.rl_utils.products import linear


class FastLinear(nn.Linear):
    """
    Overview:
        ``torch.nn.Linear`` by ``ding_grpo.rl_utils.products``.
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class FastConv1D(Conv1D):
    """
    Overview:
        The linear layer of GPT-2, whose weight lies the other way round, by ``ding_grpo.rl_utils.products``.
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


def make_fast(module: nn.Module) -> None:
    """
    Overview:
        Let the linear layers below a module be computed faster; nothing else of them changes, neither parameters nor \
        their names.
    Arguments:
        - module (:obj:`torch.nn.Module`): Changed in place.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = FastLinear
        elif type(layer) is Conv1D:
            layer.__class__ = FastConv1D
