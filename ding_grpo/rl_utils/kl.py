from torch import Tensor

KL_TYPES = ('k1', 'k2', 'k3')


def kl_estimate(logp_new: Tensor, logp_ref: Tensor, kl_type: str) -> Tensor:
    """
    Overview:
        Per-token estimate of KL(new || ref) from the log-probabilities of tokens that ``new`` sampled, unreduced. \
        Source: J. Schulman, Approximating KL Divergence, 2020 (http://joschu.net/blog/kl-approx.html); k3 is \
        equation 4 of https://arxiv.org/abs/2402.03300. With r = p_ref / p_new: k1 = -log r (unbiased, high \
        variance, may be negative), k2 = (log r)^2 / 2 (biased, low variance), k3 = r - 1 - log r (unbiased, never \
        negative).
    Arguments:
        - logp_new (:obj:`torch.FloatTensor`): Log-probability of the taken tokens under the trained policy.
        - logp_ref (:obj:`torch.FloatTensor`): The same under the frozen reference.
        - kl_type (:obj:`str`): ``k1``, ``k2`` or ``k3``.
    Returns:
        - kl (:obj:`torch.FloatTensor`): The estimate in nats.
    Shapes:
        All of one shape, usually :math:`(B, S)`.
    Raises:
        - ValueError: If ``kl_type`` is none of the three.
    """
    log_ratio = logp_new - logp_ref
    if kl_type == 'k1':
        return log_ratio
    if kl_type == 'k2':
        return log_ratio ** 2 / 2
    if kl_type == 'k3':
        return (-log_ratio).expm1() + log_ratio
    raise ValueError(f'kl_type = {kl_type!r}: must be one of {KL_TYPES}')


def calculate_kl_div(log_ratio: Tensor, kl_type: str) -> Tensor:
    """
    Overview:
        Mean of ``kl_estimate`` over all elements, under the name and signature that DI-engine main has.
    Arguments:
        - log_ratio (:obj:`torch.FloatTensor`): ``logp_new - logp_ref``, of any shape.
        - kl_type (:obj:`str`): ``k1``, ``k2`` or ``k3``.
    Returns:
        - kl (:obj:`torch.FloatTensor`): 0-dim tensor, in nats.
    Raises:
        - ValueError: If ``kl_type`` is none of the three.
    """
    return kl_estimate(log_ratio, log_ratio.new_zeros(()), kl_type).mean()
