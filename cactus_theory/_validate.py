"""What counts as good input, and the sentence said when it is not. Nothing is repaired here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SUM_TOLERANCE = 1e-6  # a float32 softmax over 152,000 tokens stays within it


def budget(name: str, value: Any) -> float:
    """Return `value` as a float, or raise unless it is a finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number of nats, got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number of nats >= 0, got {value!r}")
    return float(value)


def budgets(name: str, value: Any) -> np.ndarray:
    """Return an array of budgets, or raise at the first one that is negative or not finite."""
    array = np.asarray(value, dtype=np.float64)
    _refuse(name, array, ~(np.isfinite(array) & (array >= 0)), "finite and >= 0 (nats)")
    return array


def probabilities(name: str, value: Any) -> np.ndarray:
    """Return an array of single probabilities, or raise at the first one outside [0, 1]."""
    array = np.asarray(value, dtype=np.float64)
    _refuse(name, array, ~((array >= 0) & (array <= 1)), "a probability in [0, 1]")
    return array


def law(name: str, value: Any) -> np.ndarray:
    """Return laws of shape (..., V), or raise unless every last axis is a probability law."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., V) with V >= 1, got shape {array.shape}")
    _refuse(name, array, ~((array >= 0) & (array <= 1 + SUM_TOLERANCE)), "a probability in [0, 1]")
    sums = array.sum(axis=-1)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        raise ValueError(
            f"{name} must sum to 1 over its last axis, got a sum of {sums[off].flat[0]:.9g}"
        )
    return array


def law_pair(**laws: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two named laws that share a vocabulary and whose leading axes broadcast."""
    (first, a), (second, b) = laws.items()
    a, b = law(first, a), law(second, b)
    try:
        np.broadcast_shapes(a.shape, b.shape)
        same = a.shape[-1] == b.shape[-1]
    except ValueError:
        same = False
    if not same:
        raise ValueError(
            f"{first} and {second} must share a vocabulary and broadcast, "
            f"got shapes {a.shape} and {b.shape}"
        )
    return a, b


def _refuse(name: str, array: np.ndarray, bad: np.ndarray, wanted: str) -> None:
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {where}" if where else ""
        raise ValueError(f"{name} must be {wanted}, got {float(array[where])!r}{place}")
