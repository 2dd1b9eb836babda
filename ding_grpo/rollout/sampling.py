import math
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ding_grpo.rl_utils.check import widened

BLOCK = 256  # tokens per partial sum in ``draw``
WINDOW = 1024  # tokens among which ``top_p`` and ``typical_p`` look first

# Maps the tokens before a turn and those of the turn so far to the ids that may follow; None for all.
AllowedTokens = Callable[[List[int], List[int]], Optional[Iterable[int]]]


class Sampling(NamedTuple):
    """
    The sampling distribution. It is made from the model's logits in the order of ``transformers``: a bias is added;
    the logits of tokens that the row contains, prompt included, are divided by ``repetition_penalty`` if they are
    positive and multiplied by it if not; a grammar selects tokens; all are divided by the temperature. Then these
    restrictions follow, each of what the one before has left: the ``top_k`` most probable tokens; the fewest whose
    probabilities sum to ``top_p``; those with at least ``min_p`` times the largest probability; the fewest whose
    probabilities sum to ``typical_p``, those first whose information is nearest to the entropy
    (https://arxiv.org/abs/2202.00666).

    The kept tokens are stored with each sampled token: after a tiny change of the weights, a recomputed set may
    lack it. Greedy decoding uses bias, penalty and grammar only.
    """
    temperature: float = 1.0
    top_k: Optional[int] = None
    top_p: Optional[float] = None
    min_p: Optional[float] = None
    typical_p: Optional[float] = None
    repetition_penalty: float = 1.0
    logit_bias: Optional[Tensor] = None  # (V, )
    allowed_tokens: Optional[AllowedTokens] = None

    def process(self, logit: Tensor, seen: Optional[Tensor] = None, allowed: Optional[Tensor] = None) -> Tensor:
        """Apply bias, penalty and grammar to logits (*, V). ``seen``: the tokens that each row contains; needed for a
        penalty. ``allowed``: the tokens that the grammar allows, None for all; the logits of others become -inf."""
        if self.logit_bias is not None:
            logit = widened(logit) + self.logit_bias
        if self.repetition_penalty != 1:
            logit = widened(logit)
            penalised = torch.where(logit < 0, logit * self.repetition_penalty, logit / self.repetition_penalty)
            logit = torch.where(seen, penalised, logit)
        return logit if allowed is None else logit.masked_fill(~allowed, float('-inf'))

    def restrict(self,
                 logit: Tensor,
                 seen: Optional[Tensor] = None,
                 allowed: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """Logits of the sampling distribution from those of the model, (B, V), and what was kept; ``seen`` and
        ``allowed`` as in ``process``. Tokens that are dropped get -inf. With ``top_k`` the results have K columns in
        descending order of probability, and the second are ids, -1 for those that are dropped. With another restriction
        the second is whether each token of the vocabulary is kept. It is None if all are."""
        logit = self._scale(self.process(logit, seen, allowed))
        kept = None
        if self.top_k is not None:
            logit, kept = logit.topk(min(self.top_k, logit.shape[-1]), dim=-1)  # sorted, (B, K)
        restricted = allowed is not None
        for dropped_by, value in ((_nucleus, self.top_p), (_likely, self.min_p), (_typical, self.typical_p)):
            if value is not None and (value < 1 or dropped_by is _likely):
                logit, restricted = logit.masked_fill(dropped_by(logit, value), float('-inf')), True
        if not restricted:
            return logit, kept
        dropped = logit == float('-inf')
        return logit, ~dropped if kept is None else kept.masked_fill(dropped, -1)

    def reuse(self,
              logit: Tensor,
              action: Tensor,
              kept: Optional[Tensor] = None,
              seen: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        """Logits of a model with changed weights, over the tokens that were kept when ``action`` (B, S) was sampled:
        (B, S, V), or (B, S, K) with ``top_k``. The second result is the position of ``action`` in them, (B, S).
        ``kept`` is the result of ``restrict`` for each token; ``seen`` (B, S, V) is needed for a penalty."""
        logit = self._scale(self.process(logit, seen))
        if kept is None:
            return logit, action
        if kept.dtype == torch.bool:
            return logit.masked_fill(~kept, float('-inf')), action
        dropped = kept < 0
        logit = logit.gather(-1, kept.clamp(min=0)).masked_fill(dropped, float('-inf'))  # (B, S, K)
        return logit, (kept == action.unsqueeze(-1)).to(torch.uint8).argmax(-1)

    def _scale(self, logit: Tensor) -> Tensor:
        logit = widened(logit)
        return logit if self.temperature == 1 else logit / self.temperature


def _nucleus(logit: Tensor, mass: float) -> Tensor:
    """Whether a token is dropped by ``top_p``, (B, K) as the logits."""
    return _beyond(logit, logit.softmax(-1), mass)


def _likely(logit: Tensor, share: float) -> Tensor:
    """As ``_nucleus``, for ``min_p``."""
    return logit < logit.amax(-1, keepdim=True) + math.log(share)


def _typical(logit: Tensor, mass: float) -> Tensor:
    """As ``_nucleus``, for ``typical_p``."""
    logp = logit.log_softmax(-1)
    probability = logp.exp()
    entropy = -(probability * logp.masked_fill(probability == 0, 0)).sum(-1, keepdim=True)
    return _beyond(-(logp + entropy).abs(), probability, mass)


def _beyond(score: Tensor, probability: Tensor, mass: float) -> Tensor:
    """Whether a token is not among the fewest of highest score whose probabilities sum to ``mass``, (B, K). Usually
    they are few, and to find them costs much less than to sort a vocabulary."""
    number, size = score.shape[-1], min(WINDOW, score.shape[-1])
    while True:
        order = score.argsort(dim=-1, descending=True, stable=True) if size == number else score.topk(size).indices
        probabilities = probability.gather(-1, order)
        before = probabilities.cumsum(-1) - probabilities  # mass of the tokens of higher score; 0 for the first
        if size == number or (before[:, -1] > mass + 1e-5).all():  # no rounding makes it smaller further on
            return torch.ones_like(score, dtype=torch.bool).scatter_(-1, order, before >= mass)
        size = min(8 * size, number)


def draw(logit: Tensor, uniform: Tensor, line: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
    """Sample by inverting the cumulative distribution, first over blocks of the vocabulary, then within a block. It
    needs one random number in [0, 1) per row, ``uniform`` (B, ) float64, for any vocabulary size. Sums are in float64.
    ``logit`` is (L, K), where -inf is never drawn; ``line`` (B, ) is the one of the L that each row is drawn from, None
    for its own. Returns the drawn positions and their log-probabilities in nats, (B, ) each: NaN, with an arbitrary
    position, in a row whose logits do not define a distribution, because they are NaN, infinite, or all -inf."""
    shifted = logit - logit.amax(-1, keepdim=True)  # (L, K)
    mass = shifted.exp()
    if mass.shape[1] <= BLOCK:
        up_to = mass.cumsum(-1, dtype=torch.double)
        up_to = up_to if line is None else up_to[line]  # (B, K)
        total = up_to[:, -1]
        point = torch.minimum(uniform * total, torch.nextafter(total, uniform))  # the total is at least 1
        index = torch.searchsorted(up_to, point.unsqueeze(1), right=True).clamp_(max=mass.shape[1] - 1)  # NaN: any
        index = index.squeeze(1)
        return index, _chosen(shifted, index, line) - total.log().to(shifted.dtype)
    if mass.shape[1] % BLOCK:
        mass = F.pad(mass, (0, -mass.shape[1] % BLOCK))
    mass = mass.unflatten(1, (-1, BLOCK))  # (L, blocks, BLOCK)
    up_to = mass.sum(-1, dtype=torch.double).cumsum(-1)
    up_to = up_to if line is None else up_to[line]  # (B, blocks)
    total = up_to[:, -1]
    point = torch.minimum(uniform * total, torch.nextafter(total, uniform)).unsqueeze(1)  # the total is at least 1
    block = torch.searchsorted(up_to, point, right=True).clamp_(max=mass.shape[1] - 1)  # (B, 1)
    before = F.pad(up_to, (1, 0)).gather(1, block)
    within = _chosen(mass, block.squeeze(1), line).cumsum(-1, dtype=torch.double)  # (B, BLOCK)
    last = torch.searchsorted(within, within[:, -1:].contiguous())  # rounding must not select a position after it
    index = torch.minimum(torch.searchsorted(before + within, point, right=True), last)
    index = index.add_(block, alpha=BLOCK).squeeze(1).clamp_(max=logit.shape[1] - 1)
    return index, _chosen(shifted, index, line) - total.log().to(shifted.dtype)


def _chosen(x: Tensor, index: Tensor, line: Optional[Tensor]) -> Tensor:
    """Entries (B, *) of x (L, K, *) at the indices (B, ), each from its line (B, ), or from its own if it is None."""
    if line is not None:
        return x[line, index]
    return x.gather(1, index.view(-1, *[1] * (x.dim() - 1)).expand(-1, 1, *x.shape[2:])).squeeze(1)


def force(logit: Tensor, kept: Optional[Tensor], row: int, token: int, index: Tensor, logp: Tensor) -> None:
    """Replace what ``draw`` has drawn for one row, ``index`` and ``logp`` (B, ), by a token, in place. Raises a
    ``ValueError`` if the sampling distribution, ``logit`` (B, K) of the tokens ``kept``, does not contain it."""
    ids = range(logit.shape[1]) if kept is None or kept.dtype == torch.bool else kept[row].tolist()
    places = [place for place, i in enumerate(ids) if i == token]
    if not places or logit[row, places[0]] == float('-inf'):
        raise ValueError(f'token {token}: the sampling distribution does not contain it')
    if index[row] != places[0]:
        index[row], logp[row] = places[0], logit[row].log_softmax(-1)[places[0]]
