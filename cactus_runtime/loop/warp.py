"""Applies the temperature, filters and penalties of a batch's rows to logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from cactus_runtime.loop.row import Row, distinct
from cactus_runtime.sampling import SamplingParams
from cactus_runtime.verification.warp import at_least_float32

Role = Literal["draft", "target"]


class SamplingWarp:
    """Temperature and filters of one `SamplingParams`, the same for all rows.

    Parameters
    ----------
    sampling : SamplingParams
        Parameters that read earlier tokens are not applied.
    """

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self.temperature = float(sampling.temperature) if sampling.tempers_only else None

    def __call__(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        return self._sampling.warp(at_least_float32(logits))


class BlockWarp:
    """Bias, penalties, temperature and filters of several rows, at the positions of one block.

    Parameters
    ----------
    rows : sequence of B Rows
    role : "draft" or "target"
        Whose logits are warped.
    drafts : int64 tensor, shape (B, k)
        The tokens that follow the rows' own; position j comes after j of them.

    Attributes
    ----------
    empty_at : dict of int to int
        Maps a row to the first position where its processors left no token.
    """

    def __init__(self, rows: Sequence[Row], role: Role, drafts: torch.Tensor) -> None:
        self._rows, self._role, self._drafts = rows, role, drafts
        self._samplings = distinct(row.request.sampling for row in rows)
        self._known: dict[tuple[int, int], torch.Tensor] = {}  # processed logits of row, position
        self._processed_rows = any(row.processors[role] for row in rows)
        first = self._samplings[0]
        alone = len(self._samplings) == 1 and first.tempers_only and not self._processed_rows
        self.temperature = float(first.temperature) if alone else None
        self.empty_at: dict[int, int] = {}

    def __call__(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        logits = at_least_float32(logits)
        if len(self._samplings) == 1 and not self._processed_rows:
            return self._samplings[0].warp(logits)
        places = list(zip(rows.tolist(), positions.tolist(), strict=True))
        if self._processed_rows:
            processed = [self._process(*at, logits[i : i + 1]) for i, at in enumerate(places)]
            logits = torch.cat(processed)
        if len(self._samplings) == 1:
            return self._samplings[0].warp(logits)
        warped = torch.empty_like(logits)
        for sampling in self._samplings:
            own = [i for i, (row, _) in enumerate(places) if self._sampled_by(row, sampling)]
            if own:
                warped[own] = sampling.warp(logits[own])
        return warped

    def _sampled_by(self, row: int, sampling: SamplingParams) -> bool:
        return self._rows[row].request.sampling == sampling

    def _process(self, i: int, place: int, logits: torch.Tensor) -> torch.Tensor:
        """Process one position, and only once: processors are slow, and may write into logits."""
        row = self._rows[i]
        processors = row.processors[self._role]
        if not processors:
            return logits
        if (i, place) not in self._known:
            own = torch.tensor([row.ids], device=logits.device)
            ids: Any = torch.cat([own, self._drafts[i : i + 1, :place]], dim=1)
            found = processors(ids, logits.clone())
            self._check(found, row, logits)
            if found.amax() == -torch.inf:  # an error only if the text reaches that position
                self.empty_at[i] = min(place, self.empty_at.get(i, place))
                found = logits
            self._known[i, place] = found.detach()
        return self._known[i, place]

    def _check(self, found: Any, row: Row, logits: torch.Tensor) -> None:
        wanted = f"{logits.dtype} of shape {tuple(logits.shape)}"
        if not isinstance(found, torch.Tensor) or not found.is_floating_point():
            raise TypeError(
                f"the processors of request {row.index} must return logits, {wanted}, got "
                f"{type(found).__name__ if not isinstance(found, torch.Tensor) else found.dtype}"
            )
        if found.shape != logits.shape:
            raise ValueError(
                f"the processors of request {row.index} must return logits, {wanted}, got shape "
                f"{tuple(found.shape)}"
            )
        if not found.amax() < torch.inf:
            raise ValueError(
                f"the processors of request {row.index} must return logits below inf, got a "
                f"largest one of {float(found.amax())} to follow its {len(row.ids)} tokens"
            )
