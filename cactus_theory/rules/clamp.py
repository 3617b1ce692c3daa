"""Rules that spread what they lose by one level b for all: the clamp, and Cactus so recovered.

Both need the whole target law, sorted by t = p/q; so they are solved with numpy. A clamp has the
largest acceptance of all rules that emit laws of no larger divergence, whatever strictly convex
divergence that is; one level is the cheapest way to recover a given mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory import _validate
from cactus_theory.families import KL, Divergence
from cactus_theory.rules._base import CandidateRule, SharedRecoveryRule

_MARGIN = 1e-15  # of the logarithm of a level
_LARGEST_EXPONENT = 709.0


@dataclass(frozen=True)
class OneLevelRecovery(SharedRecoveryRule):
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

    rule: CandidateRule

    def __post_init__(self) -> None:
        if not isinstance(self.rule, CandidateRule):
            raise TypeError(f"rule must be a rule with candidates, got {self.rule!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return self.rule.accepted_mass(draft, target, xp=xp)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        _numpy_only(xp)
        lost = (draft - self.accepted_mass(draft, target)).sum(axis=-1)
        return _by_position(lambda p, q, w: _Sorted(p, q).filling(w), draft, target, lost)


@dataclass(frozen=True)
class Clamp(SharedRecoveryRule):
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

    epsilon: float
    divergence: Divergence = KL()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.budget("epsilon", self.epsilon))
        if not isinstance(self.divergence, Divergence):
            raise TypeError(f"divergence must be a Divergence, got {self.divergence!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        _numpy_only(xp)
        return _by_position(self._accepted, draft, target)

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        _numpy_only(xp)
        lost = (draft - self.accepted_mass(draft, target)).sum(axis=-1)
        return _by_position(lambda p, q, w: _Sorted(p, q).filling(w), draft, target, lost)

    def _accepted(self, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
        if self.divergence.between(draft, target) <= self.epsilon:
            return draft
        return np.minimum(draft, self._level(draft, target) * target)

    def _level(self, draft: np.ndarray, target: np.ndarray) -> float:
        """The largest a whose clipped law is within the budget, rounded down."""
        tokens = _Sorted(draft, target)
        over = (draft > target) & (target > 0)

        def spent(log_level: float) -> Any:
            kept = np.minimum(draft, np.exp(log_level) * target)
            law = np.maximum(kept, tokens.lower_level((draft - kept).sum()) * target)
            return self.divergence.between(law, target)

        if not over.any() or spent(0.0) >= self.epsilon:
            return 1.0
        highest = (np.log(draft[over]) - np.log(target[over])).max() + _MARGIN
        highest = min(highest, _LARGEST_EXPONENT)
        if spent(highest) <= self.epsilon:
            return float(np.exp(highest))
        level: Any = brentq(lambda x: spent(x) - self.epsilon, 0.0, highest, xtol=_MARGIN)
        step = _MARGIN
        while spent(level) > self.epsilon and level > 0:
            level, step = max(level - step, 0.0), 2 * step
        return float(np.exp(level))


class _Sorted:
    """One position's tokens with p < q, by rising t = p/q, and Z(b) = sum q [b - t]_+ at each t."""

    def __init__(self, draft: np.ndarray, target: np.ndarray) -> None:
        self.draft, self.target = draft, target
        below = np.flatnonzero(draft < target)
        ratio = draft[below] / target[below]
        order = np.argsort(ratio)
        self.index = below[order]
        self.ratio = ratio[order]
        self.mass = np.cumsum(target[self.index])
        steps = self.mass[:-1] * np.diff(self.ratio)
        self.height = np.concatenate([[0.0], np.cumsum(steps)])

    def lower_level(self, lost: float) -> float:
        """b with Z(b) = lost; 1 at most."""
        if not self.ratio.size:
            return 1.0
        last = np.searchsorted(self.height[: self.ratio.size], lost, side="right") - 1
        level = self.ratio[last] + (lost - self.height[last]) / self.mass[last]
        return min(float(level), 1.0)

    def filling(self, lost: float) -> np.ndarray:
        """[b q - p]_+ where it sums to `lost`."""
        return np.maximum(self.lower_level(lost) * self.target - self.draft, 0.0)


def _by_position(solve: Any, draft: Any, target: Any, *more: Any) -> np.ndarray:
    """Apply a function of one position's laws to all positions."""
    draft, target = np.broadcast_arrays(draft, target)
    out = np.empty(draft.shape)
    for position in np.ndindex(draft.shape[:-1]):
        out[position] = solve(draft[position], target[position], *(x[position] for x in more))
    return out


def _numpy_only(xp: Any) -> None:
    if xp is not np:
        raise TypeError("this rule reads the whole target law and is solved with numpy only")
