"""Launches the operations of a decoding step on a GPU together: ``policy.model.cuda_graphs``."""
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError, describe


def record(function: Callable[[], Tensor],
           previous: Optional[torch.cuda.CUDAGraph]) -> Tuple[torch.cuda.CUDAGraph, Tensor]:
    """Record the operations of a GPU in a function, without running them; they must have the same shapes and tensors at
    every call. Returns a graph, whose ``replay`` runs them again, and the result, which it overwrites. The graph takes
    over the memory of the ``previous`` one, which must not run again."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=None if previous is None else previous.pool()):
        result = function()
    return graph, result


class StepGraph:
    """Calls a function of tokens. The first call runs it as it is, the second records its operations, and this and
    later ones launch what was recorded. ``reset`` begins again. It is necessary before the function uses other tensors
    or shapes. All recordings have one pool of memory, which lives as long as this object."""

    def __init__(self) -> None:
        # kept until the next recording: torch frees a pool with its last graph, and fails to record into it then
        self._graph: Optional[torch.cuda.CUDAGraph] = None
        self.reset()

    def reset(self) -> None:
        """Run and record anew at the next calls."""
        self._called = False
        self._recorded: Optional[Tuple[Tensor, Tensor]] = None  # its token, and its result

    def __call__(self, step: Callable[[Tensor], Tensor], token: Tensor) -> Tensor:
        """Call ``step``, the same function since ``reset``, which must not wait for the GPU. Raises a ``ConfigError``
        if its operations cannot be recorded."""
        if not self._called:  # some operations prepare something at their first call, such as a conversion of weights
            self._called = True
            return step(token)
        if self._recorded is None:
            given = token.clone()
            try:
                self._graph, result = record(lambda: step(given), self._graph)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # the end of a failed recording raises too; its context is the cause
                raise ConfigError(
                    'policy.model.cuda_graphs = True: the GPU cannot record the operations of this architecture '
                    f'({describe(error.__context__ or error)}). Set it to False.'
                ) from error
            self._recorded = given, result
        given, result = self._recorded
        given.copy_(token)
        self._graph.replay()
        return result.clone()
