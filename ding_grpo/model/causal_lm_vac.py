from typing import Dict, Optional

import torch
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn
from torch.nn import functional as F

from .causal_lm import CausalLM
from .decoding import PromptBatch


@MODEL_REGISTRY.register('causal_lm_vac')
class CausalLMVAC(nn.Module):
    """
    Overview:
        A causal language model with a value head on the same trunk, as DI-engine's own PPO wants a model: token by \
        token, with ``mode`` as in ``VAC``. So that GRPO and PPO can be compared on one environment with one network. \
        In sampling and learning, a row that another continues is read with it, and the beginning of all rows up to \
        one column, which is chosen so that the fewest tokens are read, once where it is the same.
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
        self.actor.output_head()  # an output layer that does not fit is refused now
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
        # In the order of their tokens, with padding below all of them, a row that begins another comes right before it.
        rows, row = obs.long().unique(dim=0, return_inverse=True)  # (U, N), (B, )
        length = (rows >= 0).sum(1).clamp(min=1)  # (U, )
        begins_next = ((rows[:-1] == rows[1:]) | (rows[:-1] < 0)).all(1)
        last = F.pad(~begins_next, (0, 1), value=True)  # (U, )
        read = last.cumsum(0) - last.long()  # (U, ): which of the rows that are read each one begins
        ids, longest = rows[last].clamp(min=0), int(length.max())
        split = _cheapest_split(ids, int(length.min()), longest)
        beginning, continued = ids[:, :split].unique(dim=0, return_inverse=True)
        rest = F.pad(ids[:, split:longest], (0, 1))  # the last column is not read
        prompts = PromptBatch(beginning, torch.ones_like(beginning), continued)
        hidden = self.actor.completion_hidden(prompts, rest)[read, length - split][row]  # (B, H)
        logit = self.actor.output_head().logits(hidden)
        return dict(logit=logit.float(), value=self.critic(hidden).squeeze(-1).float())


def _cheapest_split(ids: Tensor, shortest: int, longest: int) -> int:
    """
    Overview:
        After how many tokens sorted rows are best divided into a beginning, read once where it is equal, and a rest \
        that is read in every row; within the shortest, behind which there is padding.
    Shapes:
        - ids (:obj:`torch.LongTensor`): :math:`(R, N)`
    """
    shared = (ids[:-1] == ids[1:]).long().cumprod(1).sum(1)  # (R - 1, ): tokens that each row shares with the next
    split = torch.arange(1, shortest + 1, device=ids.device)
    beginnings = 1 + (shared < split.unsqueeze(1)).sum(1)  # of that length, different ones
    tokens = beginnings * split + len(ids) * (longest - split)
    return int(split[tokens.argmin()])
