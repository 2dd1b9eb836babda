"""Advantages and gradients of many batches, by the functions that train."""
from dataclasses import replace
from typing import Iterator, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils import (
    ADVANTAGE_METHODS, STEP_ADVANTAGE_METHODS, TOKEN_ADVANTAGE_METHODS, LossConfig, group_advantage, grpo_data,
    grpo_error, return_to_go, step_advantage, token_advantage
)

from .world import World

BY_STEP = ' by step'
ADVANTAGES = (*ADVANTAGE_METHODS, *TOKEN_ADVANTAGE_METHODS, *(name + BY_STEP for name in STEP_ADVANTAGE_METHODS))
# Methods that compare a row with those of other groups, by reward and length alone. They get one batch a call, once for
# each combination of rewards and lengths. All others get many batches at once.
OVER_BATCH = ('batch', 'reinforce_plus_plus_baseline', 'gpg', 'batch_mean', 'reinforce_plus_plus')
MOST = 1000  # batches in one call, which bounds the memory


def advantages(name: str, world: World, learner: Tensor, sampler: Tensor, row: Tensor) -> Tensor:
    """Advantage (K, B, S) of each token of many batches, whose completions ``row`` (K, B) are, by a method of
    ``ADVANTAGES``. The logits of ``learner`` are for ``optimal_token_baseline``, those of ``sampler`` for the greedy
    completion of ``remax``."""
    if name in OVER_BATCH and len(row) > 1:
        length = world.weight.sum(1)
        kinds, kind = torch.cat([world.reward[row], length[row]], dim=1).unique(dim=0, return_inverse=True)
        example = kind.new_zeros(len(kinds)).scatter_(0, kind, torch.arange(len(row)))  # a batch of each kind
        return torch.cat([advantages(name, world, learner, sampler, one) for one in row[example].split(1)])[kind]
    flat, weight = row.flatten(), world.weight[row.flatten()]
    reward, length = world.reward[flat], weight.sum(1)
    group = torch.arange(len(row)).repeat_interleave(row.shape[1]) * world.prompts + world.prompt[flat]
    if name in ADVANTAGE_METHODS:
        adv = group_advantage(reward, group, name, length=length).unsqueeze(1).expand_as(weight)
        return adv.reshape(*row.shape, -1)
    last = torch.zeros_like(weight).scatter(1, length.long().unsqueeze(1) - 1, reward.unsqueeze(1))
    return_ = return_to_go(last, 1.0)  # the reward on every token, 0 after the end
    if name in TOKEN_ADVANTAGE_METHODS:
        baseline = world.greedy(sampler)[world.prompt[flat]]
        adv = token_advantage(return_, weight, name, group, world.score_norm(learner)[flat], baseline)
    else:
        adv = step_advantage(return_, weight, group, name[:-len(BY_STEP)])
    return adv.view(*row.shape, -1)


def loss_gradients(
        config: LossConfig,
        world: World,
        learner: Tensor,
        sampler: Tensor,
        row: Tensor,
        adv: Tensor,
        divided: bool = False
) -> Tensor:
    """
    Direction (A, K, D) in which one step on the loss of each batch, whose completions ``row`` (K, B) are, moves the
    policy, for advantages (A, K, B, S) by several methods: minus the gradient of ``grpo_error``. Without a reference
    policy, so without a KL.

    One call gets many batches with the same number of tokens. The loss is a mean over rows or over tokens, so it is the
    mean of the losses of these batches. Surrogates that choose among the tokens of a batch get one batch a call.
    """
    config = replace(config, beta=0, max_length=world.token.shape[1])
    new, old = world.log_prob(learner).detach(), world.log_prob(sampler)
    score = world.score(learner)  # (C, S, D)
    gradient = score.new_zeros(*adv.shape[:2], score.shape[-1])
    texts = world.text.amax(1) + 1  # (C, )
    size = world.weight.sum(1) * 100 + texts  # of a completion, as one number
    for methods, batches in _calls(config.traits.of_batch, size[row].sum(1), len(adv)):
        flat = row[batches].expand(len(methods), *row[batches].shape).flatten()  # (A k B, )
        of = torch.arange(len(flat)).repeat_interleave(texts[flat])  # (R, ), the row of each text
        first = texts[flat].cumsum(0) - texts[flat]
        completion, number = flat[of], torch.arange(len(of)) - first[of]
        weight = world.weight[completion] * (world.text[completion] == number.unsqueeze(1))
        of_texts = adv[methods][:, batches].flatten(0, 2)[of]  # (R, S)
        if divided:
            of_texts = of_texts / texts[completion].unsqueeze(1)
        logp_new = new[completion].requires_grad_()
        loss, _ = grpo_error(
            grpo_data(logp_new, old[completion], None, of_texts, weight, world.prompt[completion]), config
        )
        of_rows = len(flat) if config.reduction == 'token' else len(of)  # rows of an episode count as one
        coefficient, = torch.autograd.grad(-loss * of_rows / row.shape[1], logp_new)
        per_text = (coefficient.unsqueeze(-1) * score[completion]).sum(1)  # (R, D)
        per_row = per_text.new_zeros(len(flat), per_text.shape[1]).index_add(0, of, per_text)
        gradient[methods.unsqueeze(1), batches] = per_row.view(len(methods), len(batches), row.shape[1], -1).sum(2)
    return gradient


def _calls(one_by_one: bool, size: Tensor, methods: int) -> Iterator[Tuple[Tensor, Tensor]]:
    """(methods of advantages, batches) that one call of the loss gets."""
    if one_by_one:
        yield from ((torch.tensor([a]), torch.tensor([k])) for a in range(methods) for k in range(len(size)))
    else:
        for number in size.unique():
            for batches in (size == number).nonzero().squeeze(1).split(MOST):
                yield torch.arange(methods), batches
