"""Speculative sampling, the lossless rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory.rules._base import CandidateRule
from cactus_theory.rules._facts import Facts


@dataclass(frozen=True)
class SpeculativeSampling(CandidateRule):
    """Plain speculative sampling: h is the target itself, g = q, and it is what is emitted.

    References
    ----------
    Leviathan, Kalman and Matias (2023); Chen et al. (2023). Theorem 1 of Hao and Mou (2026).

    Examples
    --------
    >>> float(SpeculativeSampling().boost(0.25))
    0.25
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, q/p)",
        recovers="[q - p]_+",
        emits="q",
        guarantees="out = q",
        reads="q(n)",
        source="Leviathan et al. 2023, Chen et al. 2023; Theorem 1 of Hao and Mou 2026",
    )

    @property
    def lossless(self) -> bool:
        return True

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        return target_prob

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        return xp.ones_like(target_prob)
