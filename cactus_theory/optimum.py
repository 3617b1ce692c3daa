"""The largest probability a candidate may give one token within a budget, and its second order.

The problem: given the target probability q of a token and a budget delta, the largest g in [q, 1]
with D(Bernoulli(g) || Bernoulli(q)) <= delta (Theorem 2). A divergence solves it by a closed form
where it has one, and by a bracketed root elsewhere.
"""

from __future__ import annotations

from typing import Any

from cactus_theory import _validate
from cactus_theory.divergences import KL, Divergence, second_order_boost
from cactus_theory.divergences import Optimum as Optimum

_KL = KL()


def exact_optimum(target_prob: Any, delta: Any, *, divergence: Divergence = _KL) -> Optimum:
    r"""Solve max g subject to q f(g/q) + (1-q) f((1-g)/(1-q)) <= delta, q <= g <= 1.

    For KL: g log(g/q) + (1-g) log((1-g)/(1-q)) <= delta, which is transcendental. g = 1 where even
    that is within the budget (KL: q >= exp(-delta)); g = q where delta = 0; g = 0 where q = 0, so
    the target's support is never left. Elsewhere, total variation, chi-square and squared
    Hellinger have a closed form; for every other divergence the equality is bracketed and solved
    by `scipy.optimize.elementwise.find_root`. Its unknown is the gain g - q below the half-way
    point (1 + q)/2, and the complement 1 - g above it. The end of the final bracket that keeps the
    budget is the answer.

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
        With the bracket, the number of iterations and how each element was found. For KL, g is
        within 16 EPS of the true root and 1 - g as well (EPS = 2**-52, relative), checked against
        60-digit arithmetic for q from 1e-300 to 1 - 2**-53 and delta from 1e-12 to 50. Where
        -log(q) and delta nearly cancel, 1 - g is larger than it need be by some EPS max(delta, 1);
        it is always on the side that keeps the budget. Other divergences: `Divergence.root`.

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], or a budget is negative or above 1e100.
    RuntimeError
        If no root is found: a divergence of your own is not convex, or returns nan.

    See Also
    --------
    CactusExact : the decoder's rule, which solves the KL equation by a fixed number of Newton
        steps; property tests compare it with this root.

    References
    ----------
    Theorem 2 of Hao and Mou (2026); for KL, f(t) = t log t. `find_root` is Chandrupatla's method,
    Advances in Engineering Software 28 (1997).

    Examples
    --------
    >>> solution = exact_optimum(1e-4, 1.0)
    >>> round(float(solution.value), 4), round(float(second_order_optimum(1e-4, 1.0)), 4)
    (0.1555, 0.0142)
    >>> lower, upper = solution.bracket
    >>> bool(lower == solution.value < upper), float(upper - lower) < 1e-15
    (True, True)
    """
    return divergence.optimum(target_prob, delta)


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
