from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn

from ding_grpo.rl_utils.check import check_floats, check_number, wide_type
from ding_grpo.rl_utils.kl import bounded
from ding_grpo.rl_utils.reduce import masked_mean


class PPOLoss(nn.Module):
    """Policy and value loss of PPO, https://arxiv.org/abs/1707.06347, from log-probabilities. It has the inputs and
    outputs of torchtune's ``rlhf.loss.PPOLoss`` and can replace it in a recipe."""

    def __init__(self, epsilon: float = 0.1, value_clip_range: float = 0.2, value_coeff: float = 0.1) -> None:
        """``epsilon`` and ``value_clip_range`` are the clipping ranges of the probability ratio and of the value's
        change."""
        super().__init__()
        for name, value in (('epsilon', epsilon), ('value_clip_range', value_clip_range), ('value_coeff', value_coeff)):
            check_number(name, value)
            setattr(self, name, value)

    def forward(
            self,
            pi_old_logprobs: Tensor,
            pi_logprobs: Tensor,
            advantages: Tensor,
            phi_old_values: Tensor,
            phi_values: Tensor,
            returns: Tensor,
            padding_masks: Optional[Tensor] = None,
            value_padding_masks: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """
        Arguments:
            - pi_old_logprobs, pi_logprobs (:obj:`torch.FloatTensor`): Log-probabilities of the tokens under the \
                sampling and under the trained policy.
            - phi_old_values, phi_values (:obj:`torch.FloatTensor`): Values of positions when sampled, and now.
            - padding_masks (:obj:`Optional[torch.Tensor]`): True on tokens that count, in policy loss and clipfrac.
            - value_padding_masks (:obj:`Optional[torch.Tensor]`): True on positions that count, in the value loss.
        Returns:
            - loss (:obj:`torch.FloatTensor`): Policy loss + ``value_coeff`` x value loss, differentiable.
            - policy_loss (:obj:`torch.FloatTensor`): Policy loss, detached like all following outputs.
            - value_loss (:obj:`torch.FloatTensor`): Half the mean of the larger squared error.
            - ratios (:obj:`torch.FloatTensor`): Mean probability ratio, including padding as in torchtune.
            - clipfrac (:obj:`torch.FloatTensor`): Share of tokens whose clipped loss is larger than the unclipped one.
        Shapes:
            - inputs: Any shapes that broadcast, usually :math:`(B, S)`. The common shape of the inputs of the value \
                loss may differ from that of the policy loss. A mask is broadcast too, before its mean is taken
            - outputs: 0-dim tensors
        """
        pi_logprobs, pi_old_logprobs, advantages, padding_masks = _broadcast(
            pi_logprobs=pi_logprobs,
            pi_old_logprobs=pi_old_logprobs,
            advantages=advantages,
            padding_masks=padding_masks
        )
        phi_values, phi_old_values, returns, value_padding_masks = _broadcast(
            phi_values=phi_values,
            phi_old_values=phi_old_values,
            returns=returns,
            value_padding_masks=value_padding_masks
        )
        everywhere = torch.ones_like(pi_logprobs)
        with torch.no_grad():
            mean_ratio = masked_mean(_ratios(pi_logprobs, pi_old_logprobs, everywhere), everywhere)
        ratios = _ratios(pi_logprobs, pi_old_logprobs, padding_masks)  # (1, M)
        plain = -advantages * ratios
        clipped = -advantages * ratios.clamp(1 - self.epsilon, 1 + self.epsilon)
        policy_loss = masked_mean(torch.maximum(plain, clipped), padding_masks)

        change = (phi_values - phi_old_values).clamp(-self.value_clip_range, self.value_clip_range)
        errors = torch.maximum((phi_values - returns) ** 2, (phi_old_values + change - returns) ** 2)
        value_loss = masked_mean(errors, value_padding_masks) / 2

        loss = policy_loss + self.value_coeff * value_loss
        clipfrac = masked_mean((clipped > plain).to(plain.dtype), padding_masks)
        return loss, policy_loss.detach(), value_loss.detach(), mean_ratio, clipfrac


def _broadcast(**fields: Optional[Tensor]) -> List[Tensor]:
    """Fields in their common shape, as rows (1, M). The first must be floats. The last is a mask, 1 if it is None."""
    first, *_, mask = fields
    check_floats(first, fields[first])
    shape = fields[first].shape
    if fields[mask] is None:
        fields[mask] = torch.ones_like(fields[first])
    for name, x in fields.items():
        if not isinstance(x, Tensor) or x.is_complex():
            raise ValueError(f'{name} of {getattr(x, "dtype", type(x).__name__)}: must be a tensor of numbers')
        try:
            shape = torch.broadcast_shapes(shape, x.shape)
        except RuntimeError:
            raise ValueError(f'{name} {tuple(x.shape)}: must broadcast to {tuple(shape)}') from None
    return [x.expand(shape).reshape(1, -1) for x in fields.values()]


def _ratios(logp_new: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """Probability ratios; 1 where the mask is 0, so that masked values reach no gradient."""
    wide = wide_type(logp_new)
    new, old = (x.to(wide).masked_fill(mask == 0, 0) for x in (logp_new, logp_old))
    return bounded(new - old).exp()
