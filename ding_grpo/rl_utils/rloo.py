from collections import namedtuple
from typing import Tuple

import torch
from torch import Tensor

from .advantage import group_advantage
from .check import as_floats, check_leading
from .grpo import grpo_data, grpo_error
from .log_probs.log_prob import LogProbFunction, efficient_method, log_probs
from .loss_config import LossConfig

rloo_policy_data = namedtuple('rloo_policy_data', ['logit_new', 'logit_old', 'action', 'reward', 'weight'])
rloo_info = namedtuple('rloo_info', ['approx_kl', 'clipfrac'])


def rloo_policy_error(
        data: namedtuple,
        log_prob_fn: LogProbFunction = efficient_method,
        clip_ratio: float = 0.2,
        mask_metrics: bool = True,
) -> Tuple[Tensor, namedtuple]:
    """
    Overview:
        REINFORCE leave-one-out with a clipped ratio, https://arxiv.org/abs/2402.14740, with the name and fields of \
        DI-engine main. The loss equals that of DI-engine main; so does ``info`` with ``mask_metrics=False``. The \
        advantage of a completion is its reward minus the mean reward of the other K - 1 completions of its prompt.
    Shapes:
        - logit_new, logit_old (:obj:`torch.FloatTensor`): :math:`(B, S, V)`
        - action, weight: :math:`(B, S)`
        - reward (:obj:`torch.Tensor`): :math:`(K, P)`, floats or integers, K completions for each of P prompts, \
            B = K P; row k P + p of the batch is completion k of prompt p. :math:`(K, )` for one prompt
    """
    reward = as_floats(data.reward)
    check_leading('reward', reward, '(K, ) or (K, P)')
    if reward.numel() != len(data.action):
        raise ValueError(
            f'reward {tuple(reward.shape)}: must be of shape (K, ) or (K, P) with K P = B = {len(data.action)}'
        )
    completions = reward.shape[0]
    if completions < 2:
        raise ValueError(
            f'reward {tuple(reward.shape)}: K = {completions} leaves no other completion; must be at least 2'
        )
    prompt = torch.arange(reward[0].numel(), device=reward.device).repeat(completions)  # (B, )
    adv = group_advantage(reward.flatten(), prompt, 'rloo')
    logits = dict(logit_new=data.logit_new, logit_old=data.logit_old)
    logp_new, logp_old = log_probs(logits, data.action, data.weight, log_prob_fn)
    data = grpo_data(logp_new, logp_old, None, adv, data.weight)
    loss, info = grpo_error(data, LossConfig(clip_ratio=clip_ratio, beta=0), mask_metrics=mask_metrics)
    return loss, rloo_info(info.approx_kl, info.clipfrac)
