from typing import Dict, Optional

import torch
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn
from torch.nn import functional as F

from .causal_lm import CausalLM, PromptBatch


@MODEL_REGISTRY.register('causal_lm_vac')
class CausalLMVAC(nn.Module):
    """
    Overview:
        A causal language model with a value head on the same trunk, as DI-engine's own PPO wants a model: token by \
        token, with ``mode`` as in ``VAC``. So that GRPO and PPO can be compared on one environment with one network. \
        The beginnings that rows have in common, such as a prompt, are read once, in sampling and learning.
    Interfaces:
        ``forward``, ``compute_actor``, ``compute_critic``, ``compute_actor_critic``
    """
    mode = ['compute_actor', 'compute_critic', 'compute_actor_critic']

    def __init__(
            self,
            pretrained: Optional[str] = None,
            config: Optional[dict] = None,
            dtype: str = 'float32',
            attn_implementation: Optional[str] = None,
    ) -> None:
        """
        Overview:
            Make the model; the arguments are those of ``CausalLM``. The value head begins at 0.
        Arguments:
            - pretrained (:obj:`Optional[str]`): As there.
            - config (:obj:`Optional[dict]`): As there.
            - dtype (:obj:`str`): As there.
            - attn_implementation (:obj:`Optional[str]`): As there.
        """
        super().__init__()
        self.actor = CausalLM(pretrained, config, dtype, attn_implementation)
        self.critic = nn.Linear(self.actor.lm.config.get_text_config().hidden_size, 1).to(self.actor.lm.dtype)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)

    def forward(self, obs: Tensor, mode: str) -> Dict[str, Tensor]:
        """
        Overview:
            Read prompt and completion so far.
        Arguments:
            - obs (:obj:`torch.Tensor`): Token ids, -1 behind the last; DI-engine may have cast them to float32.
            - mode (:obj:`str`): One of ``mode``.
        Returns:
            - output (:obj:`Dict`): ``logit`` of the next token, ``value`` of the state, or both.
        Shapes:
            - obs (:obj:`torch.Tensor`): :math:`(B, N)`
            - logit (:obj:`torch.FloatTensor`): :math:`(B, V)`
            - value (:obj:`torch.FloatTensor`): :math:`(B, )`
        Raises:
            - ValueError: If ``mode`` is unknown.
        """
        if mode not in self.mode:
            raise ValueError(f'mode = {mode!r}: must be one of {self.mode}')
        return getattr(self, mode)(obs)

    def compute_actor(self, obs: Tensor) -> Dict[str, Tensor]:
        """As ``forward``, the logits."""
        return dict(logit=self._read(obs)['logit'])

    def compute_critic(self, obs: Tensor) -> Dict[str, Tensor]:
        """As ``forward``, the value."""
        return dict(value=self._read(obs)['value'])

    def compute_actor_critic(self, obs: Tensor) -> Dict[str, Tensor]:
        """As ``forward``, both."""
        return self._read(obs)

    def _read(self, obs: Tensor) -> Dict[str, Tensor]:
        obs = obs.long()
        length = (obs >= 0).sum(1).clamp(min=1)  # (B, )
        # What is left of the shortest row's end has no padding: equal beginnings are read once for all rows.
        shortest, longest = int(length.min()), int(length.max())
        ids, row = obs[:, :shortest].clamp(min=0).unique(dim=0, return_inverse=True)
        rest = F.pad(obs[:, shortest:longest].clamp(min=0), (0, 1))  # (B, S): the last column is not read
        hidden = self.actor.completion_hidden(PromptBatch(ids, torch.ones_like(ids), row), rest)  # (B, S, H)
        hidden = hidden[torch.arange(len(obs), device=obs.device), length - shortest]  # (B, H)
        logit = self.actor.output_head().logits(hidden)
        return dict(logit=logit.float(), value=self.critic(hidden).squeeze(-1).float())
