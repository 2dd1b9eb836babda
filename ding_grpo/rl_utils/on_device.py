"""Where numbers of the host go to the device that computes."""
from typing import Any

import torch
from torch import Tensor

PINNED_FROM = 2 ** 16  # bytes


def on_device(numbers: Any, device: Any) -> Tensor:
    """A tensor, an array or a list on a device. The host does not wait for a copy to a GPU, nor for what the GPU
    computes before it. Small ones are copied from ordinary memory, since CUDA puts up to 64 KiB aside before a copy
    returns, which takes less time than pinning them; torch keeps pinned memory until the copy has run."""
    found = torch.as_tensor(numbers)
    if found.is_cuda or torch.device(device).type != 'cuda':
        return found.to(device)
    if found.nbytes > PINNED_FROM:
        found = found.pin_memory()
    return found.to(device, non_blocking=True)
