"""The largest probability a candidate law may give one token within a KL budget.

The problem: given the target probability q of a token and a budget delta, the largest g in [q, 1]
with KL(Bernoulli(g) || Bernoulli(q)) <= delta (Theorem 2). `rules._kl_root` solves the equation;
here are the careful parts: arrays, limits, the bracket, rounding to the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory import _double_double, _validate
from cactus_theory.rules._kl_root import kl_root
from cactus_theory.rules.cactus import second_order_boost

_ULPS = 8  # half-width of the bracket; errors seen against 50 digits stay below 5


@dataclass(frozen=True)
class Optimum:
    """The largest h with divergence <= delta, rounded so that the budget is kept.

    Attributes
    ----------
    value : float64 array
        g, rounded down: its exact divergence does not exceed delta.
    complement : float64 array
        1 - g with full relative precision, rounded up.
    ratio : float64 array
        (1 - g) / (1 - q), what every other token keeps; 1 where q = 1.
    bracket : tuple of two float64 arrays
        Lower and upper ends of an interval of 16 ulp that holds the root; the lower is `value`.
    """

    value: Any
    complement: Any
    ratio: Any
    bracket: tuple[Any, Any]


def exact_optimum(target_prob: Any, delta: Any) -> Optimum:
    r"""Solve max g subject to g log(g/q) + (1-g) log((1-g)/(1-q)) <= delta, q <= g <= 1.

    g = 1 where even that is within the budget (q >= exp(-delta)); g = q where delta = 0;
    g = 0 where q = 0, so the target's support is never left.

    Parameters
    ----------
    target_prob : array_like
        q, in [0, 1].
    delta : array_like, broadcastable with `target_prob`
        Budget in nats, finite and >= 0.

    Returns
    -------
    Optimum
        g and 1 - g both within a few ulp of the true root (checked against 50-digit arithmetic,
        q from 1e-300 to 1 - 2**-53 and delta from 1e-12 to 50), rounded to the side that keeps
        the budget.

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], or a budget is negative or not finite.

    References
    ----------
    Theorem 2 of Hao and Mou (2026), for f(t) = t log t.

    Examples
    --------
    >>> solution = exact_optimum(1e-4, 1.0)
    >>> round(float(solution.value), 4), round(float(second_order_optimum(1e-4, 1.0)), 4)
    (0.1555, 0.0142)
    """
    q, delta = np.broadcast_arrays(
        _validate.probabilities("target_prob", target_prob), _validate.budgets("delta", delta)
    )
    boosted, complement, _ = kl_root(q, delta, deficit=_deficit(q, delta), xp=np)
    moved = (boosted > q) & (complement > 0)
    value = np.where(moved, np.maximum(boosted - _ULPS * np.spacing(boosted), q), boosted)
    upper = np.where(moved, np.minimum(boosted + _ULPS * np.spacing(boosted), 1.0), boosted)
    complement = np.where(
        moved, np.minimum(complement + _ULPS * np.spacing(complement), 1 - q), complement
    )
    ratio = np.where(q < 1, complement / np.where(q < 1, 1 - q, 1.0), 1.0)
    return Optimum(value[()], complement[()], ratio[()], (value[()], upper[()]))


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


def optimum_gap(target_prob: Any, delta: Any) -> Any:
    """Exact optimum less second-order optimum: negative where the closed form overspends.

    Parameters, Returns and Raises are those of `second_order_optimum`.

    Examples
    --------
    >>> float(optimum_gap(1e-4, 1.0)) > 0.14, float(optimum_gap(0.5, 0.1)) < 0
    (True, True)
    """
    return exact_optimum(target_prob, delta).value - second_order_optimum(target_prob, delta)


def _deficit(q: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """-log(q) - delta, in double-double where the subtraction would XX."""
    safe = np.where(q > 0, q, 0.5)
    plain = -np.log(safe) - delta
    cancels = (np.abs(plain) < delta) & (q > 0)
    if cancels.any():
        plain[cancels] = _double_double.minus_log_minus(safe[cancels], delta[cancels])
    return plain
