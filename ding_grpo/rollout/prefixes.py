from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ding_grpo.rl_utils.on_device import on_device

from .sampling import Sampling


class Prefixes:
    """What a sampling distribution needs to know of the tokens before the next one: which tokens each row contains, for
    a repetition penalty, and which ones a grammar allows. Costs nothing if the sampling uses neither."""

    def __init__(self, sampling: Sampling, prompts: NamedTuple, vocabulary: int) -> None:
        self._allowed, self._vocabulary, self._seen = sampling.allowed_tokens, vocabulary, None
        if sampling.repetition_penalty != 1:
            prompt, place = ((prompts.mask != 0) & (prompts.ids < vocabulary)).nonzero(as_tuple=True)
            seen = torch.zeros(len(prompts.ids), vocabulary, dtype=torch.bool, device=prompts.ids.device)  # (P, V)
            seen[prompt, prompts.ids[prompt, place]] = True
            self._seen = seen[prompts.row]  # (B, V)
        if self._allowed is not None:
            ids, mask = prompts.ids.cpu(), prompts.mask.cpu().bool()
            self._prompts = [row[of].tolist() for row, of in zip(ids, mask)]
            self._row = prompts.row.tolist()

    def rules(self,
              action: Tensor,
              t: int,
              live: Tensor,
              running: Tensor,
              rows: Optional[Tensor] = None) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The arguments ``seen`` and ``allowed`` of ``Sampling.process`` for the token at position ``t``, from the
        tokens so far, (B, T). ``live``: the rows in the shrinking batch, (b, ). ``running``: whether each of them still
        grows. ``rows``: the indices in ``live`` whose arguments are returned, (L, ); None for all."""
        seen = self._seen if self._seen is None or rows is None else self._seen[rows]
        if self._allowed is None:
            return seen, None
        if rows is not None:
            live, running = live[rows], running[rows]
        allowed = torch.ones(len(live), self._vocabulary, dtype=torch.bool)
        for line in running.nonzero().squeeze(-1).tolist():
            row = int(live[line])
            prompt, tokens = self._prompts[self._row[row]], action[row, :t].tolist()
            ids = self._allowed(list(prompt), tokens)
            if ids is not None:
                allowed[line] = False
                allowed[line, list(ids)] = True
        return seen, on_device(allowed, action.device)

    def add(self, token: Tensor) -> None:
        """Append a token to each row."""
        if self._seen is not None:
            self._seen.scatter_(1, token.unsqueeze(1), True)

    def keep(self, rows: Tensor) -> None:
        """Continue with the given rows of ``live`` only."""
        if self._seen is not None:
            self._seen = self._seen[rows]
