from collections import namedtuple
from typing import Optional, Tuple

from torch import Tensor

from .reduce import masked_mean, reduce_loss

supervised_data = namedtuple('supervised_data', ['logp', 'weight'])
supervised_data.__doc__ = 'Log-probabilities (B, S) of demonstrated tokens, in nats, and their weights.'
supervised_info = namedtuple('supervised_info', ['nll'])
supervised_info.__doc__ = 'Mean negative log-probability of the tokens that count, in nats.'


def supervised_error(
        data: supervised_data,
        reduction: str = 'sequence',
        max_length: Optional[int] = None,
        num_tokens: Optional[float] = None,
        phi: bool = False,
) -> Tuple[Tensor, supervised_info]:
    """The loss of supervised learning: the negative log-probability of demonstrated tokens. With ``phi`` that of each
    token is multiplied by p (1 - p) of its probability p, without a gradient (CHORD, https://arxiv.org/abs/2508.11408).
    The other options are those of ``reduce_loss``."""
    p = data.logp.detach().exp()
    of_token = -data.logp * (p * (1 - p)) if phi else -data.logp
    loss = reduce_loss(of_token, data.weight, reduction, max_length, num_tokens)
    return loss, supervised_info(-masked_mean(data.logp.detach(), data.weight).item())
