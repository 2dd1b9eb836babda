"""The rows of conversations between their turns, with the keys and values of all that they have read."""
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ding_grpo.model import CausalLM, Decoding, PromptBatch
from ding_grpo.rl_utils.on_device import on_device


class KeptCache:
    """Continues rows where their last turn ended, so that a turn reads only what is new: the last token of the turn
    before, which was sampled and not read, and the reply. Rows that start together form a part. A row of an environment
    is continued if its tokens are those that the cache has, read with the current weights in the current arithmetic;
    otherwise it is read from its start."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._parts: List[_Part] = []
        self._read_with: Optional[Tuple] = None  # changes with the weights, and with autocast
        self._turn: Optional[_Turn] = None

    def begin(self, env_ids: Sequence[int], contexts: List[Tensor]) -> '_Turn':
        """Read what is new in each row, given all its tokens, on the CPU. Returns a model for ``generate``."""
        autocast = torch.is_autocast_enabled(self._model.device.type), self._model.autocast_dtype
        reads_with = version_of(self._model), autocast
        if reads_with != self._read_with:
            self._parts, self._read_with = [], reads_with
        rows = {i: context.tolist() for i, context in zip(env_ids, contexts)}
        self._drop(lambda env_id, known: env_id in rows and rows[env_id][:len(known)] != known)
        self._parts = [part.compact() for part in self._parts]
        self._turn = _Turn(self._model, self._parts, rows)
        return self._turn

    def end(self, action: Tensor, length: Tensor) -> None:
        """Keep the tokens that ``generate`` sampled for the rows of ``begin``, (B, T) with their lengths (B, ), and
        forget what it read behind them."""
        for (part, line), row, tokens, n in zip(self._turn.places, self._turn.rows.values(), action.tolist(),
                                                length.tolist()):
            part.known[line] = row + tokens[:n]
        for part in self._parts:
            part.settle()

    def forget(self, env_ids: Optional[Sequence[int]]) -> None:
        """Drop the rows of environments whose episode has ended; None for all."""
        self._drop(lambda env_id, known: env_ids is None or env_id in env_ids)

    def _drop(self, gone: Callable[[int, List[int]], bool]) -> None:
        """Forget rows, chosen by their environment and their tokens."""
        for part in self._parts:
            part.known = {line: known for line, known in part.known.items() if not gone(part.env_ids[line], known)}
        self._parts = [part for part in self._parts if part.known]


@dataclass(eq=False)
class _Part:
    """Rows that started together, a line each."""
    decoding: Decoding  # their keys and values
    env_ids: List[int]
    starts: List[int]  # number of tokens of the prompts
    known: Dict[int, List[int]]  # the tokens of each line whose episode goes on; all but the last are read

    def compact(self) -> '_Part':
        """Without lines whose episode has ended, once they are many."""
        if len(self.known) > 0.75 * len(self.env_ids):
            return self
        stay = sorted(self.known)
        self.decoding.keep(torch.tensor(stay))
        known = {line: self.known[old] for line, old in enumerate(stay)}
        return _Part(self.decoding, [self.env_ids[i] for i in stay], [self.starts[i] for i in stay], known)

    def settle(self) -> None:
        """Set what each line has read: all its tokens but the last."""
        count = [len(self.known[i]) - 1 - self.starts[i] if i in self.known else 0 for i in range(len(self.env_ids))]
        self.decoding.set_read(on_device(count, self.decoding.logit.device))


class _Turn(Decoding):
    """The rows of one turn, from all parts, in the form of a model for ``generate``. Lines of a part that wait read a
    token that does not count."""

    def __init__(self, model: CausalLM, parts: List[_Part], rows: Dict[int, List[int]]) -> None:
        """``parts``: what can be continued; a start appends one. ``rows``: tokens by environment."""
        self.arithmetic = model.arithmetic
        self._model, self._parts, self.rows = model, parts, rows

    def start(self, prompts: PromptBatch, max_new_tokens: int) -> Decoding:
        """As ``CausalLM.start``; ``prompts`` are the rows."""
        self._model.check_length(prompts.ids.shape[1] + max_new_tokens)
        device, places, logits = prompts.ids.device, {}, {}
        for part in self._parts:
            new = [[] for _ in part.env_ids]
            for line, known in part.known.items():
                if part.env_ids[line] in self.rows:
                    places[part.env_ids[line]] = part, line
                    new[line] = self.rows[part.env_ids[line]][len(known) - 1:]
            if any(new):
                most = max(map(len, new))
                token = on_device([tokens + [0] * (most - len(tokens)) for tokens in new], device)
                logits[part] = part.decoding.read(token, on_device([len(tokens) for tokens in new], device))
        fresh = [i for i in self.rows if i not in places]
        if fresh:
            decoding = self._model.start(PromptBatch.of([torch.tensor(self.rows[i]) for i in fresh], device))
            part = _Part(decoding, fresh, [len(self.rows[i]) for i in fresh], {})
            self._parts.append(part)
            logits[part] = decoding.logit
            places.update({i: (part, line) for line, i in enumerate(fresh)})
        self.places = [places[i] for i in self.rows]
        self._set(self.places, device)
        self.logit = self._join([logits[part][lines] for part, lines, _ in self._groups])
        return self

    def step(self, token: Tensor) -> Tensor:
        found = []
        for part, lines, at in self._groups:
            of_part = token.new_zeros(len(part.env_ids)).index_copy(0, lines, token[at])
            found.append(part.decoding.step(of_part)[lines])
        return self._join(found)

    def keep(self, lines: Tensor) -> None:
        self._set([self._live[i] for i in lines.tolist()], self.logit.device)

    def _set(self, live: List[Tuple[_Part, int]], device: torch.device) -> None:
        """Of each part with rows that still grow: the part, its lines, and their rows among those that still grow."""
        self._live = live
        of_part: Dict[_Part, List[Tuple[int, int]]] = {}
        for row, (part, line) in enumerate(live):
            of_part.setdefault(part, []).append((line, row))
        self._groups = [(part, *on_device(pairs, device).unbind(1)) for part, pairs in of_part.items()]

    def _join(self, logits: List[Tensor]) -> Tensor:
        """The logits of all parts, in the order of the rows."""
        if len(logits) == 1:
            return logits[0]
        return torch.cat(logits)[torch.cat([at for _, _, at in self._groups]).argsort()]


def version_of(model: nn.Module) -> int:
    """A number that changes whenever weights of a model do."""
    return sum(p._version for p in model.parameters())
