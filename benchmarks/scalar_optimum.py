"""The KL optimum of one probability, as a loop in Python would solve it: for comparison only."""

from __future__ import annotations

from math import log, log1p
from typing import Any

import numpy as np
from scipy.optimize import brentq

_COEFFICIENTS = tuple(1 / (2 * k + 3) for k in reversed(range(10)))


def scalar_optimum(q: float, delta: float) -> tuple[float, float]:
    """g and 1 - g with KL(Bernoulli(g) || Bernoulli(q)) = delta, by `scipy.optimize.brentq`.

    The unknown is the gain below the half-way point and 1 - g above, as in `exact_optimum`,
    and the terms do not cancel: both results have full relative precision unless log(1/q) and delta
    nearly agree.

    Examples
    --------
    >>> round(scalar_optimum(1e-4, 1.0)[0], 4), scalar_optimum(0.5, 1.0)
    (0.1555, (1.0, 0.0))
    """
    deficit = -log(q) - delta
    if deficit <= 0:
        return 1.0, 0.0
    room = 1 - q
    exact: dict[str, Any] = {"xtol": 1e-300, "rtol": 1e-15}
    if _spent(room / 2, q, delta) > 0:
        gain: Any = brentq(_spent, 0.0, room / 2, args=(q, delta), **exact)
        return q + gain, room - gain
    rest: Any = brentq(_short, 1e-300, room / 2, args=(q, deficit), **exact)
    return 1 - rest, rest


def textbook_residual(g: Any, q: Any, delta: Any) -> Any:
    """g log(g/q) + (1-g) log((1-g)/(1-q)) - delta for arrays, with no care for cancellation.

    Examples
    --------
    >>> float(textbook_residual(1.0, 0.5, float(np.log(2))))
    0.0
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(g < 1, (1 - g) * np.log((1 - g) / (1 - q)), 0.0)
        return g * np.log(g / q) + rest - delta


def _spent(gain: float, q: float, delta: float) -> float:
    """KL(q + gain || q) - delta."""
    return q * _excess(gain / q) + (1 - q) * _excess(-gain / (1 - q)) - delta


def _short(rest: float, q: float, deficit: float) -> float:
    """log(1/q) - KL(1 - rest || q) - deficit."""
    shrunk = log1p(-rest)
    return rest * (shrunk + log((1 - q) / (q * rest))) - shrunk - deficit


def _excess(t: float) -> float:
    """(1+t) log(1+t) - t."""
    if abs(t) >= 0.25:
        return (1 + t) * log1p(t) - t
    r = t / (2 + t)
    square, series = r * r, 0.0
    for coefficient in _COEFFICIENTS:
        series = series * square + coefficient
    return 2 * square * (1 + r * (1 + r) * series) / (1 - r)
