"""The figures of a run so far, in plain numbers."""
import copy
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional

RECENT = 5  # newest updates and looks that are kept
# Share of the range of rewards within which a mean counts as the best reward.
NEAR_BEST = 0.02


class Setting(NamedTuple):
    """What of the config the causes depend on."""
    tokens: bool = True
    turns: int = 1
    exact: bool = True
    learning_rate: float = 1e-3
    temperature: float = 1.0
    narrow: str = ''  # the keys and values by which sampling prefers the most probable tokens
    masks_truncated: bool = False
    return_part: Optional[str] = None
    reward_weights: Dict[str, float] = {}


@dataclass
class History:
    """Figures of a run so far, in plain numbers: totals, those of the first update, and the newest ``RECENT`` updates
    and looks (see ``evidence.py``)."""
    updates: int = 0
    rows: int = 0
    ended: int = 0  # rows that no limit cut
    cut_rows: int = 0  # rows since the last update with such a row
    low: float = math.inf
    high: float = -math.inf
    parts: Dict[str, List[float]] = field(default_factory=dict)
    first: Dict[str, float] = field(default_factory=dict)
    recent: List[Dict[str, Any]] = field(default_factory=list)
    looks: List[Dict[str, float]] = field(default_factory=list)
    returns: List[float] = field(default_factory=list)  # of training episodes: lowest, highest, mean of the newest
    # Returns of evaluations: greedy, and sampled or of training; None without the second.
    evaluations: List[List[Optional[float]]] = field(default_factory=list)
    cut_at_bar: float = 0.0  # share of completions that reach the bar though a limit cut them, where that ends the run
    surprise: List[float] = field(default_factory=lambda: [0., 0., 0.])  # sum, sum of squares, number of steps
    reference: Optional[int] = None  # checksum of the reference's weights
    drifted: bool = False
    probes: List[Dict[str, Any]] = field(default_factory=list)
    found: List[Dict[str, Any]] = field(default_factory=list)

    def add(
            self,
            samples: Dict[str, Any],
            mask: Dict[str, int],
            metrics: Dict[str, float],
            look: Optional[Dict[str, float]],
    ) -> None:
        """Add the figures of an update, from ``of_samples``, ``of_mask``, the learner and ``of_change``."""
        self.updates += 1
        known = {name: metrics[name] for name in ('entropy', 'sampler_gap_mean') if name in metrics}
        if samples:
            self.rows += samples['rows']
            self.ended += samples['rows'] - samples['cut']
            self.cut_rows = self.cut_rows + samples['rows'] if samples['cut'] == samples['rows'] else 0
            self.low, self.high = min(self.low, samples['low']), max(self.high, samples['high'])
            for name, (low, high, _) in samples['parts'].items():
                before = self.parts.get(name, [math.inf, -math.inf])
                self.parts[name] = [min(before[0], low), max(before[1], high)]
            self.recent = [*self.recent, dict(samples, **mask, **known)][-RECENT:]
            for name in ('mean', 'std', 'entropy'):
                if name in self.recent[-1]:
                    self.first.setdefault(name, self.recent[-1][name])
        if look is not None:
            self.looks = [*self.looks, dict(look, rate=metrics['cur_lr'])][-RECENT:]
            for i, name in enumerate(('surprise', 'squares', 'fresh')):
                self.surprise[i] += look[name]

    def add_returns(self, found: List[float]) -> None:
        """Add the returns of training episodes, which are not their rewards if a wrapper changes these."""
        low, high, _ = self.returns or (math.inf, -math.inf, 0.0)
        self.returns = [min(low, *found), max(high, *found), sum(found) / len(found)]

    def add_evaluation(self, greedy: float, sampled: Optional[float]) -> None:
        self.evaluations = [*self.evaluations, [greedy, sampled]][-RECENT:]

    def add_reference(self, checksum: int) -> None:
        self.drifted = self.drifted or self.reference not in (None, checksum)
        self.reference = checksum

    def all_recent(self, holds: Callable[[Dict[str, Any]], bool]) -> bool:
        return len(self.recent) == RECENT and all(map(holds, self.recent))

    @property
    def at_best(self) -> bool:
        """Whether the newest mean reward is the best reward seen."""
        return self.recent[-1]['mean'] >= self.high - NEAR_BEST * (self.high - self.low)

    def state_dict(self) -> Dict[str, Any]:
        return copy.deepcopy(asdict(self))
