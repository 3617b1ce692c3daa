"""Divergences in high-precision arithmetic, and all of those that ship."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from cactus_theory import (
    KL,
    Alpha,
    ChiSquare,
    Divergence,
    JensenShannon,
    ReverseKL,
    SquaredHellinger,
    TotalVariation,
)
from cactus_theory.rules import parameters

EPS = 2.0**-52
DIGITS = 700  # (1e-300)^2 beside 1, and 50 digits of it
NAMED = list(parameters.DIVERGENCES.values())
ORDERS = [-3.0, -1.0, 1e-7, 0.3, 0.5, 0.999999, 1.0, 1.5, 7.5]
DIVERGENCES = NAMED + [Alpha(order) for order in ORDERS]
CLOSED = [ChiSquare(), TotalVariation(), SquaredHellinger(), Alpha(0.5), Alpha(2)]
BOUNDED = {TotalVariation(): 1.0, SquaredHellinger(): 1.0, JensenShannon(): 0.6931471805599454}
MEMBERS = [
    (Alpha(1), KL(), 1),
    (Alpha(0), ReverseKL(), 1),
    (Alpha(0.5), SquaredHellinger(), 4),
    (Alpha(2), ChiSquare(), 0.5),
]
each_divergence = pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)


def reference_term(divergence: Divergence, p, q):
    """q f(p/q) with f'(1) = 0, from the textbook formula."""
    if p == q == 0:
        return mpf(0)
    order = getattr(divergence, "alpha", None)
    log = mpmath.log
    if divergence == KL() or order == 1:
        return (p * log(p / q) if p else 0) - p + q if q else mpmath.inf
    if divergence == ReverseKL() or order == 0:
        return (q * log(q / p) if q else 0) - q + p if p else mpmath.inf
    if divergence == ChiSquare():
        return (p - q) ** 2 / q if q else mpmath.inf
    if divergence == TotalVariation():
        return abs(p - q) / 2
    if divergence == SquaredHellinger():
        return (mpmath.sqrt(p) - mpmath.sqrt(q)) ** 2 / 2
    if divergence == JensenShannon():
        m = (p + q) / 2
        return sum(x * log(x / m) for x in (p, q) if x) / 2
    assert order is not None, f"{divergence} needs its textbook formula in {__name__}"
    a = mpf(order)
    if q == 0:
        return mpmath.inf if a >= 1 else p / (1 - a)
    if p == 0:
        return mpmath.inf if a <= 0 else q / a
    return q * ((p / q) ** a - 1 - a * (p / q - 1)) / (a * (a - 1))


def reference_binary(divergence, h, rest, q):
    return reference_term(divergence, h, q) + reference_term(divergence, rest, 1 - q)


def ulps(divergence: Divergence) -> float:
    """Relative error allowed to a divergence: 5 were seen, and a power costs |alpha| more."""
    return 12 + 4 * abs(getattr(divergence, "alpha", 0))


def agrees(divergence, value, expected) -> bool:
    if expected > mpf(10) ** 307:
        return value > 1e306
    # Below about 1e-290 the terms are subnormal, or products of such: an absolute precision.
    return abs(mpf(float(value)) - expected) <= ulps(divergence) * EPS * expected + mpf(10) ** -305


def sweep(divergence: Divergence, count: int) -> tuple[np.ndarray, np.ndarray]:
    """q from 1e-300 to 1 - 2^-53 and delta from 1e-12 to 50, a third of them nearly saturated."""
    rng = np.random.default_rng(20261130)
    q = np.concatenate(
        [
            10 ** rng.uniform(-300, 0, count),
            rng.uniform(0, 1, count),
            10 ** rng.uniform(-6, 0, count),
            1 - 10 ** rng.uniform(-15.9, 0, count),
            [1e-300, 1 - 2.0**-53, 2.0**-53, 0.5],
        ]
    )
    q = np.clip(q, 1e-300, 1 - 2.0**-53)
    delta = 10 ** rng.uniform(-12, np.log10(50), q.size)
    certain = divergence.binary(np.ones_like(q), q)
    nearly = certain * (1 - 10 ** rng.uniform(-16, -1, q.size))
    chosen = (rng.uniform(size=q.size) < 1 / 3) & (nearly > 1e-12) & (nearly < 50)
    return q, np.where(chosen, nearly, delta)
