"""Reads logits a few rows at a time: normalisers, and both distributions of drafted positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from cactus_runtime.verification.warp import Warp, at_least_float32

_SMALL = 4096  # tokens: rows of a smaller vocabulary cost nothing, and are read in float64
_IN_CACHE = 2**17  # logits: half a megabyte in float32
_ON_DEVICE = 2**25  # logits read together on a GPU: 256 MiB in float64


class Part(NamedTuple):
    """Some drafted positions of a block.

    Attributes
    ----------
    place : tuple of two slices
        Their rows of the batch, and their positions.
    logits : tensor, shape (n, V)
        After the warp.
    draft, target : tensors, shape (n, V)
        The two distributions, `target` being the softmax of `logits`.
    log_sum : float64 tensor, shape (n,)
        Log-sum-exp of `logits`.
    log_normaliser : float64 tensor, shape (n,)
        The same before the warp.
    """

    place: tuple[slice, slice]
    logits: torch.Tensor
    draft: torch.Tensor
    target: torch.Tensor
    log_sum: torch.Tensor
    log_normaliser: torch.Tensor


def drafted_parts(
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    warp: Warp,
    *,
    dtype: torch.dtype | None = None,
) -> Iterator[Part]:
    """The drafted positions of a block, row by row, in parts that fit the processor's cache.

    Parameters are those of `judge`. The softmax is of type `dtype`; by default float64 for small
    vocabularies, else that of the warped logits.
    """
    batch, k = tokens.shape
    vocabulary = target_logits.shape[-1]
    for rows, positions in _places(batch, k, most_rows(target_logits)):
        raw = target_logits[rows, positions].reshape(-1, vocabulary)
        device = raw.device
        row = torch.arange(rows.start, rows.stop, device=device)
        position = torch.arange(positions.start, positions.stop, device=device)
        count = len(row), len(position)
        logits = warp(
            raw,
            row.unsqueeze(1).expand(count).reshape(-1),
            position.expand(count).reshape(-1),
        )
        target = logits.softmax(-1, dtype=dtype or precision(vocabulary))
        log_sum = _log_sum(logits, target)
        if draft_probs is None:
            drafted = tokens[rows, positions].reshape(-1, 1)
            draft = torch.zeros_like(target).scatter_(-1, drafted, 1.0)
        else:
            draft = draft_probs[rows, positions].reshape(-1, vocabulary)
        if logits is raw:
            own_log_sum = log_sum
        elif warp.temperature == 1:  # the warp may have moved all logits of a row alike
            own_log_sum = _log_sum(raw, target)
        else:
            own_log_sum = log_normaliser(raw)
        yield Part(
            (rows, positions),
            logits,
            draft,
            target,
            log_sum,
            own_log_sum,
        )


def log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """log sum exp over the last axis, in float64; nan or inf where there is no distribution.

    Computed relative to each row's peak, because a float32 near 1e6 would lose log V.

    Examples
    --------
    >>> log_normaliser(torch.full((1, 2), 1e6)) - 1e6
    tensor([0.6931], dtype=torch.float64)
    """
    rows = logits.reshape(-1, logits.shape[-1])
    found = []
    for part in rows.split(most_rows(logits)):
        part = at_least_float32(part)
        found.append(_log_sum(part, part.softmax(-1, dtype=precision(part.shape[-1]))))
    return torch.cat(found).reshape(logits.shape[:-1])


def precision(vocabulary: int) -> torch.dtype | None:
    """In which rows are summed: float64 for a small vocabulary, else (None) their own type."""
    return torch.float64 if vocabulary <= _SMALL else None


def _log_sum(logits: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of rows whose softmax is known: the peak has probability 1 / sum."""
    return logits.amax(-1).double() - probs.amax(-1).double().log()


def most_rows(logits: torch.Tensor) -> int:
    """Number of rows that are processed together."""
    return max((_IN_CACHE if logits.is_cpu else _ON_DEVICE) // logits.shape[-1], 1)


def _places(batch: int, k: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and of positions that together cover k positions of all rows."""
    if k == 0:
        return
    together = max(most // k, 1)  # whole rows of the batch
    for first in range(0, batch, together):
        for start in range(0, k, most):
            yield (
                slice(first, min(first + together, batch)),
                slice(start, min(start + most, k)),
            )
