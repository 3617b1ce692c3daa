"""Cactus: the second-order rule, and the exact KL optimum it approximates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import log_growth
from cactus_theory.rules._base import Rule
from cactus_theory.rules._kl_root import kl_root


def second_order_boost(target_prob: Any, delta: Any, *, xp: Any = np) -> Any:
    """min(q + sqrt(2 delta q (1-q)), 1): Corollary 5, over any namespace with sqrt and clip."""
    gain = xp.sqrt(2 * delta * (1 - target_prob)) * xp.sqrt(target_prob)
    return xp.clip(target_prob + gain, 0.0, 1.0)


@dataclass(frozen=True)
class Cactus(Rule):
    """The rule of the paper: g = min(q + sqrt(2 delta q (1-q)), 1).

    Uncapped, the candidate has chi-square divergence from the target of exactly 2 delta, and a KL
    of at most log(1 + 2 delta), which exceeds delta when delta < 1.2564. Where g <= 1/2, its KL
    is at most delta (Corollary 6). None of this bounds the law that is emitted.

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

    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _validate.budget("delta", self.delta))

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        return second_order_boost(target_prob, self.delta, xp=xp)

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        # 1 - sqrt(2 delta q/(1-q)), without the cancellation of (1-g)/(1-q) near q = 1.
        room = 1 - target_prob
        odds = target_prob / xp.where(room > 0, room, 1.0)
        left = xp.clip(1 - xp.sqrt(2 * self.delta * odds), 0.0, 1.0)
        return xp.where(room > 0, left, 1.0)


@dataclass(frozen=True)
class CactusExact(Rule):
    """The exact optimum: g is the largest h with KL(Bernoulli(h) || Bernoulli(q)) <= delta.

    On improbable tokens it is far more generous than the second-order rule: about
    delta / log(1/q) against sqrt(2 delta q).

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
    Theorem 2 of Hao and Mou (2026).

    See Also
    --------
    cactus_theory.exact_optimum : the same root with its bracket, rounded to the feasible side.

    Examples
    --------
    >>> round(float(CactusExact(1.0).boost(1e-4)), 4)
    0.1555
    """

    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _validate.budget("delta", self.delta))

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        return kl_root(target_prob, self.delta, xp=xp)[0]

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        return kl_root(target_prob, self.delta, xp=xp)[2]

    def accepted_mass(self, draft_prob: Any, target_prob: Any, *, xp: Any = np) -> Any:
        # A token of p log(p/q) <= delta is within the budget as it stands (its KL is less still);
        # on a whole vocabulary that leaves a handful of roots to find.
        draft_prob, target_prob = xp.asarray(draft_prob), xp.asarray(target_prob)
        counted = (draft_prob > target_prob) & (target_prob > 0)
        gain = xp.where(counted, draft_prob - target_prob, 0.0)
        growth = log_growth(xp.where(counted, target_prob, 1.0), gain, xp=xp)
        spends = draft_prob * growth >= (1 - 1e-9) * self.delta  # a margin for rounding
        needed = (counted & spends) | (target_prob <= 0)
        mass = xp.where(needed, 0.0, draft_prob)
        if needed.any():
            mass[needed] = xp.minimum(draft_prob[needed], self.boost(target_prob[needed], xp=xp))
        return mass[()]
