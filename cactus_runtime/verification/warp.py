"""The interface of transformations of logits before the softmax, and the identity."""

from __future__ import annotations

from typing import Protocol

import torch


class Warp(Protocol):
    """Temperature, filters and penalties, for rows of logits taken anywhere from a block.

    Attributes
    ----------
    temperature : float or None
        The warp divides by this number and does nothing else, except for a shift of each row,
        which no probability depends on. None if it does more.
    """

    @property
    def temperature(self) -> float | None: ...

    def __call__(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Warped logits, shape (n, V), of at least float32.

        Parameters
        ----------
        logits : tensor, shape (n, V)
        rows, positions : int64 tensors, shape (n,)
            The place of each in the block: the row of the batch, and the number of drafted tokens
            before it.
        """
        ...


class IdentityWarp:
    """Changes nothing, except that half-precision logits become float32."""

    temperature = 1.0

    def __call__(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        return at_least_float32(logits)


def at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    """The logits; in float32 if they are in half precision."""
    half = logits.dtype in (torch.float16, torch.bfloat16)
    return logits.float() if half else logits
