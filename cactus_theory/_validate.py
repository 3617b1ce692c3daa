"""Checks of arguments, and their error messages. Nothing is repaired here."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

SUM_TOLERANCE = 1e-6  # a float32 softmax over 152,000 tokens stays within it
LARGEST_BUDGET = 1e100  # its square is still a number


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python or numpy, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integer(name: str, value: Any, least: int) -> int:
    """Return `value` as an int, or raise unless it is an integer >= `least`."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value}")
    return int(value)


def word(name: str, value: Any) -> int:
    """Return `value` as an int, or raise unless it is an integer of 64 bits."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 0 <= value < 2**64:
        raise ValueError(f"{name} must lie in [0, 2**64), got {value}")
    return int(value)


def number(name: str, value: Any, wanted: str = "a number") -> Any:
    """Return `value`, or raise unless it is a real number and no bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    return value


def budget(name: str, value: Any) -> float:
    """Return `value` as a float, or raise unless it is a finite number >= 0."""
    number(name, value, "a number of nats")
    size = value if isinstance(value, int) else float(value)  # half precision has no 1e100
    if not 0 <= size <= LARGEST_BUDGET:
        raise ValueError(f"{name} must be a number of nats in [0, 1e100], got {value!r}")
    return float(size)


def fraction(name: str, value: Any, interval: str) -> float:
    """Return `value` as a float, or raise unless it is a number in `interval`: "(0, 1]", say."""
    number(name, value, f"a number in {interval}")
    inside = 0 <= value <= 1
    if not inside or (value == 0 and interval[0] == "(") or (value == 1 and interval[-1] == ")"):
        raise ValueError(f"{name} must lie in {interval}, got {value!r}")
    return float(value)


def budgets(name: str, value: Any) -> np.ndarray:
    """Return an array of budgets, or raise at the first one that is negative or not finite."""
    array = _floats(name, value)
    _refuse(name, array, ~((array >= 0) & (array <= LARGEST_BUDGET)), "in [0, 1e100] (nats)")
    return array


def probabilities(name: str, value: Any) -> np.ndarray:
    """Return an array of single probabilities, or raise at the first one outside [0, 1]."""
    array = _floats(name, value)
    _refuse(name, array, ~((array >= 0) & (array <= 1)), "a probability in [0, 1]")
    return array


def law(name: str, value: Any) -> np.ndarray:
    """Return distributions of shape (..., V), or raise unless every last axis is a distribution."""
    array = _floats(name, value)
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
    """Return two named distributions that share a vocabulary and whose leading axes broadcast."""
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


def token(name: str, value: Any, size: int) -> int:
    """Return a token of a vocabulary of `size`, or raise."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not 0 <= value < size:
        raise ValueError(f"{name} must lie in [0, {size}), got {value!r}")
    return int(value)


def _floats(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers, got {value!r}")
    return array.astype(np.float64, copy=False)


def _refuse(name: str, array: np.ndarray, bad: np.ndarray, wanted: str) -> None:
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {where}" if where else ""
        raise ValueError(f"{name} must be {wanted}, got {float(array[where])!r}{place}")
