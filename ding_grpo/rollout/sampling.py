from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor


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


def draw(logit: Tensor, uniform: Tensor) -> Tensor:
    """
    Overview:
        Sample by inverting the cumulative distribution in float64: one random number a row, whatever the vocabulary.
    Arguments:
        - logit (:obj:`torch.FloatTensor`): Logits; -inf is never drawn.
        - uniform (:obj:`torch.DoubleTensor`): Numbers in [0, 1).
    Returns:
        - index (:obj:`torch.LongTensor`): The drawn positions.
    Shapes:
        - logit (:obj:`torch.FloatTensor`): :math:`(B, K)`
        - uniform (:obj:`torch.DoubleTensor`): :math:`(B, )`
        - index (:obj:`torch.LongTensor`): :math:`(B, )`
    """
    cumulative = logit.double().softmax(-1).cumsum(-1)  # (B, K)
    total = cumulative[:, -1]
    point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point.unsqueeze(-1), right=True).squeeze(-1)
