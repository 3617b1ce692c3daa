"""Cactus: the second-order rule, the exact optimum it approximates, and the safe closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import KL, Divergence
from cactus_theory.divergences import second_order_boost as second_order_boost
from cactus_theory.rules._base import CandidateRule
from cactus_theory.rules._facts import Facts

_KL = KL()
_DOWN = 1 - 2.0**-49  # more than the roundings of a squared gain
_BEYOND = 660.0  # nats; e^660 / 2^-53 is still a number
_BELOW_ONE = 1 - 2.0**-53


@dataclass(frozen=True)
class _Budgeted(CandidateRule):
    """A candidate within a budget of `delta` nats, which is the target itself at 0."""

    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _validate.budget("delta", self.delta))

    @property
    def lossless(self) -> bool:
        return self.delta == 0


@dataclass(frozen=True)
class Cactus(_Budgeted):
    """The rule of the paper: g = min(q + sqrt(2 delta q (1-q)), 1).

    Uncapped, the candidate has chi-square divergence from the target of exactly 2 delta, and a KL
    of at most log(1 + 2 delta), which exceeds delta when delta < 1.2564. Where g <= 1/2, its KL
    is at most delta (Corollary 6). None of this bounds the distribution that is emitted.

    Parameters
    ----------
    delta : float
        Budget of one candidate, in nats; 0 is plain speculative sampling.

    Raises
    ------
    TypeError, ValueError
        If delta is not a finite number >= 0.

    References
    ----------
    Corollaries 5 and 6 of Hao and Mou (2026).

    Examples
    --------
    >>> round(float(Cactus(0.5).boost(0.2)), 6)
    0.6
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, g/p), g = min(q + sqrt(2 delta q (1-q)), 1)",
        recovers="[h - p]_+",
        emits="min(p, g) where p > q, between p and q elsewhere",
        guarantees="chi2(h||q) <= 2 delta, KL(h||q) <= log(1 + 2 delta); delta does not bound out",
        reads="q(n)",
        source="Hao and Mou 2026, Corollary 5",
    )

    @property
    def chi_square_floor(self) -> float:
        return 2 * self.delta

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        # A probability may exceed 1 by rounding, which would make the square root nan.
        return second_order_boost(xp.clip(target_prob, 0.0, 1.0), self.delta, xp=xp)

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        # 1 - sqrt(2 delta q/(1-q)), without the cancellation of (1-g)/(1-q) near q = 1.
        room = 1 - target_prob
        odds = target_prob / xp.where(room > 0, room, 1.0)
        left = xp.clip(1 - xp.sqrt(2 * self.delta * odds), 0.0, 1.0)
        return xp.where(room > 0, left, 1.0)


