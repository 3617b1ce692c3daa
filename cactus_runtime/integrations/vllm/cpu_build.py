"""A bug of vLLM's CPU build (seen in 0.32.0) that breaks speculative decoding at T > 0.

Its kernel that gives each drafted token its request's temperature, top-k and top-p writes to a copy
made for its int64 arithmetic, and so leaves them uninitialised. What the engine emits is then
undefined.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

import torch

logger = logging.getLogger("vllm.cactus")


def repair_expansion(sampler: Any) -> None:
    """Put a correct kernel in the place of the one of the sampler's module, if it has the bug.

    vLLM's own ``register_kernels`` looks through all modules for it, and raises an AttributeError
    where numba is loaded, as it is for n-grams (seen in 0.32.0).
    """
    module: Any = sys.modules[type(sampler).__module__]
    on_cpu = import_module("vllm.platforms").current_platform.is_cpu()
    if on_cpu and hasattr(module, "_expand") and not _is_right(module._expand):
        override = import_module("vllm.triton_utils.dispatcher").KernelOverride
        module.expand_kernel = module._expand.kernel = override(module.expand_kernel, expand)
        vars(module._expand).pop("_kernel_arg_names", None)  # derived from the old one
        logger.warning("cactus: repaired the temperatures of drafted tokens in vLLM's CPU build")


def _is_right(expansion: Any) -> bool:
    output = torch.full((3,), 9.0)
    expansion(output, torch.tensor([0.5, 0.0]), torch.tensor([1, 3], dtype=torch.int32), 0, 1)
    return output.tolist() == [0.5, 1, 1]


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    tile: int = 0,
) -> None:
    """Repeat each request's value for each of its drafted tokens, with one value replaced.

    Parameters
    ----------
    output : tensor, shape (N,)
        Written to.
    values : tensor, shape (B,)
    ends : int tensor, shape (B,)
        Cumulative numbers of drafted tokens per request.
    replace_from, replace_to : float
    tile : int
        An argument of the kernel; not used.

    Examples
    --------
    >>> output = torch.empty(3)
    >>> expand(output, torch.tensor([0.5, 0.0]), torch.tensor([1, 3]), 0, 1)
    >>> output
    tensor([0.5000, 1.0000, 1.0000])
    """
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
    replaced = torch.where(values == replace_from, replace_to, values)
    output.copy_(replaced.repeat_interleave(counts))
