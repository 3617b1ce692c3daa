"""The root of `divergence = budget`, bracketed and found by `scipy.optimize.elementwise.find_root`.

Knows no divergence: it is given the cost of a gain, and the excess over the budget near g = 1. In
order: the limit cases; a bracket, from the convexity of the cost; the root; the side that keeps the
budget. The unknown is the gain g - q below the half-way point (1 + q)/2 and the complement 1 - g
above it, so that both have full relative precision however small they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize.elementwise import find_root

from cactus_theory.divergences._optimum import Status

_TOLERANCES = {"xatol": 2e-323, "xrtol": 2.0**-51, "fatol": 0.0, "frtol": 0.0}
_MOST = 2200  # iterations: each at least halves the bracket, and [5e-324, 1] has 1074 + 53 halvings
_LEAST = 5e-324  # the smallest float
_NOTHING = 2.0**-100  # a gain below it, relative to q and to 1 - q, equals the second-order gain
_FAINT, _LOUD = 2.0**-500, 2.0**600  # budgets below the first are solved at this scale
_MARGIN = 2.0**-40  # by which a bracket is wider than its derivation, for rounding


def solve(
    q: np.ndarray,
    delta: np.ndarray,
    *,
    cost: Callable[..., Any],
    overspent: Callable[..., Any],
    slack: float,
    curvature: float | None,
    name: str,
) -> tuple[np.ndarray, ...]:
    """g, 1 - g, an upper end for g, iterations and status, for arrays of shape (n,).

    Every end of a bracket is on its side of the budget as evaluated. The budget that is solved for
    is lower than delta by `slack`, more than the relative error of an evaluation, so that the end
    below it truly keeps the budget. Because the cost is convex in the gain and 0 without one, a
    gain larger by 2 slack than the end above it exceeds the budget.

    Parameters
    ----------
    q, delta : float64 arrays, shape (n,)
    cost : callable
        The divergence of q + gain from q, ``cost(gain, q, 1 - q)``; homogeneous of degree one.
    overspent : callable
        ``overspent(rest, q, 1 - q, delta)``: divergence of 1 - rest from q, less the lowered
        budget; for rest = 0 as well.
    slack : float
    curvature : float or None
        f''(1), for a first guess.
    name : str
        Name of the divergence, for the error message.

    Raises
    ------
    RuntimeError
        If the cost is such that no root is found.
    """
    value, upper, complement = q.copy(), q.copy(), 1 - q
    iterations = np.zeros(q.shape, dtype=np.int16)
    status = np.full(q.shape, Status.LIMIT, dtype=np.int8)
    with np.errstate(all="ignore"):  # a cost may be inf
        still = (q <= 0) | (q >= 1) | (delta <= 0)
        if curvature is not None:  # gains below every float, whose squares would underflow
            reach = 2 / curvature * delta
            faint = np.sqrt(reach * complement) <= _NOTHING * np.sqrt(q)
            faint &= np.sqrt(reach * q) <= _NOTHING * np.sqrt(complement)
            upper = np.where(faint & ~still, _up(q), upper)
            still |= faint
        at = np.flatnonzero(~still)
        room = complement[at]
        certain = overspent(np.zeros_like(room), q[at], room, delta[at]) <= 0
        value[at[certain]], upper[at[certain]], complement[at[certain]] = 1.0, 1.0, 0.0
        at = at[~certain]
        room = complement[at]
        above = overspent(room / 2, q[at], room, delta[at]) <= 0
        for part, find in ((at[~above], _by_gain), (at[above], _by_complement)):
            if not part.size:
                continue
            answer = find(q[part], complement[part], delta[part], cost, overspent, slack, curvature)
            value[part], complement[part], upper[part], iterations[part], found = answer
            _refuse(q[part], delta[part], found, name)
            status[part] = Status.ROOT
    return value, complement, upper, iterations, status


def _by_gain(
    q: np.ndarray,
    room: np.ndarray,
    delta: np.ndarray,
    cost: Callable[..., Any],
    _: Any,
    slack: float,
    curvature: float | None,
) -> tuple[Any, ...]:
    """Below the half-way point; at a scale where tiny budgets do not underflow."""
    scale = np.where(delta < _FAINT, _LOUD, 1.0)
    q_, room_, budget = q * scale, room * scale, delta * scale * (1 - slack)
    half = room_ / 2
    least = half * np.minimum(budget / cost(half, q_, room_), 1.0)
    guess = half
    if curvature is not None:
        guess = np.sqrt(2 / curvature * budget * room) * np.sqrt(q_)
        guess = np.minimum(np.maximum(guess, least), half)
    # The cost is convex, so it is at most proportional below a known gain and at least so above it.
    other = guess * (budget / cost(guess, q_, room_))
    margin = _MARGIN + 4 * slack
    low = np.maximum(np.minimum(guess, other), least) * (1 - margin)
    high = np.minimum(np.maximum(guess, other), half) * (1 + margin)

    def excess(gain: Any, q: Any, room: Any, budget: Any) -> Any:
        return cost(gain, q, room) - budget

    low, high, found = _find(excess, low, high, q_, room_, budget)
    low, high = low / scale, high / scale * (1 + 2 * slack)
    value = np.maximum(np.nextafter(q + low, 0.0), q)
    rest = room - low
    return value, np.minimum(rest + 2 * np.spacing(rest), room), _up(q + high), found.nit, found


def _by_complement(
    q: np.ndarray,
    room: np.ndarray,
    delta: np.ndarray,
    _: Any,
    overspent: Callable[..., Any],
    slack: float,
    __: Any,
) -> tuple[Any, ...]:
    """Above the half-way point. A complement below the smallest float is given as that float."""
    low = np.full_like(q, _LEAST)
    low = np.where(overspent(low, q, room, delta) > 0, low, 0.0)
    low, high, found = _find(overspent, low, room / 2, q, room, delta)
    value = np.maximum(np.nextafter(1 - high, 0.0), q)
    return value, high, _up(q + (room - low) * (1 + 2 * slack)), found.nit, found


def _find(
    function: Callable[..., Any], low: np.ndarray, high: np.ndarray, *arguments: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Ends of the bracket, equal where the function is 0, and scipy's answer."""
    found: Any = find_root(
        function, (low, high), args=arguments, tolerances=_TOLERANCES, maxiter=_MOST
    )
    low, high = found.bracket
    hit = found.f_x == 0
    return np.where(hit, found.x, low), np.where(hit, found.x, high), found


def _up(x: np.ndarray) -> np.ndarray:
    return np.minimum(x + 2 * np.spacing(x), 1.0)


def _refuse(q: np.ndarray, delta: np.ndarray, found: Any, name: str) -> None:
    failed = np.flatnonzero(~found.success)
    if failed.size:
        first = failed[0]
        raise RuntimeError(
            f"no root found for target_prob {float(q[first])!r}, delta {float(delta[first])!r} and "
            f"divergence {name}: find_root ended with status {int(found.status[first])} after "
            f"{int(found.nit[first])} iterations"
        )
