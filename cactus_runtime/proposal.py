"""Where drafted tokens come from, each with the very law it was drawn from.

A drafter is any object with ``propose(ids, count, uniforms) -> Proposal``. It sees the whole
sequence so far and may propose fewer tokens than asked, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from transformers import PreTrainedModel

from cactus_runtime.context import Context, vocabulary_size
from cactus_runtime.random import inverse_cdf
from cactus_runtime.sampling import SamplingParams


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens and their laws.

    Attributes
    ----------
    tokens : int64 tensor, shape (k,)
    probs : tensor, shape (k, V), or None
        Row i is the law token i was drawn from; None says that each was certain (one-hot).
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None = None


@runtime_checkable
class Drafter(Protocol):
    """What `decode` asks of a draft that is not a model."""

    def propose(self, ids: torch.Tensor, count: int, uniforms: torch.Tensor) -> Proposal:
        """Propose at most `count` tokens to follow `ids`, shape (1, n).

        `uniforms`, float64 of shape (count,), is all the randomness there is to spend: one a
        token, so that a seed determines the result.
        """
        ...


class ModelDraft:
    """A smaller model, sampled with the same parameters as the target.

    Parameters
    ----------
    model : PreTrainedModel
    sampling : SamplingParams
    vocabulary : int
        Width of the target's law. A wider draft is kept from proposing ids beyond it (padding);
        a narrower one gives them probability 0, and proposes nothing once the sequence holds a
        token that it lacks.
    """

    def __init__(self, model: PreTrainedModel, sampling: SamplingParams, vocabulary: int) -> None:
        self._context = Context(model, "draft")
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._own_vocabulary = vocabulary_size(model)

    def propose(self, ids: torch.Tensor, count: int, uniforms: torch.Tensor) -> Proposal:
        if self._own_vocabulary < self._vocabulary and int(ids.max()) >= self._own_vocabulary:
            return Proposal(ids[0, :0])
        laws = []
        for uniform in uniforms[:count]:
            logits = self._context.read(ids, last=1)[:, 0, : self._vocabulary]
            law = self._sampling.warp(logits).double().softmax(-1)
            token = inverse_cdf(law, uniform.expand(1))
            ids = torch.cat([ids, token.unsqueeze(0)], dim=1)
            laws.append(law)
        probs = torch.cat(laws)
        missing = self._vocabulary - probs.shape[-1]
        return Proposal(ids[0, -count:], torch.nn.functional.pad(probs, (0, missing)))


@dataclass(frozen=True)
class PromptLookup:
    """Propose what followed the last occurrence of the latest n-gram; needs no model.

    Its tokens are certain (one-hot laws), so a rule with budget delta emits exactly its candidate
    law h: here, and only here, KL(emitted || target) <= delta for the exact rule.

    Parameters
    ----------
    max_ngram : int
        Longest n-gram to look up; shorter ones are tried down to a single token.

    Raises
    ------
    ValueError
        If `max_ngram` is not a positive integer.

    Examples
    --------
    >>> PromptLookup().propose(torch.tensor([[5, 6, 7, 8, 5, 6]]), 2, torch.zeros(2)).tokens
    tensor([7, 8])
    """

    max_ngram: int = 3

    def __post_init__(self) -> None:
        if isinstance(self.max_ngram, bool) or not isinstance(self.max_ngram, int):
            raise ValueError(f"max_ngram must be a positive integer, got {self.max_ngram!r}")
        if self.max_ngram < 1:
            raise ValueError(f"max_ngram must be a positive integer, got {self.max_ngram}")

    def propose(self, ids: torch.Tensor, count: int, uniforms: torch.Tensor) -> Proposal:
        sequence = ids[0]
        for size in range(min(self.max_ngram, len(sequence) - 1), 0, -1):
            windows = sequence[:-1].unfold(0, size, 1)
            matches = (windows == sequence[-size:]).all(-1).nonzero()
            if len(matches):
                start = int(matches[-1]) + size
                return Proposal(sequence[start : start + count])
        return Proposal(sequence[:0])
