from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 256  # tokens per partial sum in ``draw``


class Sampling(NamedTuple):
    """
    Overview:
        The sampling distribution. The model's logits are divided by the temperature, then restricted to the ``top_k``
        most probable tokens, then to the smallest set of these whose probabilities sum to ``top_p``. The kept tokens
        are stored with each sampled token: after a tiny change of the weights, a recomputed set may lack it.
    """
    temperature: float = 1.0
    top_k: Optional[int] = None
    top_p: Optional[float] = None

    def restrict(self, logit: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """
        Overview:
            Logits of the sampling distribution; if it is restricted, in descending order of probability.
        Arguments:
            - logit (:obj:`torch.FloatTensor`): The model's logits.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits over the K kept tokens; -inf for those that ``top_p`` drops.
            - kept (:obj:`Optional[torch.LongTensor]`): Ids of the kept tokens, -1 for those that ``top_p`` drops; \
                None if all tokens are kept.
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
            before = probability.cumsum(-1) - probability  # mass of the more probable tokens; 0 for the first
            dropped = before >= self.top_p
            logit = logit.masked_fill(dropped, float('-inf'))
            kept = kept.masked_fill(dropped, -1)
        return logit, kept

    def reuse(self, logit: Tensor, action: Tensor, kept: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """
        Overview:
            Logits of a model with changed weights, over the tokens that were kept when ``action`` was sampled.
        Arguments:
            - logit (:obj:`torch.FloatTensor`): The model's logits.
            - action (:obj:`torch.LongTensor`): The sampled tokens.
            - kept (:obj:`Optional[torch.LongTensor]`): The result of ``restrict`` for each token.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits of the distribution.
            - index (:obj:`torch.LongTensor`): Position of ``action`` in the distribution.
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
        Sample by inverting the cumulative distribution, first over blocks of the vocabulary, then within a block. It \
        needs one random number per row for any vocabulary size. Sums are in float64.
    Arguments:
        - logit (:obj:`torch.FloatTensor`): Logits; a position with -inf is never drawn.
        - uniform (:obj:`torch.DoubleTensor`): Random numbers in [0, 1).
    Returns:
        - index (:obj:`torch.LongTensor`): The drawn positions.
        - logp (:obj:`torch.FloatTensor`): Their log-probabilities, in nats. NaN, with an arbitrary position, in a row \
            whose logits do not define a distribution: they are NaN, infinite, or all -inf.
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
    last = BLOCK - 1 - (within > 0).flip(1).long().argmax(1)  # rounding must not select a position after it
    index = torch.searchsorted(before + within.cumsum(-1), point, right=True).squeeze(1)
    index = (block.squeeze(1) * BLOCK + torch.minimum(index, last)).clamp_(max=logit.shape[1] - 1)
    return index, shifted.gather(1, index.unsqueeze(1)).squeeze(1) - total.log().to(shifted.dtype)


def force(logit: Tensor, kept: Optional[Tensor], row: int, token: int, index: Tensor, logp: Tensor) -> None:
    """
    Overview:
        Replace what ``draw`` has drawn for one row by a token, in place.
    Arguments:
        - logit (:obj:`torch.FloatTensor`): Logits of the sampling distribution.
        - kept (:obj:`Optional[torch.LongTensor]`): Ids of its tokens, see ``Sampling.restrict``.
        - row (:obj:`int`): The row.
        - token (:obj:`int`): The token.
        - index (:obj:`torch.LongTensor`): The drawn positions.
        - logp (:obj:`torch.FloatTensor`): Their log-probabilities.
    Shapes:
        - logit (:obj:`torch.FloatTensor`): :math:`(B, K)`
        - kept (:obj:`torch.LongTensor`): :math:`(B, K)`
        - index (:obj:`torch.LongTensor`): :math:`(B, )`
        - logp (:obj:`torch.FloatTensor`): :math:`(B, )`
    Raises:
        - ValueError: If the distribution does not contain the token.
    """
    ids = torch.arange(logit.shape[1], device=logit.device) if kept is None else kept[row]
    places = [place for place, i in enumerate(ids.tolist()) if i == token]
    if not places or logit[row, places[0]] == float('-inf'):
        raise ValueError(f'token {token}: the sampling distribution does not contain it')
    if index[row] != places[0]:
        index[row], logp[row] = places[0], logit[row].log_softmax(-1)[places[0]]
