"""From a model's logits to the law that is sampled: temperature, top-k, top-p.

Both models' laws are taken after these, at every drafted and every verified position.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

_COLDEST, _HOTTEST = 1e-30, 1e30  # float32 still divides by them


@dataclass(frozen=True)
class SamplingParams:
    """How logits become a law.

    Parameters
    ----------
    temperature : float
        0, or in [1e-30, 1e30]. At 0 the law is one-hot on the first largest logit: greedy decoding.
    top_k : int or None
        Keep the k most probable tokens (and ties of the k-th); None keeps all.
    top_p : float
        In (0, 1]; keep the smallest set of most probable tokens that reaches this mass.

    Raises
    ------
    TypeError, ValueError
        Naming the parameter and its value.

    Examples
    --------
    >>> SamplingParams(temperature=0).warp(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([[-inf, 0., -inf]])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
        if self.temperature != 0 and not _COLDEST <= self.temperature <= _HOTTEST:
            raise ValueError(
                f"temperature must be 0, or lie in [{_COLDEST}, {_HOTTEST}], "
                f"got {self.temperature!r}"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p!r}")
        if self.top_k is not None:
            if isinstance(self.top_k, bool) or not isinstance(self.top_k, numbers.Integral):
                raise TypeError(f"top_k must be a positive integer or None, got {self.top_k!r}")
            if self.top_k < 1:
                raise ValueError(f"top_k must be a positive integer or None, got {self.top_k}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(float(self.top_p)))
        return warpers

    def warp(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits, shape (rows, V), whose softmax is the law that is sampled."""
        if self.greedy:
            best = logits.argmax(dim=-1, keepdim=True)
            return torch.full_like(logits, -torch.inf).scatter_(-1, best, 0.0)
        no_ids: Any = None  # these warpers read none
        # From the peak down, so that a small temperature sends logits to -inf and never to +inf.
        return self._warpers(no_ids, logits - logits.amax(dim=-1, keepdim=True))
