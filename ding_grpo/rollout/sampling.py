from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 256  # tokens of which one sum is kept while drawing


class Sampling(NamedTuple):
    """
    Overview:
        The distribution that tokens are sampled from, made of the model's logits: divided by the temperature, cut to
        the ``top_k`` likeliest tokens, and of those to the fewest whose probabilities sum to ``top_p``. What is kept
        is stored with each token: a recomputed set may lack the taken token after a tiny change of the weights.
    """
    temperature: float = 1.0
    top_k: Optional[int] = None
    top_p: Optional[float] = None

    def restrict(self, logit: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Overview:
            Logits of the distribution to be sampled from, likeliest first if it is restricted.
        Arguments:
            - logit (:obj:`torch.FloatTensor`): The model's logits.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits over the K tokens kept; -inf on those that ``top_p`` drops.
            - kept (:obj:`Optional[torch.LongTensor]`): Ids of the tokens kept, -1 on those dropped; None if all are.
        Shapes:
            - logit (:obj:`torch.FloatTensor`): :math:`(B, V)`, then :math:`(B, K)`
            - kept (:obj:`torch.LongTensor`): :math:`(B, K)`
        """
        logit = self._scale(logit)
        if self.top_k is None:
            return logit, None
        logit, kept = logit.topk(min(self.top_k, logit.shape[-1]), dim=-1)  # sorted, (B, K)
        if self.top_p is not None:
            probability = logit.softmax(-1)
            before = probability.cumsum(-1) - probability  # mass of the likelier ones; 0 for the first
            dropped = before >= self.top_p
            logit = logit.masked_fill(dropped, float('-inf'))
            kept = kept.masked_fill(dropped, -1)
        return logit, kept

    def reuse(self, logit: Tensor, action: Tensor, kept: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """
        Overview:
            Logits of other weights over the tokens that were kept when ``action`` was sampled.
        Arguments:
            - logit (:obj:`torch.FloatTensor`): The model's logits.
            - action (:obj:`torch.LongTensor`): The tokens taken.
            - kept (:obj:`Optional[torch.LongTensor]`): As ``restrict`` returned it for each token.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits of the distribution.
            - index (:obj:`torch.LongTensor`): Where ``action`` stands in it.
        Shapes:
            - logit (:obj:`torch.FloatTensor`): :math:`(B, S, V)`, then :math:`(B, S, K)`
            - action (:obj:`torch.LongTensor`): :math:`(B, S)`
            - kept (:obj:`torch.LongTensor`): :math:`(B, S, K)`
            - index (:obj:`torch.LongTensor`): :math:`(B, S)`
        """
        logit = self._scale(logit)
        if kept is None:
            return logit, action
        dropped = kept < 0
        logit = logit.gather(-1, kept.clamp(min=0)).masked_fill(dropped, float('-inf'))  # (B, S, K)
        return logit, (kept == action.unsqueeze(-1)).to(torch.uint8).argmax(-1)

    def _scale(self, logit: Tensor) -> Tensor:
        logit = logit.to(torch.promote_types(logit.dtype, torch.float32))
        return logit if self.temperature == 1 else logit / self.temperature


def draw(logit: Tensor, uniform: Tensor) -> Tuple[Tensor, Tensor]:
    """
    Overview:
        Sample by inverting the cumulative distribution, first of blocks of the vocabulary, then within one: one \
        random number a row, whatever the vocabulary. Sums are of float64.
    Arguments:
        - logit (:obj:`torch.FloatTensor`): Logits; -inf is never drawn.
        - uniform (:obj:`torch.DoubleTensor`): Numbers in [0, 1).
    Returns:
        - index (:obj:`torch.LongTensor`): The drawn positions.
        - logp (:obj:`torch.FloatTensor`): Their log-probabilities, in nats; NaN in a row whose logits make no \
            distribution, for they are NaN, infinite, or all -inf, and whose position is any.
    Shapes:
        - logit (:obj:`torch.FloatTensor`): :math:`(B, K)`
        - uniform (:obj:`torch.DoubleTensor`): :math:`(B, )`
        - index (:obj:`torch.LongTensor`): :math:`(B, )`
        - logp (:obj:`torch.FloatTensor`): :math:`(B, )`
    """
    shifted = logit - logit.amax(-1, keepdim=True)  # (B, K)
    mass = shifted.exp()
    if mass.shape[1] <= BLOCK:
        up_to = mass.cumsum(-1, dtype=torch.double)
        total = up_to[:, -1]
        point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        index = torch.searchsorted(up_to, point.unsqueeze(1), right=True).clamp_(max=mass.shape[1] - 1)  # NaN: any
        return index.squeeze(1), shifted.gather(1, index).squeeze(1) - total.log().to(shifted.dtype)
    if mass.shape[1] % BLOCK:
        mass = F.pad(mass, (0, -mass.shape[1] % BLOCK))
    mass = mass.unflatten(1, (-1, BLOCK))  # (B, blocks, BLOCK)
    up_to = mass.sum(-1, dtype=torch.double).cumsum(-1)  # (B, blocks)
    total = up_to[:, -1]
    point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(1)
    block = torch.searchsorted(up_to, point, right=True).clamp_(max=mass.shape[1] - 1)  # (B, 1)
    before = F.pad(up_to, (1, 0)).gather(1, block)
    within = mass.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1).double()  # (B, BLOCK)
    last = BLOCK - 1 - (within > 0).flip(1).long().argmax(1)  # rounding must not lead behind it
    index = torch.searchsorted(before + within.cumsum(-1), point, right=True).squeeze(1)
    index = (block.squeeze(1) * BLOCK + torch.minimum(index, last)).clamp_(max=logit.shape[1] - 1)
    return index, shifted.gather(1, index.unsqueeze(1)).squeeze(1) - total.log().to(shifted.dtype)
