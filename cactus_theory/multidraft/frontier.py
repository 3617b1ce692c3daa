r"""What k independent drafts of one position accept at best, for any emitted distribution.

Let x_1 ... x_k be drawn independently from p, and let the emitted token count as accepted if it is
one of them. Over all ways to emit a distribution o the largest acceptance is

    1 - max_H [p(H)^k - o(H)],   H any set of tokens,

because all k drafts lie in H with probability p(H)^k, and then an accepted token does too (a
minimum cut; claim drafts-acceptance).

**k drafts of p are worth one draft of another distribution r.** Sort the tokens by p/q, falling,
and let P and Q be running sums of p and q. r is q times the slopes of the least concave majorant of
the points (Q, P^k). Of all distributions that can be emitted without a rejection it has the least
divergence from q, for every f at once. With a budget on the divergence the best emitted
distribution is that of `Clamp` with r in the place of p, and it accepts sum min(r, out) (claims
drafts-worth-one and drafts-frontier). So its acceptance is that of emitting q plus TV(out, q), for
every k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from cactus_theory import _validate
from cactus_theory.divergences import KL, Divergence
from cactus_theory.rules import Clamp

_STEEPEST = 1e290  # a ratio p/q, beyond which a slope may overflow


class Majorant(NamedTuple):
    """Tokens with p > 0 by falling p/q, in blocks where r is proportional to q (or to p if q = 0).

    Attributes
    ----------
    tokens : int array, shape (n,)
    law : float64 array, shape (n,)
        r of these tokens.
    starts : int array, shape (blocks + 1,)
        Where each block starts; the last entry is n.
    """

    tokens: np.ndarray
    law: np.ndarray
    starts: np.ndarray


def power_steps(masses: np.ndarray, before: float, k: int) -> np.ndarray:
    """Increments of P^k where P rises from `before` by each of `masses`, without cancellation."""
    high = before + np.cumsum(masses)
    low = np.append(before, high[:-1])
    total, power = np.zeros_like(masses), np.ones_like(masses)
    for i in range(k):  # sum of high^i low^(k-1-i), times the mass
        total = total * low + power
        power = power * high if i < k - 1 else power
    return masses * total


def majorant(p: np.ndarray, q: np.ndarray, k: int) -> Majorant:
    """r at one position, with its blocks."""
    tokens = np.flatnonzero(p)
    with np.errstate(divide="ignore", over="ignore"):
        ratio = p[tokens] / q[tokens]
    tokens = tokens[np.argsort(-ratio, kind="stable")]
    beyond = int((ratio > _STEEPEST).sum())  # all tokens with q = 0 form the first block
    mass = p[tokens] / p[tokens].sum()
    law = power_steps(mass, 0.0, k)
    law[:beyond] = mass[:beyond] * mass[:beyond].sum() ** (k - 1)
    starts = np.array([0] if beyond else [], dtype=np.intp)
    if beyond < tokens.size:
        weights = q[tokens[beyond:]]
        fit = isotonic_regression(law[beyond:] / weights, weights=weights, increasing=False)
        starts = np.append(starts, beyond + fit.blocks[:-1])
        single = np.repeat(np.diff(fit.blocks) == 1, np.diff(fit.blocks))
        law[beyond:] = np.where(single, law[beyond:], weights * fit.x)
    return Majorant(tokens, law, np.append(starts, tokens.size))


def equivalent_draft(*, draft: Any, target: Any, num_drafts: int) -> np.ndarray:
    """The distribution r of which one draft is worth k independent drafts of p.

    One of the k drafts can be chosen such that it is a sample of r (`selection_chances`), and any
    rule may verify it as a single draft of r. No other way to use the k drafts accepts more than
    the clamp does then, within the same divergence of what is emitted.

    Parameters
    ----------
    draft, target : array_like, shape (..., V)
        Distributions p and q; leading axes broadcast.
    num_drafts : int
        k >= 1. For 1 it is p itself.

    Returns
    -------
    float64 array, shape (..., V)
        In O(V log V) time per position. Tokens with q = 0 are chosen only where all k drafts are
        such tokens.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a distribution, the shapes do not broadcast, or k is not an integer
        >= 1.

    References
    ----------
    That the best verifier selects a draft and verifies it as one: Khisti et al. (2024), arXiv
    2410.18234. The closed form, and that it serves every divergence: ours.

    Examples
    --------
    >>> equivalent_draft(draft=[0.75, 0.25], target=[0.5, 0.5], num_drafts=2)
    array([0.5625, 0.4375])
    >>> equivalent_draft(draft=[0.5, 0.5], target=[0.4, 0.6], num_drafts=2)
    array([0.4, 0.6])
    """
    k = _validate.integer("num_drafts", num_drafts, 1)
    p, q = np.broadcast_arrays(*_validate.law_pair(draft=draft, target=target))
    law = np.array(p)
    if k > 1:
        for at in np.ndindex(p.shape[:-1]):
            found = majorant(p[at], q[at], k)
            law[at][found.tokens] = found.law
    return law


def multidraft_acceptance(law: Any, *, draft: Any, num_drafts: int) -> Any:
    """The largest chance that a token of distribution `law` is one of k independent drafts.

    1 - max_H [p(H)^k - law(H)] over all couplings of the drafts and the emitted token. The best H
    holds the tokens with the largest p / law.

    Parameters
    ----------
    law, draft : array_like, shape (..., V)
        The emitted distribution, and p; leading axes broadcast.
    num_drafts : int
        k >= 1. For 1 it is sum min(p, law).

    Returns
    -------
    float64 array, shape (...)

    Raises
    ------
    TypeError, ValueError
        As `equivalent_draft`.

    References
    ----------
    Khisti et al. (2024), arXiv 2410.18234; Hu et al. (2025), arXiv 2502.18779.

    Examples
    --------
    >>> float(multidraft_acceptance([0.5, 0.5], draft=[0.75, 0.25], num_drafts=2))
    0.9375
    """
    k = _validate.integer("num_drafts", num_drafts, 1)
    law, p = np.broadcast_arrays(*_validate.law_pair(law=law, draft=draft))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        order = np.argsort(-np.where(law > 0, p / law, np.where(p > 0, np.inf, 0.0)), axis=-1)
    p, law = (np.cumsum(np.take_along_axis(x, order, -1), axis=-1) for x in (p, law))
    excess = (p / p[..., -1:]) ** k - law / law[..., -1:]
    return 1 - np.maximum(excess.max(axis=-1), 0.0)


@dataclass(frozen=True)
class MultiDraftClamp:
    """The largest acceptance of k independent drafts within a budget of what is emitted.

    It emits clip(r, b q, a q), b <= 1 <= a, of the `equivalent_draft` r. For one draft it is
    `Clamp`.

    Parameters
    ----------
    epsilon : float
        Budget of the emitted distribution at one position, in the units of the divergence; 0 emits
        the target's.
    num_drafts : int
        k >= 1.
    divergence : Divergence
        Default KL, in nats.

    Raises
    ------
    TypeError, ValueError
        If epsilon is not a number in [0, 1e100], k not an integer >= 1, or `divergence` not a
        Divergence.

    Examples
    --------
    >>> best = MultiDraftClamp(0.01, num_drafts=2)
    >>> best.accepted_and_emitted(draft=[0.75, 0.25], target=[0.5, 0.5])[0].round(6)
    array([0.5625, 0.4375])
    >>> pair = {"draft": [0.9, 0.1], "target": [0.5, 0.5]}
    >>> [round(float(MultiDraftClamp(0.01, k).acceptance_rate(**pair)), 4) for k in (1, 2, 4)]
    [0.6706, 0.7606, 0.9145]
    """

    epsilon: float
    num_drafts: int
    divergence: Divergence = KL()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", self.rule.epsilon)
        _validate.integer("num_drafts", self.num_drafts, 1)

    @property
    def rule(self) -> Clamp:
        """The rule by which the selected draft is verified."""
        return Clamp(self.epsilon, self.divergence)

    def accepted_and_emitted(self, *, draft: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
        """Accepted mass min(r, out) and emitted distribution; arrays of shape (..., V).

        Parameters
        ----------
        draft, target : array_like, shape (..., V)
            Distributions p and q; leading axes broadcast.
        """
        r = equivalent_draft(draft=draft, target=target, num_drafts=self.num_drafts)
        return self.rule.accepted_and_emitted(r, np.asarray(target, dtype=np.float64))

    def acceptance_rate(self, *, draft: Any, target: Any) -> Any:
        """Chance that the emitted token is one of the drafts, shape (...).

        Parameters
        ----------
        draft, target : array_like, shape (..., V)
            Distributions p and q; leading axes broadcast.
        """
        return self.accepted_and_emitted(draft=draft, target=target)[0].sum(axis=-1)
