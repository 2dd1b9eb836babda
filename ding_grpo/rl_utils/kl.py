import math

import torch
from torch import Tensor

from .check import check_choice, check_floats, check_leading, check_tensor, wide_type, widened

KL_TYPES = ('k1', 'k2', 'k3')


def kl_estimate(logp_new: Tensor, logp_ref: Tensor, kl_type: str) -> Tensor:
    """
    Overview:
        Per-token estimate of KL(new || ref) from the log-probabilities of tokens that ``new`` sampled, unreduced. \
        With r = p_ref / p_new:

        - ``k1``: -log r, unbiased, high variance, may be negative.
        - ``k2``: (log r)^2 / 2, biased, low variance.
        - ``k3``: r - 1 - log r, unbiased, never negative; equation 4 of https://arxiv.org/abs/2402.03300.

        Source: J. Schulman, Approximating KL Divergence, 2020 (http://joschu.net/blog/kl-approx.html). For their \
        gradients as losses see ``straight_through_kl``.
    Arguments:
        - logp_new (:obj:`torch.FloatTensor`): Log-probabilities of the sampled tokens under the trained policy.
        - logp_ref (:obj:`torch.FloatTensor`): The same under the frozen reference policy.
    Returns:
        - kl (:obj:`torch.FloatTensor`): The estimate in nats.
    Shapes:
        All tensors have the same shape, usually :math:`(B, S)`.
    """
    check_choice('kl_type', kl_type, KL_TYPES)
    check_floats('logp_new', logp_new)
    check_tensor('logp_ref', logp_ref, tuple(logp_new.shape), 'that of logp_new')
    log_ratio = widened(logp_new) - logp_ref
    if kl_type == 'k1':
        return log_ratio
    if kl_type == 'k2':
        return log_ratio ** 2 / 2
    return bounded(-log_ratio, 0.6).expm1() + log_ratio


def bounded(log_ratio: Tensor, share: float = 0.3) -> Tensor:
    """Bound the logarithm of a probability ratio by a share of the largest exponent of its type (88 in float32, 709 in
    float64; the default share gives 26 in float32), so that neither the ratio nor its product with a KL overflows. The
    gradient ignores the bound. For a ratio that the loss clips it is therefore 0, not 0 times infinity."""
    limit = math.log(torch.finfo(log_ratio.dtype).max) * share
    excess = (log_ratio.detach() - limit).clamp(min=0)
    return torch.where(excess == float('inf'), limit, log_ratio - excess)


def calculate_kl_div(log_ratio: Tensor, kl_type: str) -> Tensor:
    """Mean of ``kl_estimate`` over all elements of ``log_ratio``, which is ``logp_new - logp_ref``, in nats; 0 for an
    empty tensor. It has the name and signature of DI-engine main."""
    kl = kl_estimate(log_ratio, torch.zeros_like(log_ratio), kl_type)
    return kl.sum() / max(kl.numel(), 1)


def straight_through_kl(logp_new: Tensor, logp_ref: Tensor, kl_type: str = 'k3') -> Tensor:
    """The value of any estimator with the gradient of k2. Only k2 has the right gradient: on-policy, the expectation of
    (log p_new - log p_ref) grad log p_new is the gradient of KL(new || ref). As a loss, k1 has the expected gradient
    E[grad log p_new] = 0 and no effect. k3 has E[(1 - p_ref / p_new) grad log p_new], the gradient of the reverse
    KL(ref || new)."""
    gradient = kl_estimate(logp_new, logp_ref, 'k2')
    return kl_estimate(logp_new, logp_ref, kl_type).detach() + (gradient - gradient.detach())  # the latter is 0


def exact_kl(logit_new: Tensor, logit_ref: Tensor) -> Tensor:
    """KL(new || ref) of each token's distribution in nats, (B, S, V) -> (B, S) or (S, V) -> (S, ), summed over the
    vocabulary; Inf where new gives probability to a token that ref excludes. It has no sampling noise, and needs as
    much memory as both tensors of logits."""
    check_leading('logit_new', logit_new, '(B, S, V) or (S, V)')
    check_tensor('logit_ref', logit_ref, tuple(logit_new.shape), 'that of logit_new')
    dtype = wide_type(logit_new)
    new, ref = logit_new.to(dtype).log_softmax(-1), logit_ref.to(dtype).log_softmax(-1)
    excluded = new == float('-inf')  # probability 0 adds 0; 0 * inf would add NaN
    ratio = new.masked_fill(excluded, 0) - ref.masked_fill(excluded, 0)
    return torch.where(ratio == float('inf'), ratio, new.exp() * ratio).sum(-1)
