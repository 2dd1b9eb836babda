"""What a simulated GPU counts."""
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    """
    Launches are operations of aten, by name; views and allocations launch nothing. A library may launch several kernels
    for one of them, so they are a lower bound. Waits are operations after which the CPU needs a result of the GPU.
    """
    launches: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    live: int = 0  # bytes
    peak: int = 0

    def allocate(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def free(self, size: int) -> None:
        self.live -= size

    def reset(self) -> None:
        """Count anew; the memory that is in use stays."""
        self.launches, self.waits, self.peak = Counter(), Counter(), self.live
