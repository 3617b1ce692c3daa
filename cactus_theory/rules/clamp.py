"""Rules that recover with one level b for all tokens: the clamp, and Cactus with such recovery.

Both need the whole target distribution, sorted by t = p/q. A clamp
has the largest acceptance of all rules that emit distributions of no larger divergence, for every
strictly convex divergence. One level is the way to recover a given mass that costs least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cactus_theory import _validate
from cactus_theory.divergences import KL, Divergence
from cactus_theory.rules._base import CandidateRule, SharedRecoveryRule
from cactus_theory.rules._clip import levels, times
from cactus_theory.rules._facts import Facts
from cactus_theory.rules._levels import SortedRatios


class _OneLevel(SharedRecoveryRule):
    """A rule that recovers from [b q - p]_+, with b <= 1 such that its sum is the mass lost."""

    ordered: ClassVar[bool] = True

    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        kept = self.accepted_mass(draft, target, xp=xp)
        if xp is np:
            return _by_position(_recovered, kept, draft, target)
        level, _ = SortedRatios(draft, target, xp=xp).lower((draft - kept).sum(-1, keepdims=True))
        return (level * target - draft).clip(min=0.0)

    def emitted(self, kept: Any, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """The lost mass is spread by the one recovery distribution."""
        if xp is np:
            return _by_position(_emitted, kept, draft, target)
        return super().emitted(kept, draft, target, xp=xp)


@dataclass(frozen=True)
class OneLevelRecovery(_OneLevel):
    """A candidate rule's acceptance test with recovery from [b q - p]_+, one b for all tokens.

    Acceptance rate and total variation are those of `rule`; the emitted distribution, max(p, b q)
    where p <= q, has the least divergence from the target that such an acceptance allows.

    Parameters
    ----------
    rule : CandidateRule
        Whose acceptance test is used, for example ``Cactus(0.5)``.

    Raises
    ------
    TypeError
        If the rule has no candidates.

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

    @property
    def torch_ready(self) -> bool:
        """As of the rule it wraps."""
        return self.rule.torch_ready

    def __post_init__(self) -> None:
        if not isinstance(self.rule, CandidateRule):
            raise TypeError(f"rule must be a rule with candidates, got {self.rule!r}")

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        return self.rule.accepted_mass(draft, target, xp=xp)


@dataclass(frozen=True)
class Clamp(_OneLevel):
    """Emit clip(p, b q, a q): the largest acceptance for a budget on the *emitted* distribution.

    Accept with min(1, a q / p), recover from [b q - p]_+, where b <= 1 <= a make the clipped
    distribution sum to one and its divergence from q equal to the budget. If the draft's
    distribution is itself within the budget, everything is accepted. Unlike any
    other budget of a rule, this one bounds what is emitted. (`Lenience` bounds the emitted
    distribution as well, by q / l.) Over numpy the
    levels are rounded so that the budget is kept; over torch it is kept up to rounding.

    Parameters
    ----------
    epsilon : float
        Budget of the emitted distribution at one position, in the units of the divergence.
    divergence : Divergence
        Default KL, in nats.

    Raises
    ------
    TypeError, ValueError
        If epsilon is not a number in [0, 1e100], or `divergence` is not a Divergence.

    References
    ----------
    Tran-Thien, "mentored decoding" (2023).

    Examples
    --------
    >>> from cactus_theory import kl, output_distribution
    >>> p, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.4, 0.3])
    >>> bool(abs(kl(output_distribution(Clamp(0.05), draft=p, target=q), q) - 0.05) < 1e-12)
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
        return self.accepted_and_emitted(draft, target, xp=xp)[0]

    def accepted_and_emitted(self, draft: Any, target: Any, *, xp: Any = np) -> tuple[Any, Any]:
        """Both from one solution for the two levels."""
        if xp is not np:
            a, b = SortedRatios(draft, target, xp=xp).clip(self.divergence, self.epsilon)
            most = xp.where(a < np.inf, xp.where(target > 0, a, 0.0) * target, draft)
            kept = xp.minimum(draft, most)
            return kept, xp.maximum(kept, b * target)
        draft, target = np.broadcast_arrays(draft, target)
        kept, law = np.empty(draft.shape), np.empty(draft.shape)
        for at in np.ndindex(draft.shape[:-1]):
            self._clip(draft[at], target[at], kept=kept[at], law=law[at])
        return kept, law

    def _clip(
        self, draft: np.ndarray, target: np.ndarray, *, kept: np.ndarray, law: np.ndarray
    ) -> None:
        """Write one position's accepted mass and emitted distribution."""
        a, b = levels(self.divergence, self.epsilon, draft, target)
        if a == math.inf:
            kept[:] = law[:] = draft
            return
        np.minimum(draft, times(a, target), out=kept)
        np.maximum(kept, times(b, target), out=law)
        if not (kept < draft).any():
            # The mass to lose is below a rounding error, but losing none may cost inf: p = 0 < q.
            top = np.argmax(draft)
            kept[top] = np.nextafter(kept[top], 0.0)
            law[:] = _emitted(kept, draft, target)


def _recovered(kept: np.ndarray, draft: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[b q - p]_+ where it sums to the mass lost, b <= 1.

    Newton's method for b from above: tokens once found beyond the level stay there.
    """
    lost = (draft - kept).sum()
    below = np.flatnonzero(draft < target)
    p, q = draft[below], target[below]
    level = 1.0
    while q.size:
        level = min((lost + p.sum()) / q.sum(), level)  # rounding must not raise it
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
    """Apply a function of one position's distributions to all positions."""
    laws = np.broadcast_arrays(*laws)
    out = np.empty(laws[0].shape)
    for position in np.ndindex(out.shape[:-1]):
        out[position] = solve(*(law[position] for law in laws))
    return out
