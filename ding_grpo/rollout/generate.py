from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ding_grpo.rl_utils.check import wide_type
from ding_grpo.rl_utils.on_device import on_device

from .branching import Branching
from .early_stop import EarlyStop
from .kept_sets import KeptSets
from .lines import Lines
from .prefixes import Prefixes
from .sampling import Sampling, draw, force


class Rollout(NamedTuple):
    """Completions of B rows with at most T tokens. Beyond a row's length ``action`` and ids in ``kept`` are -1 and
    ``logp`` is 0."""
    action: Tensor  # (B, T)
    length: Tensor  # (B, ), including the end-of-sequence token
    logp: Tensor  # (B, T), of the sampling distribution, 0 when greedy; NaN if the logits do not define a distribution
    kept: Union[Tensor, List[KeptSets], None]  # see ``Sampling``: ids (B, T, K), or the sets of each row
    # (B, T), number of optimizer steps before each token was sampled, -1 beyond a row's length; None: one for all
    sampled_after: Optional[Tensor] = None


@torch.no_grad()
def generate(
    model: object,
    prompts: NamedTuple,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    sampling: Sampling = Sampling(),
    uniform: Optional[Tensor] = None,
    limit: Optional[Tensor] = None,
    ends: Optional[Callable[[List[int]], bool]] = None,
    forced: Dict[Tuple[int, int], int] = {},
    early_stop: Optional[EarlyStop] = None,
    merge: bool = True,
    branching: Optional[Branching] = None,
) -> Rollout:
    """
    Overview:
        Complete prompts token by token. Finished rows leave the batch. Rows are decoded once as long as they are equal.
    Arguments:
        - uniform (:obj:`Optional[torch.DoubleTensor]`): :math:`(B, T)`, random numbers in [0, 1) for each row; None \
            is greedy decoding.
        - limit (:obj:`Optional[torch.LongTensor]`): :math:`(B, )`, maximum length of each row, at least 1; None for \
            ``max_new_tokens``, which is T.
        - eos_token_ids (:obj:`Sequence[int]`): A row ends with the first of these, which is part of the row.
        - ends (:obj:`Optional[Callable]`): Whether the last of a row's tokens ends it, beside end-of-sequence tokens.
        - forced (:obj:`Dict[Tuple[int, int], int]`): Tokens by row and place in the row, in place of what is sampled \
            there. They use up its random number.
        - early_stop (:obj:`Optional[EarlyStop]`): Ends rows that do not count before their end; None: there are none.
        - merge (:obj:`bool`): Whether equal rows may be one line of the decoding.
        - branching (:obj:`Optional[Branching]`): Which rows are the same so far; None: each is sampled by itself.
    """
    device, rows = prompts.ids.device, len(prompts.row)
    eos = on_device(torch.tensor(list(eos_token_ids), dtype=torch.long), device)
    room = max_new_tokens  # of the longest prompt, up to the longest row
    if limit is not None:
        limit = limit.clamp(max=max_new_tokens)
        room = int((prompts.length[prompts.row] + limit).max()) - prompts.ids.shape[1]
    with model.arithmetic():
        lines = Lines(model, prompts, room, merge)
        found = _Completions(rows, max_new_tokens, wide_type(lines.logit), device)
        prefixes = Prefixes(sampling, prompts, lines.logit.shape[-1])
        live = torch.arange(rows, device=device)  # the rows in the shrinking batch
        running = torch.ones(rows, dtype=torch.bool, device=device)  # whether each of them has not ended yet
        for t in range(max_new_tokens):
            seen, allowed = prefixes.rules(found.action, t, live, running, lines.first)  # (L, V), as the logits
            places = enumerate(live.tolist()) if forced else ()
            forced_now = {i: forced[row, t] for i, row in places if (row, t) in forced}
            numbers = None if uniform is None else uniform[:, t]
            token, logp, kept = _next(lines, sampling, seen, allowed, numbers, forced_now)
            if branching is not None and branching.shared:
                lead = branching.leaders(t, live, running, lambda: lines.of_rows(lines.logit), found.action)
                token, logp, kept = (x if x is None else x[lead] for x in (token, logp, kept))
            found.add(t, live, running, token, logp, kept)
            if t + 1 == max_new_tokens:
                break
            running &= torch.isin(token, eos, invert=True)
            if limit is not None:
                running &= limit[live] > t + 1
            if ends is not None:
                said = torch.cat([running.unsqueeze(1), found.action[live, :t + 1]], dim=1).tolist()  # waits once
                running = on_device([bool(runs) and not ends(tokens) for runs, *tokens in said], device)
            if early_stop is not None:
                running = early_stop.after_token(live, running)
            stay = lines.staying(token, running)
            if not stay:
                break
            # copying keys pays off only if enough rows have ended
            if len(stay) < len(running) and (lines.merged or len(stay) <= 0.75 * len(running)):
                lines.keep(stay)
                rows_left = on_device(stay, device)
                prefixes.keep(rows_left)
                live, token, running = live[rows_left], token[rows_left], running[rows_left]
                uniform = None if uniform is None else uniform[rows_left]
            prefixes.add(token)
            lines.step(token)
    return found.rollout(t + 1)


