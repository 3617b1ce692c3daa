"""Where drafted tokens come from, with the distributions that they were drawn from.

A drafter is any object with ``propose(ids, count, uniforms) -> Proposal``. It sees the whole
sequence so far and may propose fewer tokens than asked, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from cactus_theory._validate import integer


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens and their distributions.

    Attributes
    ----------
    tokens : int64 tensor, shape (k,)
    probs : tensor, shape (k, V), or None
        Row i is the distribution that token i was drawn from; None means that each was certain
        (one-hot).

    Examples
    --------
    >>> Proposal(torch.tensor([3, 1])).probs is None
    True
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None = None


@runtime_checkable
class Drafter(Protocol):
    """The interface of a draft that is not a model.

    Examples
    --------
    >>> isinstance(PromptLookup(), Drafter)
    True
    """

    def propose(self, ids: torch.Tensor, count: int, uniforms: torch.Tensor) -> Proposal:
        """Propose at most `count` tokens to follow `ids`, shape (1, n).

        `uniforms`, float64 of shape (count,), is the only randomness to be used, one number per
        token, so that a seed determines the result.
        """
        ...


@dataclass(frozen=True)
class PromptLookup:
    """Propose what followed the last occurrence of the latest n-gram; needs no model.

    Its tokens are certain (one-hot distributions), so a rule with budget delta emits exactly its
    candidate distribution h: here, and only here, KL(emitted || target) <= delta for the exact
    rule.

    Parameters
    ----------
    max_ngram : int
        Longest n-gram to look up; shorter ones are tried down to a single token.

    Raises
    ------
    TypeError, ValueError
        If `max_ngram` is not a positive integer.

    Examples
    --------
    >>> PromptLookup().propose(torch.tensor([[5, 6, 7, 8, 5, 6]]), 2, torch.zeros(2)).tokens
    tensor([7, 8])
    """

    max_ngram: int = 3

    def __post_init__(self) -> None:
        integer("max_ngram", self.max_ngram, 1)

    def propose(self, ids: torch.Tensor, count: int, uniforms: torch.Tensor) -> Proposal:
        sequence = ids[0]
        for size in range(min(self.max_ngram, len(sequence) - 1), 0, -1):
            windows = sequence[:-1].unfold(0, size, 1)
            matches = (windows == sequence[-size:]).all(-1).nonzero()
            if len(matches):
                start = int(matches[-1]) + size
                return Proposal(sequence[start : start + count])
        return Proposal(sequence[:0])
