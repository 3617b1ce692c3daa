"""Drafts for the rows of a batch: by a model that reads them together, or row by row."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from cactus_runtime.context import vocabulary_size
from cactus_runtime.draft_length import FixedLength
from cactus_runtime.proposal import Drafter, Proposal
from cactus_runtime.random import inverse_cdf
from cactus_runtime.row import BlockWarp, Row
from cactus_runtime.static_context import open_context

_SUM_TOLERANCE = 1e-3  # a half-precision softmax stays within it


@dataclass(frozen=True)
class Drafts:
    """Drafted tokens of B rows, padded to one length.

    Attributes
    ----------
    tokens : int64 tensor, shape (B, k)
    probs : tensor, shape (B, k, V), or None
        The laws they were drawn from; None says that each was certain (one-hot).
    counts : list of B ints
        How many count.
    peaks : tensor, shape (B, k), or None
        Largest logit of each row that was read, by which non-finite ones are known.
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None
    counts: list[int]
    peaks: torch.Tensor | None = None


class BatchDrafter(Protocol):
    """What a batch asks of its draft."""

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        """At most counts[i] tokens for row i; `uniforms` has shape (B, max(counts))."""
        ...

    def settle(self, rows: Sequence[Row]) -> None:
        """The rows' tokens are now these: forget drafts that were refused."""
        ...

    def move(self, source: int, target: int) -> None:
        """What was row `source` is row `target` from now on."""
        ...

    def clear(self, row: int) -> None:
        """A new request takes this row."""
        ...


class NoDrafts:
    """Plain decoding."""

    def __init__(self, device: torch.device) -> None:
        self._none = torch.zeros(0, dtype=torch.int64, device=device)

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        return Drafts(self._none.expand(len(rows), 0), None, [0] * len(rows))

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
        Width of the target's law. A wider draft is kept from proposing ids beyond it (padding);
        a narrower one gives them probability 0, and proposes nothing once a sequence holds a
        token that it lacks.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int, slots: int, vocabulary: int) -> None:
        self._context = open_context(model, rows=rows, slots=slots)
        self._vocabulary = vocabulary
        self._own = vocabulary_size(model)

    def propose(self, rows: Sequence[Row], counts: list[int], uniforms: torch.Tensor) -> Drafts:
        batch, k = uniforms.shape
        if self._own < self._vocabulary:
            counts = [
                0 if max(row.ids) >= self._own else count
                for row, count in zip(rows, counts, strict=True)
            ]
        tokens = torch.zeros(batch, k, dtype=torch.int64, device=uniforms.device)
        peaks = uniforms.new_zeros(batch, k)
        probs = torch.zeros(batch, k, self._vocabulary, device=uniforms.device)
        warp = BlockWarp(rows, "draft", tokens)
        for j in range(k):
            counts = self._stop(rows, counts, tokens, probs, j)
            if max(counts) <= j:
                break
            logits = self._read(rows) if j == 0 else self._context.extend(tokens[:, j - 1])
            logits = logits[:, 0, : self._vocabulary]
            peaks[:, j] = logits.amax(-1)
            missing = self._vocabulary - logits.shape[-1]
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
            probs[:, j] = warp(logits, j).softmax(-1, dtype=torch.float32)
            tokens[:, j] = inverse_cdf(probs[:, j], uniforms[:, j])
        longest = max(counts)
        return Drafts(tokens[:, :longest], probs[:, :longest], counts, peaks[:, :longest])

    def _stop(self, rows, counts, tokens, probs, j) -> list[int]:
        """The counts, less what rows that choose their number will not draft after j tokens."""
        if all(isinstance(row.length, FixedLength) for row in rows):
            return counts
        drafted = probs[:, :j].gather(-1, tokens[:, :j, None]).squeeze(-1).tolist()
        return [
            j if count > j and not row.length.goes_on(probs_of) else count
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
        lengths = self._context.lengths
        return self._context.read(
            [
                [min(token, self._own - 1) for token in row.ids[lengths[i] :]]
                for i, row in enumerate(rows)
            ]
        )


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
                proposal = self._drafter.propose(ids, count, own[:count])
                _check_proposal(proposal, count, self._vocabulary)
            proposals.append(proposal)
        found = [len(proposal.tokens) for proposal in proposals]
        tokens = torch.zeros(len(rows), max(found), dtype=torch.int64, device=self._device)
        laws = [proposal.probs for proposal in proposals if proposal.probs is not None]
        probs = None
        if laws:  # in the widest of their types, so that none is rounded for another's sake
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
            f"the draft's probs must be laws, got sums {sums.tolist()} "
            f"and a smallest entry of {float(probs.min())}"
        )
    if not (probs.gather(-1, tokens.unsqueeze(-1)) > 0).all():
        raise ValueError(
            f"the draft's tokens {tokens.tolist()} must have positive probability in its probs"
        )
