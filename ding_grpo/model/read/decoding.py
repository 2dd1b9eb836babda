"""Decoding: continues prompts token by token, without gradients."""
from abc import ABC, abstractmethod
from typing import Any, List, Optional

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ding_grpo.rl_utils.on_device import on_device

from .growing import Growing
from .packed_row import read_packed
from .prompts import SEGMENT, PromptBatch, PromptTree
from .step_graph import StepGraph

SHARED, PADDED, BY_LENGTH, REREAD = WAYS = ('shared', 'padded', 'by_length', 'reread')  # the fastest first


class Decoding(ABC):
    """Base class of the ways to extend rows token by token. A line is the index of a row that still grows. If keys can
    be kept over several turns, ``read`` and ``set_read`` exist too."""
    logit: Tensor  # (B, V): of each line's first token

    @abstractmethod
    def step(self, token: Tensor) -> Tensor:
        """Read one token of each line, (B, ), and return the logits of the next token, (B, V)."""

    @abstractmethod
    def keep(self, lines: Tensor) -> None:
        """Continue with the given lines (b, ) only, in any order. A line that is given several times becomes several
        lines. On the CPU they are read without a wait for a GPU."""


class SharedDecoding(Decoding):
    """Keeps the keys and values of a prompt once for all its lines, and those of a common beginning once for all its
    prompts, see ``PromptTree``."""

    def __init__(self, model: Any, prompts: PromptBatch, least: int = SEGMENT) -> None:
        self._trunk, self._head, self._positions = model.trunk, model.output_head(), model.max_positions
        self._graph, self._graphs = StepGraph(), model.uses_cuda_graphs
        tree = PromptTree.of(prompts, least)
        self._growing = Growing(tree, self._head.weight.shape[1], fixed=self._graphs)
        pack = self._growing.prompts
        hidden = read_packed(self._trunk, pack.ids, pack.position, self._growing)  # (M, H)
        self.logit = self._head.logits(hidden[pack.last])[tree.row]

    def step(self, token: Tensor) -> Tensor:
        if self._growing.full:
            self._graph.reset()
        logit = self._graph(self._read_one, token) if self._graphs else self._read_one(token)
        self._growing.stepped()
        return logit

    def _read_one(self, token: Tensor) -> Tensor:
        """``step`` before it counts the tokens: a second call has the same result."""
        return self._head.logits(self._hidden(token, self._growing.begin()))  # (B, V)

    def read(self, token: Tensor, length: Tensor) -> Tensor:
        """Read zero or more tokens of each line, (B, T), padded on the right with any valid token. Returns the logits
        of the next token, (B, V); arbitrary for a line that reads none."""
        lines, tokens = token.shape
        self.set_read(self._growing.read)
        step, last = torch.arange(tokens, device=token.device), (length - 1).clamp(min=0)
        position = self._growing.begin().unsqueeze(1) + torch.minimum(step, last.unsqueeze(1))  # (B, T)
        hidden = self._hidden(token.flatten(), position.flatten()).unflatten(0, (lines, tokens))  # (B, T, H)
        self.set_read(self._growing.read + length)
        return self._head.logits(hidden[torch.arange(lines, device=token.device), last])

    def set_read(self, count: Tensor) -> None:
        """Forget the last tokens of lines: each has then read ``count`` (B, ) tokens after the prompt."""
        self._graph = StepGraph()  # frees the recordings' memory: the next turn may begin much later
        self._growing.set_read(count)

    def keep(self, lines: Tensor) -> None:
        self._graph.reset()
        self._growing.keep(lines)

    def _hidden(self, token: Tensor, position: Tensor) -> Tensor:
        """Read tokens at positions, at most the model's last: a line that waits reads a token that does not count."""
        position = position if self._positions is None else position.clamp(max=self._positions - 1)
        return read_packed(self._trunk, token, position, self._growing)