@dataclass(frozen=True)
class CactusExact(_Budgeted):
    """The exact optimum: g is the largest h with D(Bernoulli(h) || Bernoulli(q)) <= delta.

    With KL, on improbable tokens it is far more generous than the second-order rule: about
    delta / log(1/q) against sqrt(2 delta q). It runs over any namespace for KL, total variation,
    chi-square and squared Hellinger; for a divergence whose optimum is a root, over numpy only.
    The budget is one candidate's, and does not bound the distribution that is emitted.

    Parameters
    ----------
    delta : float
        Budget of one candidate, in nats (other divergences: in their units); 0 is plain
        speculative sampling.
    divergence : Divergence
        KL if not given.

    Raises
    ------
    TypeError, ValueError
        If delta is not a finite number >= 0, or `divergence` is not a Divergence. The methods raise
        a TypeError where ``xp`` is not numpy and the divergence needs numpy.

    See Also
    --------
    cactus_theory.exact_optimum : the same root with its bracket, rounded to the feasible side.

    References
    ----------
    Theorem 2 of Hao and Mou (2026).

    Examples
    --------
    >>> round(float(CactusExact(1.0).boost(1e-4)), 4)
    0.1555
    >>> from cactus_theory import TotalVariation
    >>> float(CactusExact(0.5, TotalVariation()).boost(0.25))
    0.75
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, g/p), g the largest with D(h||q) <= delta",
        recovers="[h - p]_+",
        emits="min(p, g) where p > q, between p and q elsewhere",
        guarantees="D(h||q) <= delta; delta does not bound out",
        reads="q(n)",
        source="Hao and Mou 2026, Theorem 2",
    )
    divergence: Divergence = _KL

    def __post_init__(self) -> None:
        if not isinstance(self.divergence, Divergence):
            raise TypeError(f"divergence must be a Divergence, got {self.divergence!r}")
        super().__post_init__()

    @property
    def chi_square_floor(self) -> float:
        """For KL the floor of `CactusSafe`, whose candidate is within the budget."""
        return math.expm1(min(self.delta, _BEYOND)) * _DOWN if self.divergence == _KL else 0.0

    @property
    def torch_ready(self) -> bool:
        """Whether the optimum of the divergence is a formula, or KL's by Newton steps."""
        return self.divergence.torch_ready

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        return self.divergence.solve(target_prob, self.delta, xp=xp)[0]

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        return self.divergence.solve(target_prob, self.delta, xp=xp)[2]

    def accepted_mass(self, draft_prob: Any, target_prob: Any, *, xp: Any = np) -> Any:
        if xp is not np:  # every root is computed, whether it is needed or not
            return super().accepted_mass(draft_prob, target_prob, xp=xp)
        if self.divergence != _KL:
            return self._mass_by_cost(*np.broadcast_arrays(draft_prob, target_prob))
        # A token of p (p - q) <= delta q has p log(p/q) <= delta, and is within the budget at g = p
        # (its KL is smaller still). In a whole vocabulary few roots remain to be found.
        draft_prob, target_prob = np.asarray(draft_prob), np.asarray(target_prob)
        room = (1 - 1e-9) * self.delta * target_prob  # a margin for rounding
        needed = (draft_prob * (draft_prob - target_prob) >= room) & (draft_prob > target_prob)
        mass = np.where(needed, 0.0, draft_prob)
        if needed.any():
            mass[needed] = np.minimum(draft_prob[needed], self.boost(target_prob[needed]))
        return mass[()]

    def _mass_by_cost(self, draft_prob: np.ndarray, target_prob: np.ndarray) -> Any:
        """min(p, g), with a root only where p itself is not within the budget."""
        raised = draft_prob > target_prob
        p = np.where(raised, np.minimum(draft_prob, 1.0), 0.5)
        q = np.where(raised, target_prob, 0.5)
        spends = self.divergence.binary(p, q) >= (1 - 1e-9) * self.delta  # a margin for rounding
        needed = raised & (spends | (target_prob <= 0))
        mass = np.where(needed, 0.0, draft_prob)
        if needed.any():
            mass[needed] = np.minimum(draft_prob[needed], self.boost(target_prob[needed]))
        return mass[()]


@dataclass(frozen=True)
class CactusSafe(_Budgeted):
    """The safe closed form: g = min(q + sqrt((e^delta - 1) q (1-q)), 1).

    Uncapped, the candidate has chi-square divergence e^delta - 1 from the target, and KL is at most
    log(1 + chi-square): its KL never exceeds delta, for any q, with equality at q = e^-delta, where
    the cap g = 1 begins. For small budgets g moves less than under the second-order rule, by a
    factor sqrt(2). The budget is one candidate's, and does not bound the distribution that is
    emitted.

    The gain is rounded down (by 2**-50 of itself), and g = 1 is given only where that is within the
    budget. So the candidate of the float g keeps its budget as well.

    Parameters
    ----------
    delta : float
        Budget of one candidate, in nats; 0 is plain speculative sampling. More than 660 is treated
        as 660.

    Raises
    ------
    TypeError, ValueError
        If delta is not a finite number >= 0.

    Examples
    --------
    >>> round(float(CactusSafe(0.25).boost(0.2)), 6)
    0.413176
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, g/p), g = min(q + sqrt((e^delta - 1) q (1-q)), 1)",
        recovers="[h - p]_+",
        emits="min(p, g) where p > q, between p and q elsewhere",
        guarantees="KL(h||q) <= delta; delta does not bound out",
        reads="q(n)",
        source="not in the paper",
    )

    @property
    def chi_square_floor(self) -> float:
        return self._chi_square

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        room = xp.clip(1 - target_prob, 0.0, 1.0)
        gain = xp.sqrt(self._chi_square * room) * xp.sqrt(target_prob)
        raised = xp.clip(target_prob + gain, 0.0, _BELOW_ONE)
        return xp.where(self._chi_square * target_prob >= room, 1.0, raised)[()]

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        room = 1 - target_prob
        odds = target_prob / xp.where(room > 0, room, 1.0)
        left = xp.clip(1 - xp.sqrt(self._chi_square * odds), 0.0, 1.0)
        left = xp.where(self._chi_square * target_prob >= room, 0.0, left)
        return xp.where(room > 0, left, 1.0)[()]

    @property
    def _chi_square(self) -> float:
        return math.expm1(min(self.delta, _BEYOND)) * _DOWN
