"""PPO for discrete actions and, with S tokens a row, for language models."""
from collections import namedtuple
from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch.distributions import Categorical

from ding_grpo.rl_utils.check import check_tensor
from ding_grpo.rl_utils.log_probs.log_prob import LogProbFunction, entropy, log_probs, naive_method

from .fields import check_discrete, in_rows, part, ppo_data, ppo_policy_data, ppo_value_data, read
from .shared import LogProbData, check_options, log_prob_error, masked, ppo_loss, ppo_value_error


def shape_fn_ppo(args: Sequence, kwargs: Dict[str, Any]) -> torch.Size:
    """The shape of ``logit_new`` of a call, which DI-engine's wrapper for its CUDA extension asks for."""
    return (args[0] if args else kwargs['data']).logit_new.shape


def ppo_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        entropy_bonus: bool = True,
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: bool = True,
) -> Tuple[namedtuple, namedtuple]:
    """Proximal Policy Optimization, https://arxiv.org/abs/1707.06347: ``ppo_policy_error`` and ``ppo_value_error``,
    with their arguments. The values have the shape of ``weight`` unless that is None. Returns ``ppo_loss`` of
    differentiable 0-dim tensors, and ``ppo_info`` of Python floats."""
    data = read(ppo_data, data)
    policy, info = ppo_policy_error(
        part(ppo_policy_data, data), clip_ratio, dual_clip, entropy_bonus, kl_type, log_prob_fn, mask_loss, mask_metrics
    )
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    value_loss = ppo_value_error(part(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        entropy_bonus: bool = True,
        kl_type: str = 'k1',
        log_prob_fn: Optional[LogProbFunction] = None,
        mask_loss: Optional[bool] = None,
        mask_metrics: bool = True,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO, for discrete actions and, with S tokens a row, for language models.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data``; ``weight`` may be None, ``logit_pretrained`` left out.
        - dual_clip (:obj:`Optional[float]`): Bound c >= 1 of the ratio for negative advantages, equation 5 of \
            https://arxiv.org/abs/1912.09729.
        - entropy_bonus (:obj:`bool`): Whether ``entropy_loss`` is the mean entropy; else it is 0.
        - kl_type (:obj:`str`): Estimator of the KL to the pretrained policy, ``k1``, ``k2`` or ``k3``; for their \
            gradients see ``straight_through_kl``.
        - log_prob_fn (:obj:`Optional[LogProbFunction]`): Maps logits and sampled tokens to log-probabilities; None \
            uses a ``Categorical`` of all logits, as DI-engine does.
        - mask_loss (:obj:`Optional[bool]`): Whether positions of weight 0 are excluded from the means of the losses \
            and of the KL; None: only with a ``log_prob_fn``.
        - mask_metrics (:obj:`bool`): Whether ``info`` counts only positions with nonzero weight; False counts all, \
            as DI-engine does.
    Returns:
        - loss (:obj:`namedtuple`): ``ppo_policy_loss`` of differentiable 0-dim tensors; ``kl_div`` is 0 without a \
            pretrained policy.
        - info (:obj:`namedtuple`): ``ppo_info`` of Python floats: ``approx_kl`` mean of logp_old - logp_new, \
            ``clipfrac`` share of ratios outside the clipping range.
    Shapes:
        - logit_new (:obj:`torch.FloatTensor`): :math:`(..., N)`, N actions after any leading dimensions, such as \
            :math:`(B, N)`; :math:`(B, S, V)` for a language model; :math:`(B, A, N)` for A agents
        - logit_old, logit_pretrained (:obj:`torch.FloatTensor`): The same
        - action (:obj:`torch.LongTensor`): Leading dimensions of ``logit_new``; integers of any type
        - adv (:obj:`torch.Tensor`): Shape of ``action``, floats or integers. Without dimension 1, the agents', the \
            ratio is the mean over the agents, as in DI-engine
        - weight (:obj:`torch.Tensor`): Shape of ``adv``
    """
    check_options(clip_ratio, dual_clip, kl_type)
    data = in_rows(check_discrete(read(ppo_policy_data, data)))
    mask_loss = log_prob_fn is not None if mask_loss is None else mask_loss
    if log_prob_fn is not None:
        check_tensor('adv', data.adv, tuple(data.action.shape), 'that of action', 'numbers')
        logits = {name: getattr(data, name) for name in ('logit_new', 'logit_old', 'logit_pretrained')}
        new, old, pretrained = log_probs(logits, data.action, data.weight, log_prob_fn)
        log_ratio = None if pretrained is None else new - pretrained
        of_new = entropy(data.logit_new) if entropy_bonus else None
        own = LogProbData(new, old, log_ratio, of_new, data.adv, data.weight)
        return masked(lambda d: log_prob_error(d, clip_ratio, dual_clip, kl_type), own, mask_loss, mask_metrics)

    def error(d: namedtuple) -> Tuple[namedtuple, namedtuple]:
        new, old = (Categorical(logits=x) for x in (d.logit_new, d.logit_old))
        log_ratio = None
        if d.logit_pretrained is not None:
            log_ratio = naive_method(d.logit_new, d.action) - naive_method(d.logit_pretrained, d.action)
        of_new = new.entropy() if entropy_bonus else None
        own = LogProbData(new.log_prob(d.action), old.log_prob(d.action), log_ratio, of_new, d.adv, d.weight)
        return log_prob_error(own, clip_ratio, dual_clip, kl_type)

    return masked(error, data, mask_loss, mask_metrics)
