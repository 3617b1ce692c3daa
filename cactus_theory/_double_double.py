"""log(x) to about 32 digits as an unevaluated sum of two float64, for differences that cancel."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_SPLITTER = 2.0**27 + 1
_LN2 = (0.6931471805599453, 2.3190468138462996e-17)


def minus_log_minus(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """-log(x) - y for 0 < x < 1, right to a few ulp even where y is the float nearest -log(x)."""
    high, low = log(x)
    total, error = _two_sum(high, y)
    return -(total + (error + low))


def log(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(x) = high + low for x > 0, by x = m 2^k and log(m) = 2 atanh((m-1)/(m+1))."""
    m, k = np.frexp(x)
    small = m < np.sqrt(0.5)
    m, k = np.where(small, 2 * m, m), (k - small).astype(np.float64)
    s = _divide_exact(m - 1, *_two_sum(m, np.ones_like(m)))
    square = _multiply(s, s)
    zero = np.zeros_like(m)
    series = (zero, zero)
    for coefficient in reversed(_ATANH):
        series = _add(_multiply(series, square), (zero + coefficient[0], zero + coefficient[1]))
    whole = _multiply((2 * s[0], 2 * s[1]), series)
    return _add(_multiply((k, zero), (zero + _LN2[0], zero + _LN2[1])), whole)


def _as_pair(value: Fraction) -> tuple[float, float]:
    high = float(value)
    return high, float(value - Fraction(high))


_ATANH = tuple(_as_pair(Fraction(1, 2 * k + 1)) for k in range(22))


def _two_sum(a, b):
    total = a + b
    c = total - a
    return total, (a - (total - c)) + (b - c)


def _two_product(a, b):
    product = a * b
    t = _SPLITTER * a
    a_high = t - (t - a)
    t = _SPLITTER * b
    b_high = t - (t - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _add(a, b):
    total, error = _two_sum(a[0], b[0])
    low, low_error = _two_sum(a[1], b[1])
    total, error = _two_sum(total, error + low)
    return _two_sum(total, error + low_error)


def _multiply(a, b):
    product, error = _two_product(a[0], b[0])
    return _two_sum(product, error + (a[0] * b[1] + a[1] * b[0]))


def _divide_exact(numerator, high, low):
    quotient = numerator / high
    product, error = _two_product(quotient, high)
    rest = (numerator - product) - error - quotient * low
    return _two_sum(quotient, rest / high)
