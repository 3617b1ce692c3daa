"""Sums and products with their rounding errors, over any namespace."""

from __future__ import annotations

from typing import Any

_SPLITTER = 2.0**27 + 1


def compensated_sum(*terms: Any) -> Any:
    """Their sum as if in three times the precision, despite cancellation (Ogita, Rump, Oishi)."""
    parts = list(terms)
    for _ in range(2):
        for i in range(1, len(parts)):
            parts[i], parts[i - 1] = two_sum(parts[i], parts[i - 1])
    return sum(parts[:-1]) + parts[-1]


def two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b rounded, and its rounding error (Dekker)."""
    product = a * b
    t = _SPLITTER * a
    a_high = t - (t - a)
    t = _SPLITTER * b
    b_high = t - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b rounded, and its rounding error (Knuth)."""
    total = a + b
    c = total - a
    return total, (a - (total - c)) + (b - c)
