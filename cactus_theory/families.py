"""The divergences a candidate law may be budgeted in, each with its generator, forms and optimum.

f is a divergence's generator, D(p || q) = sum q f(p/q), written here without the linear term that
the code adds to make f'(1) = 0. KL-like divergences are in nats; the others have no unit. No budget
in any of them bounds the law that is emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory._alpha import Alpha as Alpha
from cactus_theory._divergence import ClosedForm
from cactus_theory._divergence import Divergence as Divergence
from cactus_theory._double_double import _two_product, _two_sum
from cactus_theory._solution import Optimum
from cactus_theory.divergences import kl_term_of


@dataclass(frozen=True)
class KL(Divergence):
    """Kullback-Leibler divergence KL(p || q) = sum p log(p/q): f(t) = t log t, in nats.

    inf where p leaves the support of q; at most -log(q) for a candidate, so that g = 1 where
    q >= exp(-delta). The optimum is `exact_optimum`'s, with 1 - g within a few ulp as well.

    References
    ----------
    Theorem 2 of Hao and Mou (2026).

    Examples
    --------
    >>> round(float(KL().optimum(1e-4, 1.0).value), 4)
    0.1555
    """

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        return kl_term_of(p, q, gain)

    def optimum(self, target_prob: Any, delta: Any) -> Optimum:
        """That of `exact_optimum`."""
        from cactus_theory.optimum import exact_optimum  # which needs this module

        return exact_optimum(target_prob, delta)

    def solve(self, target_prob: Any, delta: Any, *, xp: Any = np) -> tuple[Any, Any, Any]:
        """g, 1 - g and (1 - g)/(1 - q) by Newton steps over a namespace ``xp``, unrounded."""
        from cactus_theory.rules._kl_root import kl_root  # which needs this module

        return kl_root(target_prob, delta, xp=xp)


@dataclass(frozen=True)
class ReverseKL(Divergence):
    """Reverse KL, D(p || q) = KL(q || p) = sum q log(q/p): f(t) = -log t, in nats.

    inf where p excludes a token that q does not, so that g < 1 for every budget (1 - g is about
    exp(-delta / (1-q)), and may lie below the smallest float: the complement is then that float).

    Examples
    --------
    >>> round(float(ReverseKL().optimum(1e-4, 1.0).value), 4)
    0.6325
    """

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        return kl_term_of(q, p, -gain)


@dataclass(frozen=True)
class JensenShannon(Divergence):
    """Jensen-Shannon divergence (1/2) KL(p || m) + (1/2) KL(q || m), m = (p+q)/2, in nats.

    f(t) = (1/2) [t log(2t/(1+t)) + log(2/(1+t))], symmetric in p and q, at most log 2: g = 1 for
    every q > 0 from that budget on.

    Examples
    --------
    >>> float(JensenShannon().between([1.0, 0.0], [0.0, 1.0])) == float(np.log(2))
    True
    """

    curvature = 0.25

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        middle = p / 2 + q / 2
        return (kl_term_of(p, middle, gain / 2) + kl_term_of(q, middle, -gain / 2)) / 2


@dataclass(frozen=True)
class ChiSquare(ClosedForm):
    """Pearson's chi-square, sum (p-q)^2 / q: f(t) = (t-1)^2, no factor 1/2, no unit.

    The optimum is min(q + sqrt(delta q (1-q)), 1): Cactus's closed form is the one of budget
    2 delta.

    Examples
    --------
    >>> round(float(ChiSquare().optimum(0.2, 1.0).value), 6)
    0.6
    """

    curvature = 2.0

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        inside = q > 0
        with np.errstate(over="ignore"):
            ratio = gain / np.where(inside, q, 1.0)
            return np.where(inside, gain * ratio, np.where(gain > 0, np.inf, 0.0))

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        # 1 - g = (1-q) (1 - q - delta q) / (1 - q + sqrt(delta q (1-q))), where only the difference
        # could cancel.
        spread = xp.sqrt(delta) * xp.sqrt(q * room)
        spent, lost = _two_product(delta, q)
        ratio = _sum(1.0, -q, -spent, -lost) / (room + spread)
        return q + spread, room * ratio, ratio


@dataclass(frozen=True)
class TotalVariation(ClosedForm):
    """Total variation distance (1/2) sum |p-q|: f(t) = |t-1| / 2, in [0, 1], no unit.

    The optimum is min(q + delta, 1), for q > 0: by convention g = 0 for q = 0, where the constraint
    alone would allow g = delta. f has a kink at 1, so there is no second order.

    Examples
    --------
    >>> round(float(TotalVariation().optimum(0.25, 0.5).value), 6)
    0.75
    """

    curvature = None

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        return np.abs(gain) / 2

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        left = _sum(1.0, -q, -delta)
        return q + delta, left, left / room


@dataclass(frozen=True)
class SquaredHellinger(ClosedForm):
    r"""Squared Hellinger distance (1/2) sum (sqrt p - sqrt q)^2 = 1 - sum sqrt(p q), in [0, 1].

    f(t) = (sqrt t - 1)^2 / 2, with the factor 1/2; no unit. With q = sin^2(a) and g = sin^2(b) it
    is 1 - cos(b - a), so that b = a + arccos(1 - delta):

        sqrt(g)     = sqrt(q) (1-delta) + sqrt(1-q) sqrt(delta (2-delta)),
        sqrt(1 - g) = sqrt(1-q) (1-delta) - sqrt(q) sqrt(delta (2-delta)),

    and g = 1 where delta >= 1 - sqrt(q).

    Examples
    --------
    >>> round(float(SquaredHellinger().optimum(0.25, 1 - 3**0.5 / 2).value), 6)
    0.75
    """

    curvature = 0.25

    def _term(self, p: Any, q: Any, gain: Any) -> Any:
        roots = np.sqrt(p) + np.sqrt(q)
        return (gain / np.where(roots > 0, roots, 1.0)) ** 2 / 2

    def _closed(self, q: Any, room: Any, delta: Any, *, xp: Any) -> tuple[Any, Any, Any]:
        # sqrt(1-g) times its conjugate is (1-delta)^2 - q, the only difference that could cancel.
        delta = xp.clip(delta, 0.0, 1.0)
        square, lost = _two_product(delta, delta)
        left = xp.clip(_sum(1.0, -q, -2 * delta, square, lost), 0.0, 1.0)
        keep, spread = 1 - delta, xp.sqrt(delta * (2 - delta))
        root = xp.sqrt(q) * keep + xp.sqrt(room) * spread
        rest = left / (xp.sqrt(room) * keep + xp.sqrt(q) * spread)
        return root * root, rest * rest, rest * rest / room


def _sum(*terms: Any) -> Any:
    """Their sum as if in three times the precision, whatever cancels (Ogita, Rump and Oishi)."""
    parts = list(terms)
    for _ in range(2):
        for i in range(1, len(parts)):
            parts[i], parts[i - 1] = _two_sum(parts[i], parts[i - 1])
    return sum(parts[:-1]) + parts[-1]
