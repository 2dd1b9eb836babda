from typing import Dict, Optional, Tuple

import torch
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn

from .causal_lm import CausalLM


@MODEL_REGISTRY.register('causal_lm_vac')
class CausalLMVAC(nn.Module):
    """
    Overview:
        A causal language model with a value head on the same trunk, as DI-engine's own PPO wants a model: token by \
        token, with ``mode`` as in ``VAC``. So that GRPO and PPO can be compared on one environment with one network.
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
        ids, mask = _left_padded(obs.long())
        out = self.actor.lm(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=1,
            output_hidden_states=True,
            use_cache=False,
        )
        hidden = out.hidden_states[-1][:, -1]  # (B, H)
        return dict(logit=out.logits[:, -1].float(), value=self.critic(hidden).squeeze(-1).float())


def _left_padded(obs: Tensor) -> Tuple[Tensor, Tensor]:
    """Token ids and mask with the padding moved to the left and cut to the longest."""
    length = (obs >= 0).sum(1)  # (B, )
    longest = max(int(length.max()), 1)
    # column j of the result is column j - (longest - length) of the observation
    source = torch.arange(longest, device=obs.device) - (longest - length).unsqueeze(1)  # (B, longest)
    ids = obs.gather(1, source.clamp(min=0)).clamp(min=0)
    return ids.masked_fill(source < 0, 0), (source >= 0).long()
