"""Reads given completions: each prompt once for all rows that continue it, or each row from its start."""
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ding_grpo.rl_utils.on_device import on_device

from .bands import divide
from .packed_row import read_packed
from .prompts import SEGMENT, PromptBatch, PromptTree
from .row_tree import RowTree
from .whole import PART, Whole

CALL = 64  # number of tokens that take as long as one more call of the model


class States(NamedTuple):
    """Last hidden states, of which each may precede several tokens."""
    hidden: Tensor  # (M, H)
    state: Tensor  # (B, S), which of the M states precedes each completion token

    @classmethod
    def of(cls, hidden: Tensor) -> 'States':
        """From the hidden state before each completion token, (B, S, H)."""
        rows, columns, _ = hidden.shape
        return cls(hidden.flatten(0, 1), torch.arange(rows * columns, device=hidden.device).view(rows, columns))

    def of_tokens(self) -> Tensor:
        """The hidden state before each completion token, (B, S, H)."""
        return self.hidden.index_select(0, self.state.flatten()).unflatten(0, self.state.shape)


def read_shared(
        model: Any,
        prompts: PromptBatch,
        completion: Tensor,
        length: Optional[Tensor] = None,
        check_mask: Optional[Callable] = None,
        least: int = SEGMENT,
        part: int = PART,
) -> States:
    """
    Hidden states before each completion token, with each distinct prompt read once. All tokens are packed into one
    row: first the prompts, then the completions without their last tokens, which are only predicted. With P = 2
    prompts, rows 0 and 1 of prompt 0, row 2 of prompt 1:

        packed     p0 p0 p0 | p1 p1 | a0 a1 | b0 | c0 c1 c2
        position    0  1  2 |  0  1 |  3  4 |  3 |  2  3  4
        predicts         a0      c0   a1 a2   b1   c1 c2 c3     (the last token of p0 predicts b0 as well)

    Common beginnings of prompts stand before the prompts, see ``PromptTree``. Those of rows stand before the rows,
    see ``RowTree``.

    ``length`` (B, ) is the number of tokens needed from each row; None for all. The states include those of prompts
    that precede no token of a completion.
    """
    rows, columns = completion.shape
    if length is None:
        length = torch.full((rows, ), columns, device=completion.device)
    tree = PromptTree.of(prompts, least)
    hidden_size = model.lm.config.get_text_config().hidden_size
    branches = RowTree.of(tree, completion, (length - 1).clamp(min=0), hidden_size)
    ids, position = torch.cat([tree.ids, branches.ids]), torch.cat([tree.position, branches.position])
    with model.recomputing():
        hidden = read_packed(model.trunk, ids, position, Whole(tree, branches, part), check_mask)  # (N, H)
    last = tree.last[tree.row].unsqueeze(1)  # (B, 1): the last token of each row's prompt
    return States(hidden, torch.where(branches.place < 0, last, len(tree.ids) + branches.place))


def read_unshared(
        model: Any, module: nn.Module, result: str, prompts: PromptBatch, completion: Tensor, length: Optional[Tensor]
) -> Tensor:
    """A result of ``module``, a language model or its trunk, before each completion token, (B, S, *), with each row
    read from its start: ``logits`` or ``last_hidden_state``. Rows are padded on the right, which does not affect a
    causal model. Rows of similar length are read together. Other arguments as in ``read_shared``."""
    rows, columns = completion.shape
    given = torch.full((rows, ), columns) if length is None else length.clamp(min=1).cpu()
    of_prompt = prompts.length.cpu()[prompts.row.cpu()]
    total = (of_prompt + given - 1).tolist()
    parts, order = [], []
    for chosen in divide([(n, ) for n in total], lambda count, n: CALL + count * n):
        whole = [torch.cat([prompts.prompt(int(prompts.row[i])), completion[i, :given[i] - 1]]) for i in chosen]
        with model.recomputing():
            out = module(input_ids=pad_sequence(whole, batch_first=True), use_cache=False)[result]
        step = torch.arange(columns)
        at = of_prompt[chosen].unsqueeze(1) - 1 + torch.minimum(step, given[chosen].unsqueeze(1) - 1)  # (b, S)
        parts.append(out[torch.arange(len(chosen)).unsqueeze(1), on_device(at, out.device)])
        order += chosen
    return torch.cat(parts)[on_device(order, completion.device).argsort()]
