"""PPO for actions with a diagonal normal distribution."""
from collections import namedtuple
from typing import Dict, Optional, Tuple

from torch import Tensor
from torch.distributions import Independent, Normal

from .fields import check_continuous, part, ppo_data_continuous, ppo_policy_data_continuous, ppo_value_data, read
from .shared import LogProbData, check_options, log_prob_error, masked, ppo_loss, ppo_value_error


def ppo_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        use_value_clip: bool = True,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = True,
        dual_clip_negative: bool = False,
) -> Tuple[namedtuple, namedtuple]:
    """``ppo_error`` for continuous actions: ``ppo_policy_error_continuous`` and ``ppo_value_error``, with their
    arguments."""
    data = read(ppo_data_continuous, data)
    policy, info = ppo_policy_error_continuous(
        part(ppo_policy_data_continuous, data), clip_ratio, dual_clip, kl_type, mask_loss, mask_metrics,
        dual_clip_negative
    )
    value_loss = ppo_value_error(part(ppo_value_data, data), clip_ratio, use_value_clip, mask_loss)
    return ppo_loss(policy.policy_loss, value_loss, policy.entropy_loss, policy.kl_div), info


def ppo_policy_error_continuous(
        data: namedtuple,
        clip_ratio: float = 0.2,
        dual_clip: Optional[float] = None,
        kl_type: str = 'k1',
        mask_loss: bool = False,
        mask_metrics: bool = True,
        dual_clip_negative: bool = False,
) -> Tuple[namedtuple, namedtuple]:
    """
    Overview:
        Policy part of PPO for actions with a diagonal normal distribution. Arguments that are not listed, and \
        results, as in ``ppo_policy_error``.
    Arguments:
        - data (:obj:`namedtuple`): ``ppo_policy_data_continuous``; ``weight`` may be None, ``logit_pretrained`` \
            (a dict of ``mu`` and ``sigma`` like the others) left out.
        - dual_clip (:obj:`Optional[float]`): Bound c >= 1 of the ratio, see ``dual_clip_negative``.
        - dual_clip_negative (:obj:`bool`): Whether ``dual_clip`` applies to negative advantages only, as in its paper.
    Shapes:
        - mu_sigma_new (:obj:`Dict[str, torch.FloatTensor]`): ``mu`` and ``sigma``, each of the shape of ``action`` or \
            of one that broadcasts to it
        - mu_sigma_old (:obj:`Dict[str, torch.FloatTensor]`): The same. Both may be :math:`(B, )` for ``action`` \
            :math:`(B, N)`
        - logit_pretrained (:obj:`Dict[str, torch.FloatTensor]`): As ``mu_sigma_new``
        - action (:obj:`torch.FloatTensor`): :math:`(..., N)`, N numbers after any leading dimensions, such as \
            :math:`(B, N)`
        - adv (:obj:`torch.Tensor`): Leading dimensions of ``action``, floats or integers
        - weight (:obj:`torch.Tensor`): Shape of ``adv``
    """
    check_options(clip_ratio, dual_clip, kl_type)
    data = check_continuous(read(ppo_policy_data_continuous, data))

    def error(d: namedtuple) -> Tuple[namedtuple, namedtuple]:
        new = _normal(d.mu_sigma_new)
        logp, old, entropy = new.log_prob(d.action), _normal(d.mu_sigma_old).log_prob(d.action), new.entropy()
        log_ratio = None
        if d.logit_pretrained is not None:
            log_ratio = _normal(d.mu_sigma_new).log_prob(d.action) - _normal(d.logit_pretrained).log_prob(d.action)
        own = LogProbData(logp, old, log_ratio, entropy, d.adv, d.weight)
        return log_prob_error(own, clip_ratio, dual_clip, kl_type, dual_clip_negative)

    return masked(error, data, mask_loss, mask_metrics)


def _normal(mu_sigma: Dict[str, Tensor]) -> Independent:
    return Independent(Normal(mu_sigma['mu'], mu_sigma['sigma']), 1)
