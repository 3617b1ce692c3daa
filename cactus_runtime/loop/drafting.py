"""Drafts for the rows of a batch: by a model that reads them together, or row by row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from cactus_runtime.draft_length import FixedLength
from cactus_runtime.loop.row import Row
from cactus_runtime.loop.warp import BlockWarp
from cactus_runtime.models.compiled import CompiledContext
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.static_kv_cache import StaticContext, open_context
from cactus_runtime.proposal import Drafter, Proposal
from cactus_runtime.streams import draw_tokens
from cactus_runtime.verification.warp import Warp

_SUM_TOLERANCE = 1e-3  # a half-precision softmax stays within it


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens of B rows, padded to one length.

    Attributes
    ----------
    tokens : int64 tensor, shape (B, k)
    probs : tensor, shape (B, k, V), or None
        The distributions they were drawn from; None means that each was certain (one-hot).
    counts : list of B ints
        Number of valid tokens of each row.
    peaks : tensor, shape (B, k), or None
        Largest logit of each row that was read, which reveals non-finite logits.
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None
    counts: list[int]
    peaks: torch.Tensor | None = None

    def first(self, counts: list[int]) -> Drafts:
        """The same, cut to this many tokens of each row."""
        longest = max(counts)
        probs, peaks = (
            None if part is None else part[:, :longest] for part in (self.probs, self.peaks)
        )
        return Drafts(self.tokens[:, :longest], probs, counts, peaks)

    def of(self, rows: list[int] | slice, counts: list[int]) -> Drafts:
        """The drafts of some rows, with their numbers of valid tokens."""
        probs, peaks = (None if part is None else part[rows] for part in (self.probs, self.peaks))
        return Drafts(self.tokens[rows], probs, counts, peaks)


class BatchDrafter(Protocol):
    """The interface between a batch and its draft."""

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        """At most counts[i] tokens for row i; `uniforms` has shape (B, max(counts))."""
        ...

    def settle(self, rows: Sequence[Row]) -> None:
        """Rewind to the rows' current tokens, and forget rejected drafts."""
        ...

    def move(self, source: int, target: int) -> None:
        """Row `source` becomes row `target`."""
        ...

    def clear(self, row: int) -> None:
        """Empty this row for a new request."""
        ...


class FusedDrafter(BatchDrafter, Protocol):
    """A drafter that can also draft all rows of a batch without decisions on the host."""

    def ready(self, rows: Sequence[Row], k: int) -> bool:
        """Whether `draft_all` can now draft k tokens for these rows, of at least 2 tokens each."""
        ...

    def limited(self, rows: Sequence[Row], counts: list[int]) -> list[int]:
        """The counts, reduced where a row cannot draft as many."""
        ...

    def draft_all(
        self, last: torch.Tensor, lengths: torch.Tensor, uniforms: torch.Tensor, warp: Warp
    ) -> Drafts:
        """Draft k tokens for every row of the cache.

        Parameters
        ----------
        last : int64 tensor, shape (B, 2)
            The last two tokens of each row.
        lengths : int64 tensor, shape (B, 1)
            All tokens of each row, at least 2.
        uniforms : float64 tensor, shape (B, k)
        warp : Warp
            The same for all rows.
        """
        ...

    def drafted(self, rows: Sequence[Row], k: int) -> None:
        """Record that a launch has run `draft_all` for these rows."""
        ...


class NoDrafts:
    """Plain decoding."""

    def __init__(self, device: torch.device) -> None:
        self._none = torch.zeros(0, dtype=torch.int64, device=device)

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        return self._nothing(len(rows))

    def ready(self, rows: Sequence[Row], k: int) -> bool:
        return True

    def limited(self, rows: Sequence[Row], counts: list[int]) -> list[int]:
        return [0] * len(rows)

    def draft_all(
        self, last: torch.Tensor, lengths: torch.Tensor, uniforms: torch.Tensor, warp: Warp
    ) -> Drafts:
        return self._nothing(len(last))

    def drafted(self, rows: Sequence[Row], k: int) -> None: ...

    def _nothing(self, batch: int) -> Drafts:
        return Drafts(self._none.expand(batch, 0), None, [0] * batch)

    def settle(self, rows: Sequence[Row]) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def clear(self, row: int) -> None: ...


