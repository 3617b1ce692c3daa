"""What an acceptance rule is, and its two kinds: with candidates, and with one shared recovery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from cactus_theory.rules._facts import Facts


class Rule(ABC):
    """When a drafted token is kept, and what is drawn where it is not.

    Token n, drawn from the draft distribution p, is kept when u * p(n) < m(n), strictly, with u
    uniform on [0, 1) and m = `accepted_mass` <= p; otherwise a token is drawn from
    `recovery_weights`, normalised. The distribution emitted is m + sum over n of (p(n) - m(n)) r_n.

    Objects are immutable and hashable. Methods are formulas over a namespace ``xp`` (numpy, or
    torch with float64 tensors), so theory and decoder evaluate the same definition. Every rule
    runs over numpy; `torch_ready` says whether it runs over torch.

    Attributes
    ----------
    facts : Facts
        The row of the table of rules, for rules of this package. A rule of your own needs none.
    torch_ready : bool
        Whether every method that takes ``xp`` accepts ``xp=torch`` and float64 tensors.
    ordered : bool
        Whether, for all p and q, the distribution emitted lies between them everywhere and a token
        is kept with the mass min(p, out), the most that emitting `out` allows: where p > q, q <=
        out = m <= p; elsewhere p = m <= out <= q. Such a rule is lossless sampling of its own
        emitted distribution. False by default. It is not checked: a class that sets it must satisfy
        this.

    Examples
    --------
    >>> from cactus_theory import output_distribution
    >>> class AcceptAll(Rule):
    ...     def accepted_mass(self, draft, target, *, xp=np):
    ...         return draft
    ...     def recovery_weights(self, token, draft, target):
    ...         return target
    >>> output_distribution(AcceptAll(), draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0.75, 0.25])
    """

    facts: ClassVar[Facts]
    ordered: ClassVar[bool] = False

    @property
    def torch_ready(self) -> bool:
        """Whether the methods that take ``xp`` run with ``xp=torch`` on float64 tensors.

        False here, because `emitted` is evaluated by its definition, over numpy. A `CandidateRule`
        and a `SharedRecoveryRule` are ready by default. If the formulas of your own rule call numpy
        by name, set ``torch_ready = False`` in its class. A rule that wrongly sets it to True
        raises its own error when it is evaluated.
        """
        return False

    @abstractmethod
    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """m(x) = p(x) * (chance that x passes once drafted), of shape (..., V)."""

    @abstractmethod
    def recovery_weights(self, token: int, draft: Any, target: Any) -> Any:
        """Unnormalised distribution, shape (V,), of what is drawn after `token` was rejected."""

    def threshold(self, token: int, draft: Any, target: Any) -> Any:
        """What u * p(token) must stay below: m(token), or a larger number with the same effect."""
        return self.accepted_mass(draft, target)[token]

    def emitted(self, kept: Any, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """Distribution emitted where the mass `kept` was accepted; here by the definition, O(V^2).

        Where recovery weights are empty by rounding (p = q up to the last bits), the target's
        distribution is used.
        """
        law = np.array(kept, dtype=np.float64)
        lost = np.asarray(draft - kept)
        for *position, token in np.argwhere(lost > 0):
            at = tuple(position)
            weights = self.recovery_weights(int(token), draft[at], target[at])
            total = weights.sum()
            law[at] += lost[(*at, token)] * (weights / total if total > 0 else target[at])
        return law

    def accepted_and_emitted(self, draft: Any, target: Any, *, xp: Any = np) -> tuple[Any, Any]:
        """`accepted_mass` and `emitted` together, for rules that compute both at once."""
        kept = self.accepted_mass(draft, target, xp=xp)
        return kept, self.emitted(kept, draft, target, xp=xp)


class CandidateRule(Rule):
    """A rule that boosts the drafted token and shrinks all others in proportion.

    For a drafted token of target probability q the candidate distribution h has h(token) = g =
    ``boost(q)`` and h(x) = ``shrink(q)`` * target(x) elsewhere, shrink = (1-g)/(1-q). The token is
    kept when u * p < g; otherwise a token is recovered from [h - p]_+. Such a rule reads one number
    of the target to accept, and its emitted distribution is ordered: between q and p everywhere.

    g should be 0 at q = 0. A rule that grants more to a token that the target excludes may emit it;
    it is then charged an infinite KL, which exceeds every budget.

    Examples
    --------
    >>> from cactus_theory import output_distribution
    >>> class HalfWay(CandidateRule):
    ...     def boost(self, target_prob, *, xp=np):
    ...         return xp.where(target_prob > 0, (1 + target_prob) / 2, 0.0)
    ...     def shrink(self, target_prob, *, xp=np):
    ...         return xp.where(target_prob > 0, 0.5, xp.ones_like(target_prob))
    >>> output_distribution(HalfWay(), draft=[0.875, 0.125], target=[0.5, 0.5])
    array([0.75, 0.25])
    """

    ordered: ClassVar[bool] = True

    @property
    def lossless(self) -> bool:
        """Whether g = q everywhere: the rule is plain speculative sampling."""
        return False

    @property
    def chi_square_floor(self) -> float:
        """A c for which g >= min(q + sqrt(c q (1-q)), 1) at every q > 0; 0 always holds.

        A token with p < q + sqrt(c q (1-q)) is then kept for certain, without evaluating g.
        """
        return 0.0

    @property
    def torch_ready(self) -> bool:
        """True: `boost` and `shrink`, and what follows from them, are formulas over ``xp``.

        `emitted` is the exception: it follows the definition, over numpy. A formula for it is in
        `cactus_theory.emitted`."""
        return True

    @abstractmethod
    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        """g in [q, 1], granted to a drafted token of target probability q; 0 at q = 0."""

    @abstractmethod
    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        """(1-g)/(1-q) in [0, 1], the factor left to every other token (1 where q = 1)."""

    def acceptance_probability(self, draft_prob: Any, target_prob: Any, *, xp: Any = np) -> Any:
        """min(g / p, 1): the chance that a token of draft probability p passes (1 where p = 0)."""
        boosted = self.boost(target_prob, xp=xp)
        passes = boosted >= draft_prob
        return xp.where(passes, 1.0, boosted / xp.where(passes, 1.0, draft_prob))

    def accepted_mass(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """min(p, g)."""
        return xp.minimum(draft, self.boost(target, xp=xp))

    def threshold(self, token: int, draft: Any, target: Any) -> Any:
        return self.boost(target[token])

    def recovery_weights(self, token: int, draft: Any, target: Any) -> Any:
        """[h - p]_+, in the arithmetic of its inputs."""
        return np.maximum(self.shrink(target[token]) * target - draft, 0)


class SharedRecoveryRule(Rule):
    """A rule that recovers from one distribution, whichever token was rejected.

    Examples
    --------
    >>> from cactus_theory import output_distribution
    >>> class RejectAll(SharedRecoveryRule):
    ...     def accepted_mass(self, draft, target, *, xp=np):
    ...         return 0 * draft
    ...     def shared_weights(self, draft, target, *, xp=np):
    ...         return target
    >>> output_distribution(RejectAll(), draft=[0.75, 0.25], target=[0.5, 0.5])
    array([0.5, 0.5])
    """

    @property
    def torch_ready(self) -> bool:
        """True: `accepted_mass` and `shared_weights` are formulas over ``xp``."""
        return True

    @abstractmethod
    def shared_weights(self, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """Unnormalised recovery distribution, shape (..., V); read only where mass is lost."""

    def recovery_weights(self, token: int, draft: Any, target: Any) -> Any:
        return self.shared_weights(draft, target)

    def emitted(self, kept: Any, draft: Any, target: Any, *, xp: Any = np) -> Any:
        """The lost mass is distributed by the one recovery distribution."""
        weights = self.shared_weights(draft, target, xp=xp)
        total = weights.sum(axis=-1, keepdims=True)
        share = xp.where(total > 0, weights, target) / xp.where(total > 0, total, 1.0)
        return kept + (draft - kept).sum(axis=-1, keepdims=True) * share
