"""Launches the operations of a decoding step on a GPU together: ``policy.model.cuda_graphs``."""
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from ding_common import ConfigError, describe


def record(function: Callable[[], Tensor]) -> Tuple[Callable[[], None], Tensor]:
    """Record the operations of a GPU in a function, without running them; they must have the same shapes and tensors at
    every call. Returns a function that runs them again, and the result, which that function overwrites."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph.replay, result


class StepGraph:
    """Calls a function of tokens. The first call runs it as it is, the second records its operations, and this and
    later ones launch what was recorded. ``reset`` begins again. It is necessary before the function uses other tensors
    or shapes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded."""
        self._called = False
        self._recorded: Optional[Tuple[Tensor, Callable[[], None], Tensor]] = None  # its token, replay and result

    def __call__(self, step: Callable[[Tensor], Tensor], token: Tensor) -> Tensor:
        """Call ``step``, the same function since ``reset``, which must not wait for the GPU. Raises a ``ConfigError``
        if its operations cannot be recorded."""
        if not self._called:  # some operations prepare something at their first call, such as a conversion of weights
            self._called = True
            return step(token)
        if self._recorded is None:
            given = token.clone()
            try:
                self._recorded = given, *record(lambda: step(given))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # the end of a failed recording raises too; its context is the cause
                raise ConfigError(
                    'policy.model.cuda_graphs = True: the GPU cannot record the operations of this architecture '
                    f'({describe(error.__context__ or error)}). Set it to False.'
                ) from error
        given, replay, result = self._recorded
        given.copy_(token)
        replay()
        return result.clone()
