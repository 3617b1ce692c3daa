"""The largest probability a candidate law may give one token within a budget.

The problem: given the target probability q of a token and a budget delta, the largest g in [q, 1]
with D(Bernoulli(g) || Bernoulli(q)) <= delta (Theorem 2). The divergences of `families` say how
theirs is found. For KL `rules._kl_root` solves the equation and here are the careful parts: arrays,
limits, the bracket, rounding to the safe side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory import _double_double, _validate
from cactus_theory._chunks import by_chunks
from cactus_theory._solution import Optimum as Optimum
from cactus_theory._solution import second_order_boost, solution
from cactus_theory.families import KL, Divergence
from cactus_theory.rules._kl_root import kl_root

_KL = KL()
_ULPS = 8  # half-width of the bracket; errors seen against 50 digits stay below 5


def exact_optimum(target_prob: Any, delta: Any, *, divergence: Divergence = _KL) -> Optimum:
    r"""Solve max g subject to q f(g/q) + (1-q) f((1-g)/(1-q)) <= delta, q <= g <= 1.

    For KL: g log(g/q) + (1-g) log((1-g)/(1-q)) <= delta. g = 1 where even that is within the
    budget (KL: q >= exp(-delta)); g = q where delta = 0; g = 0 where q = 0, so the target's support
    is never left.

    Parameters
    ----------
    target_prob : array_like
        q, in [0, 1].
    delta : array_like, broadcastable with `target_prob`
        Budget in nats (other divergences: in their units), in [0, 1e100].
    divergence : Divergence
        KL if not given.

    Returns
    -------
    Optimum
        The optimum of `divergence`, whose class says how accurate it is. For KL, g and 1 - g are
        both within a few ulp of the true root (checked against 60-digit arithmetic, q from 1e-300
        to 1 - 2**-53 and delta from 1e-12 to 50), rounded to the side that keeps the budget. Where
        -log(q) and delta agree to some 31 digits, 1 - g is still on that side but larger than it
        need be.

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], or a budget is negative or above 1e100.

    References
    ----------
    Theorem 2 of Hao and Mou (2026); for KL, f(t) = t log t.

    Examples
    --------
    >>> solution = exact_optimum(1e-4, 1.0)
    >>> round(float(solution.value), 4), round(float(second_order_optimum(1e-4, 1.0)), 4)
    (0.1555, 0.0142)
    """
    if not isinstance(divergence, KL):
        return divergence.optimum(target_prob, delta)
    q = _validate.probabilities("target_prob", target_prob)
    delta = _validate.budgets("delta", delta)
    value, complement, ratio, upper, gap = by_chunks(_rounded, q, delta, outputs=5)
    return Optimum(value, complement, ratio, (value, upper), gap)


def second_order_optimum(target_prob: Any, delta: Any) -> Any:
    """Cactus's closed form min(q + sqrt(2 delta q (1-q)), 1), for arrays of q and delta.

    It is the exact optimum for a chi-square budget of 2 delta, and may overspend the KL budget:
    its KL is at most log(1 + 2 delta).

    Parameters
    ----------
    target_prob, delta : array_like, broadcastable
        q in [0, 1]; budget in nats, finite and >= 0.

    Returns
    -------
    float64 array

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], or a budget is negative or not finite.

    References
    ----------
    Corollary 5 of Hao and Mou (2026).

    Examples
    --------
    >>> round(float(second_order_optimum(0.2, 0.5)), 6)
    0.6
    """
    q = _validate.probabilities("target_prob", target_prob)
    return second_order_boost(q, _validate.budgets("delta", delta))


def optimum_gap(target_prob: Any, delta: Any, *, divergence: Divergence = _KL) -> Any:
    """Exact optimum less second-order optimum: negative where the closed form overspends.

    The second order of a divergence is that of chi-square, D ~ f''(1)/2 chi2, and its optimum
    min(q + sqrt(2 delta q (1-q) / f''(1)), 1): Corollary 5 where f''(1) = 1, as for KL.

    Parameters
    ----------
    target_prob, delta : array_like, broadcastable
        q in [0, 1]; budget in the units of the divergence, in [0, 1e100].
    divergence : Divergence
        KL if not given.

    Returns
    -------
    float64 array

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], a budget is outside its range, or the divergence has
        a kink at equality (total variation), and so no second order.

    References
    ----------
    Theorem 2 and Corollary 5 of Hao and Mou (2026).

    Examples
    --------
    >>> float(optimum_gap(1e-4, 1.0)) > 0.14, float(optimum_gap(0.5, 0.1)) < 0
    (True, True)
    """
    if divergence.curvature is None:
        raise ValueError(f"{divergence!r} has a kink at equality, and so no second-order optimum")
    return exact_optimum(target_prob, delta, divergence=divergence).gap


def _rounded(q: np.ndarray, delta: np.ndarray) -> tuple[Any, ...]:
    """Value, complement, ratio, upper end and gap of the optimum, for arrays of shape (n,)."""
    boosted, complement, _ = kl_root(q, delta, deficit=_deficit(q, delta), xp=np)
    rounded = solution(
        q,
        delta,
        lower=boosted,
        upper=boosted,
        complement=complement,
        ulps=_ULPS,
        curvature=_KL.curvature,
    )
    _, upper = rounded.bracket
    return rounded.value, rounded.complement, rounded.ratio, upper, rounded.gap


def _deficit(q: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """-log(q) - delta, in double-double where the plain difference would lose a bit or more.

    That errs upwards, and so 1 - g to the feasible side, however nearly the two terms cancel. Where
    g = 1 is clearly within the budget only the sign matters, and the plain difference has it.
    """
    with np.errstate(divide="ignore"):
        plain = -np.log(q) - delta
    at = np.flatnonzero((plain < delta) & (plain > -(2.0**-50) * delta))
    if at.size:
        plain[at] = _double_double.minus_log_minus(q[at], delta[at])
    return plain
