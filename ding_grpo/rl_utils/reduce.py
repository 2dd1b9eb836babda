from torch import Tensor


def masked_mean(x: Tensor, weight: Tensor) -> Tensor:
    """
    Overview:
        Mean over all tokens that count: sum(x * weight) / sum(weight); 0 when none counts.
    Arguments:
        - x (:obj:`torch.FloatTensor`): Per-token values. Where ``weight`` is 0 they may be anything, even NaN.
        - weight (:obj:`torch.FloatTensor`): 1 where a token counts, else 0.
    Returns:
        - mean (:obj:`torch.FloatTensor`): 0-dim tensor.
    Shapes:
        - x (:obj:`torch.FloatTensor`): :math:`(B, S)`
        - weight (:obj:`torch.FloatTensor`): :math:`(B, S)`
    """
    tokens = weight.sum()
    return _masked(x, weight).sum() / tokens.masked_fill(tokens == 0, 1)


def sequence_mean(x: Tensor, weight: Tensor) -> Tensor:
    """
    Overview:
        Mean over rows of each row's mean over the tokens that count (equation 3 of \
        https://arxiv.org/abs/2402.03300); a row in which none counts contributes 0.
    Arguments:
        - x (:obj:`torch.FloatTensor`): Per-token values, as in ``masked_mean``.
        - weight (:obj:`torch.FloatTensor`): As in ``masked_mean``.
    Returns:
        - mean (:obj:`torch.FloatTensor`): 0-dim tensor.
    Shapes:
        As in ``masked_mean``.
    """
    tokens = weight.sum(dim=1)  # (B, )
    tokens = tokens.masked_fill(tokens == 0, 1)
    return (_masked(x, weight).sum(dim=1) / tokens).mean()


def _masked(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight).masked_fill(weight == 0, 0)  # 0 * NaN would be NaN