class CachedDecoding(Decoding):
    """Uses the cache of ``transformers``, which is copied for each line of a prompt. Prompts are padded on the left."""

    def __init__(self, model: Any, prompts: PromptBatch, masked: bool = True) -> None:
        """``masked``: whether to pass mask and positions to the model. Some architectures count positions themselves,
        and others miscount them, with or without padding."""
        self._lm, self._tokens, self._device = model.lm, model.output_tokens, prompts.ids.device
        self._cache = None
        self._mask: Optional[Tensor] = prompts.mask if masked else None
        logit = self._read(prompts.ids, logits_to_keep=1)
        if self._cache is None:
            raise NoCache(f'{type(self._lm).__name__} has no key-value cache')
        self.logit = logit[prompts.row]
        self.keep(prompts.row)

    def step(self, token: Tensor) -> Tensor:
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        return self._read(token.unsqueeze(1))

    def keep(self, lines: Tensor) -> None:
        lines = on_device(lines, self._device)
        self._cache.reorder_cache(lines)  # of all layers, including those with a state instead of keys
        self._mask = None if self._mask is None else self._mask[lines]

    def _read(self, ids: Tensor, **options: int) -> Tensor:
        if self._mask is not None:
            position = (self._mask.cumsum(1)[:, -ids.shape[1]:] - 1).clamp(min=0)
            options.update(attention_mask=self._mask, position_ids=position)
        out = self._lm(input_ids=ids, past_key_values=self._cache, use_cache=True, **options)
        self._cache = getattr(out, 'past_key_values', None)
        return out.logits[:, -1, :self._tokens]


class NoCache(Exception):
    """The architecture has no cache from which rows can be continued."""


class ByLengthDecoding(Decoding):
    """Reads prompts of equal length together, without padding, mask and positions. For architectures that ignore the
    mask or the positions."""

    def __init__(self, model: Any, prompts: PromptBatch) -> None:
        self._parts: List[CachedDecoding] = []
        self._lines: List[Tensor] = []  # of each part
        for length in prompts.length.unique().tolist():
            of_length = prompts.length == length
            lines = of_length[prompts.row].nonzero().squeeze(1)
            number = of_length.cumsum(0) - 1
            ids = prompts.ids[of_length, -length:]
            part = PromptBatch(ids, torch.ones_like(ids), number[prompts.row[lines]])
            if len(lines):
                self._parts.append(CachedDecoding(model, part, masked=False))
                self._lines.append(lines)
        self.logit = self._join([part.logit for part in self._parts])

    def step(self, token: Tensor) -> Tensor:
        return self._join([part.step(token[lines]) for part, lines in zip(self._parts, self._lines)])

    def keep(self, lines: Tensor) -> None:
        parts, kept = [], []
        for part, own in zip(self._parts, self._lines):
            lines = on_device(lines, own.device)
            here = torch.isin(lines, own).nonzero().squeeze(1)
            if len(here):
                part.keep(torch.searchsorted(own, lines[here]))
                parts.append(part)
                kept.append(here)
        self._parts, self._lines = parts, kept

    def _join(self, logits: List[Tensor]) -> Tensor:
        """The logits of all parts, in the order of all lines."""
        return torch.cat(logits)[torch.cat(self._lines).argsort()]


class RereadDecoding(Decoding):
    """Reads every row from its start for each token. For architectures without a cache from which rows can be
    continued. Rows are padded on the right, which does not affect a causal model."""

    def __init__(self, model: Any, prompts: PromptBatch) -> None:
        self._lm, self._tokens = model.lm, model.output_tokens
        self._rows = [prompts.prompt(number) for number in range(len(prompts.ids))]
        logit = self._read()
        self._rows = [self._rows[number] for number in prompts.row.tolist()]
        self.logit = logit[prompts.row]

    def step(self, token: Tensor) -> Tensor:
        self._rows = [torch.cat([row, last]) for row, last in zip(self._rows, token.unsqueeze(1))]
        return self._read()

    def keep(self, lines: Tensor) -> None:
        self._rows = [self._rows[line] for line in lines.tolist()]

    def _read(self) -> Tensor:
        logit = self._lm(input_ids=pad_sequence(self._rows, batch_first=True), use_cache=False).logits
        last = on_device([len(row) - 1 for row in self._rows], logit.device)
        return logit[torch.arange(len(last), device=logit.device), last, :self._tokens]


def start(model: Any, way: str, prompts: PromptBatch, least: int = SEGMENT) -> Decoding:
    """Let a ``CausalLM`` read prompts in one of ``WAYS``, to decode from there. For ``least`` see ``PromptTree.of``."""
    if way == SHARED:
        return SharedDecoding(model, prompts, least)
    kind = {PADDED: CachedDecoding, BY_LENGTH: ByLengthDecoding, REREAD: RereadDecoding}[way]
    return kind(model, prompts)
