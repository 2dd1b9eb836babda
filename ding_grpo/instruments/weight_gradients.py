"""Gradients in the weights for given gradients with respect to log-probabilities, without a change of ``grad``."""
from typing import Iterator, List

import torch
from torch import Tensor

from ding_common import parallel
from ding_grpo.data.batch import Batch
from ding_grpo.learn.update import Updater

Gradient = List[Tensor]  # one tensor for each parameter


def weight_gradients(slopes: Tensor, batch: Batch, updater: Updater) -> Iterator[Gradient]:
    """Yield the gradient of sum(slope * logp) in the trained weights for each of the slopes (K, B, S), gradients of
    losses with respect to log-probabilities; 0 for weights that no row uses. Only one gradient is in memory at a time.
    A batch of one part is read once; several parts are read again for each slope, because all their activations would
    not fit."""
    parts, read, parameters = updater.parts(batch), updater.read_with_gradient, updater.trained
    kept = read(parts[0][1]) if len(parts) == 1 else None
    for slope in slopes:
        total = [torch.zeros_like(p) for p in parameters]
        for rows, part in parts:
            logp = read(part) if kept is None else kept
            of_part = slope[rows, :logp.shape[1]].to(logp)
            found = torch.autograd.grad(logp, parameters, of_part, retain_graph=kept is not None, allow_unused=True)
            for whole, gradient in zip(total, found):
                if gradient is not None:
                    whole += gradient
        parallel.all_reduce(total)
        yield total


def dot(a: Gradient, b: Gradient) -> float:
    """The inner product, summed over parameters in float64."""
    products = [torch.dot(x.flatten().float(), y.flatten().float()) for x, y in zip(a, b)]
    return torch.stack(products).double().sum().item()
