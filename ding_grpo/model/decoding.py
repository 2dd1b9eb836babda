"""Going on from prompts, token by token and without gradients."""
from abc import ABC, abstractmethod
from typing import Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ding_common import ConfigError

from . import shared_prompt
from .output_head import OutputHead


class PromptBatch(NamedTuple):
    """
    Overview:
        The distinct prompts of a batch of rows, padded on the left, and which of them each row continues.
    Shapes:
        - ids (:obj:`torch.LongTensor`): :math:`(P, L)`, P distinct prompts of at most L tokens
        - mask (:obj:`torch.LongTensor`): :math:`(P, L)`, 1 on tokens, 0 on padding
        - row (:obj:`torch.LongTensor`): :math:`(B, )`, index of each row's prompt
    """
    ids: Tensor
    mask: Tensor
    row: Tensor

    @classmethod
    def of(cls, prompts: List[Tensor], device: torch.device) -> 'PromptBatch':
        """
        Overview:
            Find the distinct prompts, so that each is read once however many rows continue it.
        Arguments:
            - prompts (:obj:`List[torch.LongTensor]`): One prompt a row, each of shape :math:`(L_i, )`.
            - device (:obj:`torch.device`): Where the model is.
        """
        index: Dict[Tuple[int, ...], int] = {}
        row = [index.setdefault(tuple(p.tolist()), len(index)) for p in prompts]
        length = max(len(p) for p in index)
        ids = torch.tensor([(0, ) * (length - len(p)) + p for p in index])  # (P, L)
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in index])  # (P, L)
        return cls(ids.to(device), mask.to(device), torch.tensor(row, device=device))


class Decoding(ABC):
    """
    Overview:
        Rows that grow, each on a line of its own.
    Interfaces:
        ``step``, ``keep``
    Property:
        ``logit``: those of each line's first token, :math:`(B, V)`
    """
    logit: Tensor

    @abstractmethod
    def step(self, token: Tensor) -> Tensor:
        """
        Overview:
            Read a token of each line.
        Returns:
            - logit (:obj:`torch.FloatTensor`): Logits of the token that follows.
        Shapes:
            - token (:obj:`torch.LongTensor`): :math:`(B, )`
            - logit (:obj:`torch.FloatTensor`): :math:`(B, V)`
        """

    @abstractmethod
    def keep(self, lines: Tensor) -> None:
        """
        Overview:
            Go on with some lines only, in ascending order.
        Shapes:
            - lines (:obj:`torch.LongTensor`): :math:`(b, )`
        """


class SharedDecoding(Decoding):
    """
    Overview:
        A prompt's keys and values are kept once for all its lines.
    """

    def __init__(self, lm: PreTrainedModel, head: OutputHead, prompts: PromptBatch) -> None:
        self._lm, self._head = lm, head
        length, of_prompts = prompts.mask.sum(1), prompts.mask.bool()
        self._growing = shared_prompt.Growing(length, prompts.row)
        position = (prompts.mask.cumsum(1) - 1)[of_prompts]
        hidden = shared_prompt.read(lm, prompts.ids[of_prompts], position, self._growing)  # (N, H)
        self.logit = head.logits(hidden[length.cumsum(0) - 1])[prompts.row]

    def step(self, token: Tensor) -> Tensor:
        hidden = shared_prompt.read(self._lm, token, self._growing.position, self._growing)  # (B, H)
        self._growing.stepped()
        return self._head.logits(hidden)

    def keep(self, lines: Tensor) -> None:
        self._growing.keep(lines)


class CachedDecoding(Decoding):
    """
    Overview:
        With the cache of ``transformers``, which is copied for each line of a prompt.
    """

    def __init__(self, lm: PreTrainedModel, tokens: int, prompts: PromptBatch) -> None:
        self._lm, self._tokens = lm, tokens
        self._cache = None
        self._mask = prompts.mask
        logit = self._read(prompts.ids, logits_to_keep=1)
        self.logit, self._mask = logit[prompts.row], prompts.mask[prompts.row]
        if self._cache is None:
            raise ConfigError(f'policy.model: {type(lm).__name__} keeps no key-value cache; sampling needs one.')
        self._cache.batch_select_indices(prompts.row)

    def step(self, token: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        return self._read(token.unsqueeze(1))

    def keep(self, lines: Tensor) -> None:
        self._cache.batch_select_indices(lines)
        self._mask = self._mask[lines]

    def _read(self, ids: Tensor, **options: int) -> Tensor:
        position = (self._mask.cumsum(1)[:, -ids.shape[1]:] - 1).clamp(min=0)
        out = self._lm(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=position,
            past_key_values=self._cache,
            use_cache=True,
            **options
        )
        self._cache = getattr(out, 'past_key_values', None)
        return out.logits[:, -1, :self._tokens]
