"""From host lists to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_device(values: Any, device: torch.device) -> torch.Tensor:
    """A tensor of a (nested) list or array; the copy to a CUDA device is queued, not awaited.

    Examples
    --------
    >>> to_device([[1, 2]], torch.device("cpu"))
    tensor([[1, 2]])
    """
    return _on_host(values, device).to(device, non_blocking=device.type == "cuda")


def fill(buffer: torch.Tensor, values: Any) -> None:
    """Overwrite a buffer with a (nested) list or array of its shape, also without waiting.

    Examples
    --------
    >>> buffer = torch.zeros(1, 2)
    >>> fill(buffer, [[1, 2]])
    >>> buffer
    tensor([[1., 2.]])
    """
    buffer.copy_(_on_host(values, buffer.device), non_blocking=buffer.is_cuda)


def _on_host(values: Any, device: torch.device) -> torch.Tensor:
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values)
    return host.pin_memory() if device.type == "cuda" else host
