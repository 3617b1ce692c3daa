"""Rules in use elsewhere, for comparison: lenience, mixture, typical acceptance, top-k.

None of them has a divergence budget, though lenience bounds a divergence. What each emits is
computed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory import _validate
from cactus_theory.rules._base import SharedRecoveryRule
from cactus_theory.rules._facts import Facts


def first_of_largest(target: Any, *, xp: Any) -> Any:
    """1 at the first of the equal maxima of each distribution, 0 elsewhere."""
    best = target == xp.amax(target, axis=-1, keepdims=True)
    first = best & (xp.cumsum(best, axis=-1) == 1)
    return xp.where(first, 1.0, 0.0 * target)


@dataclass(frozen=True)
class Lenience(SharedRecoveryRule):
    """Accept with min(1, q / (l p)), recover from [q - p]_+. Emits at most q / l anywhere.

    Parameters
    ----------
    lenience : float
        l in (0, 1]; 1 is plain speculative sampling.

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    References
    ----------
    Leviathan, Kalman and Matias (2023), appendix A.5.

    Examples
    --------
    >>> Lenience(0.5).accepted_mass(np.array([0.9, 0.1]), np.array([0.3, 0.7]))
    array([0.6, 0.1])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, q/(l p))",
        recovers="[q - p]_+",
        emits="min(p, q/l) where p > q, between p and q elsewhere",
        guarantees="out <= q/l, hence KL(out||q) <= log(1/l)",
        reads="q(n)",
        source="Leviathan et al. 2023, A.5",
    )
    ordered: ClassVar[bool] = True
    lenience: float

    def __post_init__(self) -> None:
        value = _validate.fraction("lenience", self.lenience, "(0, 1]")
        object.__setattr__(self, "lenience", value)

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        # l * p and q compared without dividing, which could overflow
        kept = self.lenience * draft <= target
        return xp.where(kept, draft, xp.where(kept, 0.0, target) / self.lenience)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return xp.where(target > draft, target - draft, 0.0)


@dataclass(frozen=True)
class Mixture(SharedRecoveryRule):
    """Speculative sampling towards h = w q + (1 - w) p, which is also the emitted distribution.

    Parameters
    ----------
    weight : float
        w in [0, 1]: 1 is plain speculative sampling, 0 accepts everything.

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    Examples
    --------
    >>> Mixture(0.5).accepted_mass(np.array([0.75, 0.25]), np.array([0.5, 0.5]))
    array([0.625, 0.25 ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, h/p), h = w q + (1-w) p",
        recovers="[q - p]_+",
        emits="h",
        guarantees="TV(out, q) = (1-w) TV(p, q)",
        reads="q(n)",
        source="transformers, `assistant_ensemble_weight`",
    )
    ordered: ClassVar[bool] = True
    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _validate.fraction("weight", self.weight, "[0, 1]"))

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        mixed = self.weight * target + (1 - self.weight) * draft
        return xp.where(target >= draft, draft, xp.minimum(mixed, draft))

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return xp.where(target > draft, target - draft, 0.0)


@dataclass(frozen=True)
class TypicalAcceptance(SharedRecoveryRule):
    """Keep any token with q(n) > min(epsilon, alpha e^{-H(q)}); else emit the target's argmax.

    The test ignores the draft's distribution. As an optimisation it bounds a cross-entropy, which
    is linear in h, so its optimum is a one-hot distribution (Proposition 4): the entropy term
    rewards collapse. The first of equal maxima is emitted.

    Parameters
    ----------
    epsilon : float
        In (0, 1].
    alpha : float, optional
        In (0, 1]; default sqrt(epsilon).

    Raises
    ------
    TypeError, ValueError
        If a parameter is outside its range.

    References
    ----------
    Medusa (Cai et al. 2024); Proposition 4 of Hao and Mou (2026).

    Examples
    --------
    >>> rule = TypicalAcceptance()
    >>> rule.accepted_mass(np.array([0.5, 0.5, 0.0]), np.array([0.9, 0.05, 0.05]))
    array([0.5, 0. , 0. ])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="1 if q > min(epsilon, alpha exp(-H(q))), else 0",
        recovers="argmax q",
        emits="p where accepted, the rest on argmax q",
        guarantees="none",
        reads="q(n) and the entropy of q",
        source="Medusa, Cai et al. 2024; Proposition 4 of Hao and Mou 2026",
    )
    epsilon: float = 0.09
    alpha: float | None = None

    def __post_init__(self) -> None:
        epsilon = _validate.fraction("epsilon", self.epsilon, "(0, 1]")
        alpha = math.sqrt(epsilon) if self.alpha is None else self.alpha
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "alpha", _validate.fraction("alpha", alpha, "(0, 1]"))

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        logs = xp.log(xp.where(target > 0, target, 1.0))
        typical = self.alpha * xp.exp((target * logs).sum(axis=-1))
        threshold = xp.where(typical < self.epsilon, typical, self.epsilon)
        return xp.where(target > threshold[..., None], draft, 0.0)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return first_of_largest(target, xp=xp)


@dataclass(frozen=True)
class TopKAcceptance(SharedRecoveryRule):
    """Keep any token among the target's k most probable; recover from [1{top k} - p]_+.

    Ties of the k-th are kept too; a token of target probability 0 never is kept.

    Parameters
    ----------
    k : int
        >= 1.

    Raises
    ------
    TypeError, ValueError
        If the parameter is outside its range.

    Examples
    --------
    >>> TopKAcceptance(1).accepted_mass(np.array([0.5, 0.5]), np.array([0.4, 0.6]))
    array([0. , 0.5])
    """

    facts: ClassVar[Facts] = Facts(
        accepts="1 if q > 0 is among the k largest, else 0",
        recovers="[1{among} - p]_+",
        emits="p or more where accepted, 0 elsewhere",
        guarantees="only accepted tokens are emitted; no divergence is bounded",
        reads="the rank of q(n)",
        source="for comparison",
    )
    k: int

    def __post_init__(self) -> None:
        _validate.integer("k", self.k, 1)

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return xp.where(self._among(target, xp), draft, 0.0)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return xp.where(self._among(target, xp), 1.0 - draft, 0.0)

    def _among(self, target: Any, xp: Any) -> Any:
        size = target.shape[-1]
        if self.k >= size:
            return target > 0
        if xp is np:
            kth = np.partition(target, size - self.k, axis=-1)[..., size - self.k, None]
        else:
            kth = target.topk(self.k, dim=-1).values[..., -1:]
        return (target >= kth) & (target > 0)
