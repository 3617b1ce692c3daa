"""From host lists to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_device(values: Any, device: torch.device) -> torch.Tensor:
    """A tensor of a (nested) list or array; copied to a CUDA device behind its queued work.

    Examples
    --------
    >>> to_device([[1, 2]], torch.device("cpu"))
    tensor([[1, 2]])
    """
    host = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
