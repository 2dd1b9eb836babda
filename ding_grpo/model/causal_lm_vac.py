from typing import Any, Dict, Optional

import torch
from ding.utils import MODEL_REGISTRY
from torch import Tensor, nn
from torch.nn import functional as F

from .causal_lm import CausalLM
from .read.prompts import PromptBatch


@MODEL_REGISTRY.register('causal_lm_vac')
class CausalLMVAC(nn.Module):
    """A causal language model with a value head on the same trunk. It has the form that DI-engine's own PPO needs:
    token by token, with ``mode`` as in ``VAC``. It serves to compare GRPO and PPO on one environment with one network.
    Sampling and learning read a row together with a row that continues it. The rows' tokens up to one column are read
    once for all rows in which they are equal. The column is chosen so that the fewest tokens are read."""
    mode = ['compute_actor', 'compute_critic', 'compute_actor_critic']

    def __init__(
            self,
            pretrained: Optional[str] = None,
            config: Optional[dict] = None,
            dtype: str = 'float32',
            attn_implementation: Optional[str] = None,
            gguf_file: Optional[str] = None,
    ) -> None:
        """Arguments as of ``CausalLM``. The value head is initialised to 0."""
        super().__init__()
        self.actor = CausalLM(pretrained, config, dtype, attn_implementation, gguf_file=gguf_file)
        self.actor.output_head()  # raises if the output layer does not fit
        self.critic = nn.Linear(self.actor.lm.config.get_text_config().hidden_size, 1).to(self.actor.lm.dtype)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)

    def forward(self, obs: Tensor, mode: str) -> Dict[str, Tensor]:
        """Read the prompt and the completion so far: token ids (B, N), -1 after the last, which DI-engine may have cast
        to float32. Returns the ``logit`` (B, V) of the next token, the ``value`` (B, ) of the state, or both, depending
        on the mode."""
        if mode not in self.mode:
            raise ValueError(f'mode = {mode!r}: must be one of {self.mode}')
        return getattr(self, mode)(obs)

    def compute_actor(self, obs: Tensor) -> Dict[str, Tensor]:
        """The logits of ``forward``."""
        return dict(logit=self._read(obs)['logit'])

    def compute_critic(self, obs: Tensor) -> Dict[str, Tensor]:
        """The value of ``forward``."""
        return dict(value=self._read(obs)['value'])

    def compute_actor_critic(self, obs: Tensor) -> Dict[str, Tensor]:
        """Logits and value of ``forward``."""
        return self._read(obs)

    def save_pretrained(self, folder: str, state_dict: Optional[Dict[str, Tensor]] = None, **kwargs: Any) -> None:
        """Save the language model without the value head; arguments as of ``CausalLM.save_pretrained``."""
        if state_dict is not None:
            start = 'actor.'
            state_dict = {n.removeprefix(start): value for n, value in state_dict.items() if n.startswith(start)}
        self.actor.save_pretrained(folder, state_dict=state_dict, **kwargs)

    def _read(self, obs: Tensor) -> Dict[str, Tensor]:
        # Rows are sorted by their tokens, padding first. A row that is the beginning of another directly precedes it.
        rows, row = obs.long().unique(dim=0, return_inverse=True)  # (U, N), (B, )
        length = (rows >= 0).sum(1).clamp(min=1)  # (U, )
        begins_next = ((rows[:-1] == rows[1:]) | (rows[:-1] < 0)).all(1)
        last = F.pad(~begins_next, (0, 1), value=True)  # (U, )
        read = last.cumsum(0) - last.long()  # (U, ): the row to read that each row is the beginning of
        ids, longest = rows[last].clamp(min=0), int(length.max())
        split = _cheapest_split(ids, int(length.min()), longest)
        beginning, continued = ids[:, :split].unique(dim=0, return_inverse=True)
        rest = F.pad(ids[:, split:longest], (0, 1))  # the last column is not read
        prompts = PromptBatch(beginning, torch.ones_like(beginning), continued)
        hidden = self.actor.completion_hidden(prompts, rest)[read, length - split][row]  # (B, H)
        logit = self.actor.output_head().logits(hidden)
        return dict(logit=logit.float(), value=self.critic(hidden).squeeze(-1).float())


def _cheapest_split(ids: Tensor, shortest: int, longest: int) -> int:
    """The column at which to divide sorted rows (R, N) into a beginning and a rest. The beginning is read once for rows
    in which it is equal, the rest in every row. The column is at most the shortest row's length, because padding
    follows there."""
    shared = (ids[:-1] == ids[1:]).long().cumprod(1).sum(1)  # (R - 1, ): tokens that each row shares with the next
    split = torch.arange(1, shortest + 1, device=ids.device)
    beginnings = 1 + (shared < split.unsqueeze(1)).sum(1)  # number of distinct beginnings of each length
    tokens = beginnings * split + len(ids) * (longest - split)
    return int(split[tokens.argmin()])
