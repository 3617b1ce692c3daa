"""The record that answers "how far may this token be raised?".

Knows no divergence and solves no equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cactus_theory._chunks import by_chunks


class Status(IntEnum):
    """How an optimum was found.

    Examples
    --------
    >>> from cactus_theory import exact_optimum
    >>> [Status(code).name for code in exact_optimum([0.0, 0.1, 0.9], 1.0).status]
    ['LIMIT', 'ROOT', 'LIMIT']
    """

    LIMIT = 0  # g = 1 is within the budget; or g = q: q is 0 or 1, or the gain is below every float
    CLOSED_FORM = 1
    ROOT = 2  # of the divergence less the budget, by scipy.optimize.elementwise.find_root


@dataclass(frozen=True)
class Optimum:
    """The largest h with divergence <= delta, rounded so that the budget is kept.

    Attributes
    ----------
    value : float64 array
        g, rounded down: its exact divergence does not exceed delta.
    complement : float64 array
        1 - g with its own relative precision, rounded up.
    ratio : float64 array
        (1 - g) / (1 - q), what every other token keeps; 1 where q = 1.
    bracket : tuple of two float64 arrays
        Lower and upper ends of an interval of a few tens of ulp that holds the true optimum; the
        lower is `value`.
    gap : float64 array or None
        `value` less the second-order optimum of the same divergence (`optimum_gap`); None for
        total variation, which has no second order.
    iterations : int16 array
        Iterations of the root finder; 0 where none was needed.
    status : int8 array
        A `Status`: 0 for a limit case, 1 for a closed form, 2 for a root.

    Examples
    --------
    >>> from cactus_theory import exact_optimum
    >>> optimum = exact_optimum(0.5, 0.125)
    >>> round(float(optimum.value), 4), round(float(optimum.complement), 4)
    (0.7446, 0.2554)
    >>> float(optimum.bracket[0] - optimum.value), float(optimum.bracket[1] - optimum.value) < 1e-14
    (0.0, True)
    >>> Status(optimum.status).name, bool(0 < optimum.iterations < 10)
    ('ROOT', True)
    """

    value: Any
    complement: Any
    ratio: Any
    bracket: tuple[Any, Any]
    gap: Any
    iterations: Any
    status: Any


def second_order_boost(target_prob: Any, delta: Any, *, xp: Any = np) -> Any:
    """min(q + sqrt(2 delta q (1-q)), 1): Corollary 5, over any namespace with sqrt and clip."""
    if xp is np:
        return by_chunks(_second_order_boost, target_prob, delta, outputs=1)[0]
    return _second_order_boost(target_prob, delta, xp=xp)[0]


def ratio_and_gap(
    value: np.ndarray,
    complement: np.ndarray,
    q: np.ndarray,
    delta: np.ndarray,
    curvature: float | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """(1 - g)/(1 - q), and g less the second-order optimum, None without a curvature."""
    room = 1 - q
    ratio = np.where(q < 1, complement / np.where(q < 1, room, 1.0), 1.0)
    if curvature is None:
        return ratio, None
    return ratio, value - _second_order_boost(q, delta / curvature)[0]


def _second_order_boost(q: Any, delta: Any, *, xp: Any = np) -> tuple[Any]:
    gain = xp.sqrt(2 * delta * (1 - q)) * xp.sqrt(q)
    return (xp.clip(q + gain, 0.0, 1.0),)
