"""Rules that spread what they lose by one level b for all: the clamp, and Cactus so recovered.

Both need the whole target law, sorted by t = p/q; so they are solved with numpy. A clamp has the
largest acceptance of all rules that emit laws of no larger divergence, whatever strictly convex
divergence that is; one level is the cheapest way to recover a given mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from cactus_theory import _validate
from cactus_theory._chunks import by_chunks
from cactus_theory.families import KL, Divergence
from cactus_theory.rules._base import CandidateRule, SharedRecoveryRule
from cactus_theory.rules._facts import Facts

_MARGIN = 1e-15  # of the logarithm of a level
_LARGEST_EXPONENT = 709.0
_LARGEST = math.exp(_LARGEST_EXPONENT)


class _OneLevel(SharedRecoveryRule):
    """A rule that recovers from [b q - p]_+, with the b <= 1 that makes it the mass lost."""

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        _numpy_only(xp)
        return _by_position(_recovered, self.accepted_mass(draft, target), draft, target)

    def emitted(self, kept: Any, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """The lost mass is spread by the one recovery law."""
        _numpy_only(xp)
        return _by_position(_emitted, kept, draft, target)


@dataclass(frozen=True)
class OneLevelRecovery(_OneLevel):
    """A candidate rule's acceptance test with the recovery law [b q - p]_+, one b for all.

    Acceptance rate and total variation are those of `rule`; the emitted law, max(p, b q) where
    p <= q, has the least divergence from the target that such an acceptance allows.

    Parameters
    ----------
    rule : CandidateRule
        Whose acceptance test is used, for example ``Cactus(0.5)``.

    Raises
    ------
    TypeError
        If it has no candidates.

    Examples
    --------
    >>> from cactus_theory import Cactus, emission
    >>> rule = OneLevelRecovery(Cactus(0.1))
    >>> p, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.4, 0.3])
    >>> bool(emission(rule, draft=p, target=q).kl_bound
    ...      < emission(Cactus(0.1), draft=p, target=q).kl_bound)
    True
    """

    facts: ClassVar[Facts] = Facts(
        accepts="as the rule it wraps",
        recovers="[b q - p]_+",
        emits="min(p, g) where p > q, max(p, b q) elsewhere",
        guarantees="acceptance and TV(out, q) of that rule, KL(out||q) no larger",
        reads="q(n)",
        source="not in the paper",
    )
    rule: CandidateRule

    def __post_init__(self) -> None:
        if not isinstance(self.rule, CandidateRule):
            raise TypeError(f"rule must be a rule with candidates, got {self.rule!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return self.rule.accepted_mass(draft, target, xp=xp)


@dataclass(frozen=True)
class Clamp(_OneLevel):
    """Emit clip(p, b q, a q): the largest acceptance for a budget on the *emitted* law.

    Accept with min(1, a q / p), recover from [b q - p]_+, where b <= 1 <= a make the clipped law
    sum to one and its divergence from q equal to the budget. If the draft's law is itself within
    the budget, everything is accepted. Here, unlike anywhere else, the budget bounds what is
    emitted. The levels are rounded so that it is kept.

    Parameters
    ----------
    epsilon : float
        Budget of the emitted law at one position, in the units of the divergence.
    divergence : Divergence
        Default KL, in nats.

    Raises
    ------
    TypeError, ValueError
        If epsilon is not a number in [0, 1e100], or the divergence is none.

    References
    ----------
    Tran-Thien, "mentored decoding" (2023).

    Examples
    --------
    >>> from cactus_theory import kl, output_law
    >>> p, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.4, 0.3])
    >>> bool(abs(kl(output_law(Clamp(0.05), draft=p, target=q), q) - 0.05) < 1e-12)
    True
    """

    facts: ClassVar[Facts] = Facts(
        accepts="min(1, a q/p)",
        recovers="[b q - p]_+",
        emits="clip(p, b q, a q), b <= 1 <= a",
        guarantees="D(out||q) <= epsilon",
        reads="all of q",
        source="Tran-Thien 2023, mentored decoding",
    )
    epsilon: float
    divergence: Divergence = KL()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.budget("epsilon", self.epsilon))
        if not isinstance(self.divergence, Divergence):
            raise TypeError(f"divergence must be a Divergence, got {self.divergence!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        _numpy_only(xp)
        return _by_position(self._accepted, draft, target)

    def _accepted(self, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
        clip = _Clip(self.divergence, draft, target)
        level = clip.largest_level(self.epsilon)
        # The highest level leaves the draft as it is, but for tokens out of reach of any.
        if level == clip.highest and (not clip.outright or self._within_budget(draft, target)):
            return draft
        return np.minimum(draft, math.exp(min(level, _LARGEST_EXPONENT)) * target)

    def _within_budget(self, draft: np.ndarray, target: np.ndarray) -> bool:
        return bool(self.divergence.between(draft, target) <= self.epsilon)


class _Clip:
    """The laws clip(p, b q, a q) of one position: what they cost, and how large a may be.

    Levels a are meant by their logarithm. Tokens out of reach of every level (q = 0, or p/q too
    large for a float) lose the mass `outright` whatever the level.
    """

    def __init__(self, divergence: Divergence, draft: np.ndarray, target: np.ndarray) -> None:
        self.divergence = divergence
        over = np.flatnonzero(draft > target)
        p, q = draft[over], target[over]
        reached = np.minimum(p, _LARGEST * q)
        self.outright = float((p - reached).sum())
        inside = q > 0
        self.over = _Side(divergence, reached[inside], q[inside], sign=-1)
        under = np.flatnonzero(draft < target)
        self.under = _Side(divergence, draft[under], target[under], sign=1)
        self.top = float(-self.over.key[0]) if self.over.key.size else 1.0
        self.highest = math.log(self.top) + _MARGIN if self.over.key.size else 0.0

    def spent(self, log_level: float) -> float:
        """Divergence of the clipped law from the target; at `highest`, nothing is clipped."""
        exceeds = log_level >= self.highest  # exp(highest) may round below the top
        a = self.top if exceeds else min(math.exp(log_level), self.top)
        b = self.under.level(self.outright + self.over.height(-a))
        (above, over), (below, under) = self.over.split(-a), self.under.split(b)
        levels, mass = np.array([a, b]), np.array([above, below])
        clipped = self.divergence._term(levels * mass, mass, (levels - 1) * mass)
        return float(clipped.sum() + over + under)

    def largest_level(self, epsilon: float) -> float:
        """The largest level within the budget, rounded down.

        Sought outwards from a = 1, so that terms of tokens far beyond it are never computed.
        """
        if not self.highest or self.spent(0.0) >= epsilon:
            return 0.0
        low, high = 0.0, min(max(math.sqrt(epsilon), 0.01), self.highest)
        while (spent := self.spent(high)) <= epsilon:
            if high == self.highest:
                return high
            growth = 1.1 * math.sqrt(epsilon / max(spent, epsilon / 100))  # spent is near-quadratic
            low, high = high, min(growth * high, self.highest)
        level: Any = brentq(lambda x: self.spent(x) - epsilon, low, high, xtol=_MARGIN)
        step = _MARGIN
        while self.spent(level) > epsilon and level > 0:
            level, step = max(level - step, 0.0), 2 * step
        return level


class _Side:
    """One position's tokens on one side of t = p/q = 1, sorted by rising `key` = sign * t.

    A level is such a key; the tokens below it are those that are clipped to it. They lose, or
    receive, Z(level) = sum of q [level - key]_+.
    """

    def __init__(self, divergence: Divergence, p: np.ndarray, q: np.ndarray, *, sign: int) -> None:
        key = sign * (p / q)
        order = np.argsort(key)
        self.divergence = divergence
        self.key, self.p, self.q = key[order], p[order], q[order]
        self.mass = np.cumsum(self.q)
        self.heights = np.concatenate([[0.0], np.cumsum(self.mass[:-1] * np.diff(self.key))])
        self.terms = np.empty_like(key)
        self.unknown = key.size  # terms from here on are computed

    def height(self, level: float) -> float:
        """Z(level)."""
        last = np.searchsorted(self.key, level) - 1
        if last < 0:
            return 0.0
        return float(self.heights[last] + self.mass[last] * (level - self.key[last]))

    def level(self, height: float) -> float:
        """Where Z is `height`; 1 at most."""
        if not self.key.size:
            return 1.0
        last = np.searchsorted(self.heights[: self.key.size], height, side="right") - 1
        return min(float(self.key[last] + (height - self.heights[last]) / self.mass[last]), 1.0)

    def split(self, level: float) -> tuple[float, float]:
        """Mass below `level`, and divergence of the other tokens, which stay as they are."""
        first = int(np.searchsorted(self.key, level))
        if first < self.unknown:
            new = slice(first, self.unknown)
            self.terms[new] = by_chunks(self._terms, self.p[new], self.q[new], outputs=1)[0]
            self.unknown = first
        return float(self.mass[first - 1]) if first else 0.0, self.terms[first:].sum()

    def _terms(self, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray]:
        return (self.divergence._term(p, q, p - q),)


def _recovered(kept: np.ndarray, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[b q - p]_+ where it sums to the mass lost, b <= 1.

    Newton's method for b from above: tokens once found beyond the level stay there.
    """
    lost = (draft - kept).sum()
    below = np.flatnonzero(draft < target)
    p, q = draft[below], target[below]
    level = 1.0
    while q.size:
        level = min((lost + p.sum()) / q.sum(), 1.0)
        inside = p < level * q
        if inside.all():
            break
        inside = np.flatnonzero(inside)
        p, q = p[inside], q[inside]
    return np.maximum(level * target - draft, 0.0)


def _emitted(kept: np.ndarray, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
    weights = _recovered(kept, draft, target)
    total = weights.sum()
    if total == 0:  # by rounding
        weights, total = target, 1.0
    return kept + (draft - kept).sum() / total * weights


def _by_position(solve: Any, *laws: Any) -> np.ndarray:
    """Apply a function of one position's laws to all positions."""
    laws = np.broadcast_arrays(*laws)
    out = np.empty(laws[0].shape)
    for position in np.ndindex(out.shape[:-1]):
        out[position] = solve(*(law[position] for law in laws))
    return out


def _numpy_only(xp: Any) -> None:
    if xp is not np:
        raise TypeError("this rule reads the whole target law and is solved with numpy only")