class ModelDrafts:
    """A smaller model, sampled with the same parameters as the target.

    Parameters
    ----------
    model : PreTrainedModel
    rows, slots : int
        As for `Context`.
    vocabulary : int
        Width of the target's distribution. A wider draft never proposes ids beyond it (padding). A
        narrower one gives the missing ids probability 0, and proposes nothing once a sequence holds
        a token that it lacks.
    compiled : bool
        Whether its passes are compiled; see `CompiledContext`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        rows: int,
        slots: int,
        vocabulary: int,
        compiled: bool = False,
    ) -> None:
        opened = CompiledContext if compiled else open_context
        self._context = opened(model, rows=rows, slots=slots)
        self._vocabulary = vocabulary
        self._own = vocabulary_size(model)

    def prepare(self, k: int) -> float:
        """Compile the passes of a compiled context for k drafts; the seconds that it took.

        A block reads one or two tokens first, and then one by one.
        """
        if not isinstance(self._context, CompiledContext):
            return 0.0
        return self._context.prepare({0: (), 1: (2,)}.get(k, (1, 2)))

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        counts = self.limited(rows, counts)
        drafts = self._blank(uniforms)
        tokens, warp = drafts.tokens, BlockWarp(rows, "draft", drafts.tokens)
        for j in range(tokens.shape[1]):
            counts = self._stop(rows, counts, drafts, j)
            if max(counts) <= j:
                break
            logits = self._read(rows) if j == 0 else self._context.extend(tokens[:, j - 1])
            self._draw(drafts, j, logits[:, 0], uniforms[:, j], warp)
        return drafts.first(counts)

    def ready(self, rows: Sequence[Row], k: int) -> bool:
        lengths = self._context.lengths
        return k == 0 or (
            isinstance(self._context, StaticContext)
            and all(len(row.ids) - 2 <= lengths[i] for i, row in enumerate(rows))
        )

    def limited(self, rows: Sequence[Row], counts: list[int]) -> list[int]:
        counts = [
            self._context.limited(count, len(row.ids))
            for row, count in zip(rows, counts, strict=True)
        ]
        if self._own >= self._vocabulary:
            return counts
        return [
            0 if max(row.ids) >= self._own else count
            for row, count in zip(rows, counts, strict=True)
        ]

    def draft_all(
        self, last: torch.Tensor, lengths: torch.Tensor, uniforms: torch.Tensor, warp: Warp
    ) -> Drafts:
        drafts = self._blank(uniforms)
        # The first of the last two tokens may have been read before. Its slot is then overwritten
        # with the same values.
        tokens = last.clamp(max=self._own - 1)
        positions = torch.cat([lengths - 2, lengths - 1], dim=-1)
        for j in range(uniforms.shape[1]):
            logits = self._context.read_at(tokens, positions, keep=1)
            self._draw(drafts, j, logits[:, 0], uniforms[:, j], warp)
            tokens, positions = drafts.tokens[:, j : j + 1], positions[:, -1:] + 1
        return drafts

    def drafted(self, rows: Sequence[Row], k: int) -> None:
        if k:
            for i, row in enumerate(rows):
                self._context.lengths[i] = len(row.ids) - 1 + k

    def _blank(self, uniforms: torch.Tensor) -> Drafts:
        batch, k = uniforms.shape
        device = uniforms.device
        return Drafts(
            torch.zeros(batch, k, dtype=torch.int64, device=device),
            torch.zeros(batch, k, self._vocabulary, device=device),
            [k] * batch,
            uniforms.new_zeros(batch, k),
        )

    def _draw(
        self, drafts: Drafts, j: int, logits: torch.Tensor, uniforms: torch.Tensor, warp: Warp
    ) -> None:
        """Fill in the j-th tokens, distributions and peaks from logits of shape (B, V)."""
        probs: Any = drafts.probs
        peaks: Any = drafts.peaks
        logits = logits[:, : self._vocabulary]
        peaks[:, j] = logits.amax(-1)
        missing = self._vocabulary - logits.shape[-1]
        logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        rows = torch.arange(len(logits), device=logits.device)
        warped = warp(logits, rows, torch.full_like(rows, j))
        probs[:, j] = warped.softmax(-1, dtype=torch.float32)
        drafts.tokens[:, j] = draw_tokens(probs[:, j], uniforms)

    def _stop(self, rows, counts, drafts, j) -> list[int]:
        """The counts, reduced where an adaptive row stops after j tokens."""
        if all(isinstance(row.length, FixedLength) for row in rows):
            return counts
        tokens, probs = drafts.tokens[:, :j], drafts.probs[:, :j]
        drafted = probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        return [
            j if count > j and not row.length.should_draft_more(probs_of) else count
            for row, count, probs_of in zip(rows, counts, drafted, strict=True)
        ]

    def settle(self, rows: Sequence[Row]) -> None:
        lengths = self._context.lengths
        for i, row in enumerate(rows):
            lengths[i] = min(lengths[i], len(row.ids) - 1)

    def move(self, source: int, target: int) -> None:
        self._context.move(source, target)

    def clear(self, row: int) -> None:
        self._context.lengths[row] = 0

    def _read(self, rows: Sequence[Row]) -> torch.Tensor:
        unread = [self._context.unread(i, row.ids) for i, row in enumerate(rows)]
        return self._context.read([[min(token, self._own - 1) for token in ids] for ids in unread])


class RowDrafts:
    """A drafter that is asked for one row at a time, and whose answers are checked.

    Parameters
    ----------
    drafter : Drafter
    vocabulary : int
    device : torch.device
    """

    def __init__(self, drafter: Drafter, *, vocabulary: int, device: torch.device) -> None:
        self._drafter, self._vocabulary, self._device = drafter, vocabulary, device

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        proposals = []
        for row, limit, own in zip(rows, counts, uniforms, strict=True):
            count = min(limit, row.length.planned())
            proposal = Proposal(torch.zeros(0, dtype=torch.int64))
            if count:
                ids = torch.tensor([row.ids], device=self._device)
                try:
                    proposal = self._drafter.propose(ids, count, own[:count])
                    _check_proposal(proposal, count, self._vocabulary)
                except Exception as error:
                    error.add_note(f"This was raised at the draft for request {row.index}.")
                    raise
            proposals.append(proposal)
        found = [len(proposal.tokens) for proposal in proposals]
        tokens = torch.zeros(len(rows), max(found), dtype=torch.int64, device=self._device)
        laws = [proposal.probs for proposal in proposals if proposal.probs is not None]
        probs = None
        if laws:  # in the widest of their types, so that none is rounded
            dtype = functools.reduce(torch.promote_types, (law.dtype for law in laws))
            shape = (*tokens.shape, self._vocabulary)
            probs = torch.zeros(shape, dtype=dtype, device=self._device)
        for i, proposal in enumerate(proposals):
            tokens[i, : found[i]] = proposal.tokens
            if probs is not None and proposal.probs is not None:
                probs[i, : found[i]] = proposal.probs
            elif probs is not None:
                probs[i, : found[i]].scatter_(-1, tokens[i, : found[i], None], 1)
        return Drafts(tokens, probs, found)

    def settle(self, rows: Sequence[Row]) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def clear(self, row: int) -> None: ...


def _check_proposal(proposal: Proposal, count: int, vocabulary: int) -> None:
    if not isinstance(proposal, Proposal):
        raise TypeError(f"the draft must return a Proposal, got {type(proposal).__name__}")
    tokens, probs = proposal.tokens, proposal.probs
    for name, value in (("tokens", tokens), ("probs", probs)):
        if not (isinstance(value, torch.Tensor) or (name == "probs" and value is None)):
            raise TypeError(f"the draft's {name} must be a torch tensor, got {type(value)}")
    if tokens.ndim != 1 or tokens.dtype != torch.int64 or len(tokens) > count:
        raise ValueError(
            f"the draft must propose an int64 tensor of at most {count} tokens, "
            f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise ValueError(f"the draft must propose ids in [0, {vocabulary}), got {tokens.tolist()}")
    if probs is not None and tuple(probs.shape) != (len(tokens), vocabulary):
        raise ValueError(
            f"the draft's probs must have shape {(len(tokens), vocabulary)}, "
            f"got {tuple(probs.shape)}"
        )
    if probs is None or not len(tokens):
        return
    sums = probs.double().sum(-1)
    if not (probs >= 0).all() or not ((sums - 1).abs() <= _SUM_TOLERANCE).all():
        raise ValueError(
            f"the draft's probs must be distributions, got sums {sums.tolist()} "
            f"and a smallest entry of {float(probs.min())}"
        )
    if not (probs.gather(-1, tokens.unsqueeze(-1)) > 0).all():
        raise ValueError(
            f"the draft's tokens {tokens.tolist()} must have positive probability in its probs"
        )