def _next(
        lines: Lines, sampling: Sampling, seen: Optional[Tensor], allowed: Optional[Tensor], uniform: Optional[Tensor],
        forced: Dict[int, int]
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """The next token of each row, its log-probability, and what was kept; ``forced`` replaces tokens of rows."""
    if uniform is None:
        top, token = map(lines.of_rows, sampling.process(lines.logit, seen, allowed).max(-1))
        return token, top * 0, None  # NaN if the logits are NaN or Inf
    distribution, kept = sampling.restrict(lines.logit, seen, allowed)
    token, logp = draw(distribution, uniform, lines.row)
    kept = lines.of_rows(kept)
    for row, other in forced.items():
        force(lines.of_rows(distribution), kept, row, other, token, logp)
    if kept is not None and kept.dtype != torch.bool:
        token = kept.gather(-1, token.unsqueeze(-1)).squeeze(-1)
    return token, logp, kept


class _Completions:
    """The tokens of B rows so far."""

    def __init__(self, rows: int, most: int, dtype: torch.dtype, device: torch.device) -> None:
        self.action = torch.full((rows, most), -1, dtype=torch.long, device=device)
        self._none = self.action.new_full((), -1)
        self._logp = torch.zeros(rows, most, dtype=dtype, device=device)
        self._kept_ids: List[Tensor] = []
        self._kept_sets: List[KeptSets] = []
        self._rows_of_sets: List[Tensor] = []

    def add(self, t: int, live: Tensor, running: Tensor, token: Tensor, logp: Tensor, kept: Optional[Tensor]) -> None:
        """Append a token to the rows ``live[running]``."""
        self.action[live, t] = torch.where(running, token, self._none)
        self._logp[live, t] = logp.to(self._logp.dtype)
        if kept is not None and kept.dtype == torch.bool:
            self._kept_sets.append(KeptSets.of(kept[running]))
            self._rows_of_sets.append(live[running])
        elif kept is not None:
            ids = kept.new_full((len(self.action), kept.shape[-1]), -1)
            ids[live] = torch.where(running.unsqueeze(-1), kept, -1)
            self._kept_ids.append(ids)

    def rollout(self, longest: int) -> Rollout:
        """``longest``: number of tokens of the longest row."""
        ended = self.action[:, :longest] < 0
        kept = torch.stack(self._kept_ids, dim=1) if self._kept_ids else None  # (B, T, K)
        if self._kept_sets:
            kept = KeptSets.join(self._kept_sets, self._rows_of_sets, len(self.action))
        logp = self._logp[:, :longest].masked_fill(ended, 0)
        return Rollout(self.action[:, :longest], longest - ended.sum(1), logp, kept)
