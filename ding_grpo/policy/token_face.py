"""How GRPO acts and learns with a causal language model: an action is a whole completion."""
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import Tensor

from ding_common import ConfigError
from ding_grpo.model import CausalLM
from ding_grpo.model.decoding import PromptBatch
from ding_grpo.rl_utils import entropy, linear_log_prob
from ding_grpo.rollout import Rollout, Sampling, generate

from .not_finite import check_sampled
from .row_generators import RowGenerators, RowKey


class TokenFace:
    """
    Overview:
        The part of the policy that knows tokens: observations to completions, batches to distributions.
    Interfaces:
        ``bind``, ``sample``, ``greedy``, ``forget``, ``transition``, ``log_prob``
    """
    length_name = 'completion_length'
    rate_name = 'tokens_per_second'

    def __init__(self, model: CausalLM, sampling: Sampling, log_prob_fn: Callable, seed: int) -> None:
        """
        Overview:
            Initialise with nothing known of the environment.
        Arguments:
            - model (:obj:`CausalLM`): The policy's model.
            - sampling (:obj:`Sampling`): The distribution that is sampled from and learned.
            - log_prob_fn (:obj:`Callable`): ``linear_log_prob``, or a ``LogProbFunction``.
            - seed (:obj:`int`): With a row's key it seeds the row's random numbers.
        """
        self._model = model
        self._sampling = sampling
        self._log_prob_fn = log_prob_fn
        self._generators = RowGenerators(seed)
        self._spec: Optional[NamedTuple] = None

    @property
    def exact(self) -> bool:
        """Whether sampler and learner agree but for rounding that is far below any clipping range."""
        return self._model.exact_arithmetic

    @property
    def spec(self) -> Optional[NamedTuple]:
        return self._spec

    def bind(self, spec: Optional[NamedTuple]) -> None:
        """
        Overview:
            Learn from the environment how a row ends, and hold its tokens against the model.
        Arguments:
            - spec (:obj:`Optional[NamedTuple]`): ``tokenizer``, ``eos_token_ids``, ``vocab_size``, \
                ``max_prompt_length``, ``max_new_tokens``, ``reward_weights``.
        Raises:
            - ConfigError: If the tokens do not fit the model.
        """
        if spec is None:
            raise ConfigError(
                'env.type: the environment has no token_spec; a causal language model learns from token_env. For other '
                "environments give policy.model a type such as 'vac'."
            )
        if spec.vocab_size > self._model.vocab_size:
            raise ConfigError(
                f'env.tokenizer: its vocabulary of {spec.vocab_size} tokens does not fit policy.model, which has '
                f'vocab_size = {self._model.vocab_size}; the model needs at least as many.'
            )
        positions, longest = self._model.max_positions, spec.max_prompt_length + spec.max_new_tokens
        if positions is not None and longest > positions:
            raise ConfigError(
                f'env.max_prompt_length = {spec.max_prompt_length} with env.max_new_tokens = {spec.max_new_tokens}: '
                f'{longest} tokens are more than the {positions} positions of policy.model.'
            )
        self._model.limit_vocabulary(spec.vocab_size)
        self._model.limit_length(longest)
        self._spec = spec

    def sample(self, obs: Dict[int, Any], row_keys: Dict[int, RowKey]) -> Dict[int, Dict[str, Any]]:
        """
        Overview:
            Sample a completion for each environment.
        Arguments:
            - obs (:obj:`Dict[int, Any]`): Token ids by environment, -1 behind the last.
            - row_keys (:obj:`Dict[int, RowKey]`): Which row of which group an environment runs. The \
                row's numbers are those of one generator seeded by (seed, collect, group, row), whatever else is in \
                the batch.
        Returns:
            - output (:obj:`Dict[int, Dict]`): ``prompt``, ``action``, ``logp`` and ``kept`` (or None) of each.
        Shapes:
            - obs (:obj:`torch.Tensor`): :math:`(N, )`
            - prompt (:obj:`torch.LongTensor`): :math:`(L, )`
            - action (:obj:`torch.LongTensor`): :math:`(S, )`
            - logp (:obj:`torch.FloatTensor`): :math:`(S, )`
            - kept (:obj:`torch.LongTensor`): :math:`(S, K)`
        Raises:
            - NumericError: If the model's logits are not finite.
        """
        uniform = np.stack([self._generators.of(i, row_keys[i]).random(self.max_length) for i in obs])  # (B, T)
        return self._generate(obs, torch.from_numpy(uniform).to(self._model.device), row_keys)

    def greedy(self, obs: Dict[int, Any]) -> Dict[int, Dict[str, Any]]:
        """As ``sample``, with the likeliest token each time."""
        return self._generate(obs)

    def forget(self, env_ids: Optional[List[int]]) -> None:
        """Environments whose episode has ended; None: all."""
        self._generators.forget(env_ids)

    def transition(self, obs: Any, output: Dict[str, Any], timestep: Any) -> Dict[str, Any]:
        """
        Overview:
            One step of one environment as ``fold_group`` takes it; of an action's tokens only those that the \
            environment took.
        """
        taken = timestep.info['taken']
        reward = torch.zeros(taken)
        reward[-1] = np.asarray(timestep.reward).item()
        kept = output['kept']
        return dict(
            prompt=output['prompt'],
            action=output['action'][:taken],
            logp=output['logp'][:taken],
            kept=None if kept is None else kept[:taken],
            reward=reward,
            reward_parts=timestep.info.get('reward_parts'),
            truncated=timestep.info.get('truncated'),
            failed=timestep.info.get('failed') is not None,
        )

    def log_prob(self, model: CausalLM, batch: Dict[str, Any], train_entropy: bool = False) -> Tuple[Tensor, Tensor]:
        """
        Overview:
            Log-probabilities of the taken tokens under the distributions that they were sampled from, and these \
            distributions' entropies, with the weights of ``model``.
        Arguments:
            - model (:obj:`CausalLM`): The policy or its reference.
            - batch (:obj:`Dict`): From ``collate_groups``, on the model's device.
            - train_entropy (:obj:`bool`): Whether the entropy needs a gradient.
        Returns:
            - logp (:obj:`torch.FloatTensor`): In nats; behind a row's end it may be anything.
            - entropy (:obj:`torch.FloatTensor`): The same.
        Shapes:
            - logp (:obj:`torch.FloatTensor`): :math:`(B, S)`
            - entropy (:obj:`torch.FloatTensor`): :math:`(B, S)`
        """
        prompts = PromptBatch.of(batch['prompts'], model.device)
        length = (batch['weight'] != 0).sum(1)  # (B, )
        if self._log_prob_fn is linear_log_prob:
            return linear_log_prob(
                model.completion_hidden(prompts, batch['action'], length),
                index=batch['action'],
                mask=batch['weight'],
                temperature=self._sampling.temperature,
                kept=batch['kept'],
                return_entropy=True,
                **model.output_head()._asdict()
            )
        logit = model.completion_logits(prompts, batch['action'], length)  # (B, S, V)
        logit, index = self._sampling.reuse(logit, batch['action'], batch['kept'])  # (B, S, K)
        return self._log_prob_fn(logit, index), entropy(logit if train_entropy else logit.detach())

    @property
    def max_length(self) -> int:
        """Most tokens of a completion."""
        if self._spec is None:
            raise ConfigError(
                'policy.type = grpo: the policy does not know how a completion ends. Run it with '
                "create_config.collector = dict(type='group') and an environment that has a token_spec."
            )
        return self._spec.max_new_tokens

    def _generate(
            self,
            obs: Dict[int, Any],
            uniform: Optional[Tensor] = None,
            row_keys: Dict[int, RowKey] = {},
    ) -> Dict[int, Dict[str, Any]]:
        stripped = [strip(o) for o in obs.values()]
        prompts = PromptBatch.of(stripped, self._model.device)
        rollout: Rollout = generate(
            self._model, prompts, self.max_length, self._spec.eos_token_ids, self._sampling, uniform
        )
        logp = rollout.logp.cpu()
        check_sampled(logp.isfinite(), self._model, list(obs), row_keys, prompts=stripped)
        output = {}
        for line, (env_id, n) in enumerate(zip(obs, rollout.length.tolist())):
            output[env_id] = dict(
                prompt=stripped[line],
                action=rollout.action[line, :n].cpu(),
                logp=logp[line, :n],
                kept=None if rollout.kept is None else rollout.kept[line, :n].cpu(),
            )
        return output


def strip(obs: Any) -> Tensor:
    """
    Overview:
        The tokens of an observation. DI-engine's workers may have cast it to float32, which is exact up to 2^24.
    Arguments:
        - obs (:obj:`Union[np.ndarray, torch.Tensor]`): Token ids, -1 behind the last.
    Returns:
        - tokens (:obj:`torch.LongTensor`): The ids.
    Shapes:
        - obs (:obj:`Union[np.ndarray, torch.Tensor]`): :math:`(N, )`
        - tokens (:obj:`torch.LongTensor`): :math:`(L, )`
    """
    obs = torch.as_tensor(obs).long()
    return obs[obs >= 0]
