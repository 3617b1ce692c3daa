"""The terms of a KL divergence from the gain p - q, accurate also where p and q nearly agree.

Knows neither distributions nor rules: everything is elementwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory._chunks import by_chunks

_HUGE = 1e300  # x / q above this is near overflow; log(q + x) - log(q) is accurate there


def binary_kl_of_gain(gain: Any, q: Any, *, xp: Any) -> Any:
    """binary_kl(q + gain, q) from the gain itself, which keeps its precision when it is small."""
    return kl_term(q, gain, xp=xp) + kl_term(1 - q, -gain, xp=xp)


def kl_term(q: Any, gain: Any, *, xp: Any = np) -> Any:
    """q [(1+t) log(1+t) - t] with t = gain / q: one non-negative term of KL(q + gain || q)."""
    if xp is np:
        return by_chunks(_kl_terms_of_gain, q, gain, outputs=1)[0]
    plain = (q > 0) & (gain <= _HUGE * q)
    steep = (q > 0) & (gain > _HUGE * q)
    one = xp.ones_like(q * 1.0)
    usual = q * _excess(xp.where(plain, gain, 0.0) / xp.where(plain, q, one), xp=xp)
    far = _far(xp.where(steep, q, one), xp.where(steep, gain, 0.0), xp=xp)
    empty = xp.where(gain > 0, float("inf"), 0.0)
    return xp.where(plain, usual, xp.where(steep, far, empty))


def kl_term_of(p: Any, q: Any, gain: Any, *, xp: Any = np) -> Any:
    """p log(p/q) - gain, with gain = p - q, which does not determine p where p is far below q.

    Over another namespace than numpy it is `kl_term`, which does not read p.
    """
    if xp is not np:
        return kl_term(q, gain, xp=xp)
    return by_chunks(_kl_terms, p, q, gain, outputs=1)[0]


def _kl_terms_of_gain(q: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray]:
    return _kl_terms(np.maximum(q + gain, 0.0), q, gain)


def _kl_terms(p: np.ndarray, q: np.ndarray, gain: np.ndarray) -> tuple[np.ndarray]:
    with np.errstate(all="ignore"):  # non-finite results are replaced, or are truly inf
        t = gain / q
        terms = p * np.log1p(t) - gain
        near = np.flatnonzero(np.abs(t) < _CLOSE)
        terms[near] = q[near] * _cancelling(t[near])
        odd = np.flatnonzero(~np.isfinite(terms))
        if odd.size:
            terms[odd] = _kl_terms_at_edges(p[odd], q[odd], gain[odd])
    return (terms,)


def _kl_terms_at_edges(p: np.ndarray, q: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Where p = 0, q = 0, or p/q is next to nothing or overflows."""
    empty = np.where(gain > 0, np.inf, 0.0)
    steep = p * (np.log(p) - np.log(q)) - gain
    return np.where(p == 0, np.abs(gain), np.where(q == 0, empty, steep))


def _far(q: Any, gain: Any, *, xp: Any) -> Any:
    top = q + gain
    return top * (xp.log(top) - xp.log(q)) - gain


def log_growth(q: Any, gain: Any, *, xp: Any) -> Any:
    """log((q + gain) / q) for q > 0, with full relative precision and without overflow."""
    steep = gain > _HUGE * q
    if xp is np and not np.any(steep):
        return np.log1p(gain / q)
    usual = xp.log1p(xp.where(steep, 0.0, gain) / q)
    return xp.where(steep, xp.log(xp.where(steep, q + gain, 1.0)) - xp.log(q), usual)


_CLOSE = 0.25
_SERIES = tuple(1 / (2 * k + 3) for k in range(10))


def _excess(t: Any, *, xp: Any) -> Any:
    """(1+t) log(1+t) - t for t >= -1, relative error a few ulp."""
    close = abs(t) < _CLOSE
    direct = _direct(xp.where(close, 0.0, t), xp=xp)
    return xp.where(close, _cancelling(xp.where(close, t, 0.0)), direct)


def _cancelling(t: Any) -> Any:
    """(1+t) log(1+t) - t near 0, where the two terms cancel.

    With r = t/(2+t), log(1+t) = 2 atanh(r) turns the difference into
    2 r^2 [1 + r (1+r) (1/3 + r^2/5 + r^4/7 + ...)] / (1-r), where nothing cancels.
    """
    r = t / (2 + t)
    square, series = r * r, 0.0
    for coefficient in reversed(_SERIES):
        series = series * square + coefficient
    return 2 * square * (1 + r * (1 + r) * series) / (1 - r)


def _direct(t: Any, *, xp: Any) -> Any:
    inside = t > -1
    inner = xp.where(inside, t, 0.0)
    return xp.where(inside, (1 + inner) * xp.log1p(inner) - inner, 1.0)
