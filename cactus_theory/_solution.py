"""What the answer to "how far may this token be raised?" holds, and its rounding to the safe side.

Knows no divergence and solves no equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_theory._chunks import by_chunks


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
        Lower and upper ends of an interval of a few tens of ulp that holds the root; the lower is
        `value`.
    gap : float64 array or None
        `value` less the second-order optimum of the same divergence (`optimum_gap`); None for
        total variation, which has no second order.

    Examples
    --------
    >>> from cactus_theory import exact_optimum
    >>> optimum = exact_optimum(0.5, 0.125)
    >>> round(float(optimum.value), 4), round(float(optimum.complement), 4)
    (0.7446, 0.2554)
    >>> float(optimum.bracket[0] - optimum.value), float(optimum.bracket[1] - optimum.value) < 1e-14
    (0.0, True)
    """

    value: Any
    complement: Any
    ratio: Any
    bracket: tuple[Any, Any]
    gap: Any


def second_order_boost(target_prob: Any, delta: Any, *, xp: Any = np) -> Any:
    """min(q + sqrt(2 delta q (1-q)), 1): Corollary 5, over any namespace with sqrt and clip."""
    if xp is np:
        return by_chunks(_second_order_boost, target_prob, delta, outputs=1)[0]
    return _second_order_boost(target_prob, delta, xp=xp)[0]


def _second_order_boost(q: Any, delta: Any, *, xp: Any = np) -> tuple[Any]:
    gain = xp.sqrt(2 * delta * (1 - q)) * xp.sqrt(q)
    return (xp.clip(q + gain, 0.0, 1.0),)


def solution(
    q: np.ndarray,
    delta: np.ndarray,
    *,
    lower: Any,
    upper: Any,
    complement: Any,
    ulps: int,
    curvature: float | None,
) -> Optimum:
    """Round `lower` down, `upper` and `complement` up, by `ulps`, where a root lies between."""
    room = 1 - q
    moved = (upper > q) & (complement > 0)
    value = np.where(moved, np.maximum(lower - ulps * np.spacing(lower), q), lower)
    above = np.where(moved, np.minimum(upper + ulps * np.spacing(upper), 1.0), upper)
    complement = np.where(
        moved, np.minimum(complement + ulps * np.spacing(complement), room), complement
    )
    ratio = np.where(q < 1, complement / np.where(q < 1, room, 1.0), 1.0)
    gap = None
    if curvature is not None:
        gap = (value - second_order_boost(q, delta / curvature))[()]
    return Optimum(value[()], complement[()], ratio[()], (value[()], above[()]), gap)
