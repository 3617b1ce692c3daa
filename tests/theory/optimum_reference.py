"""The optimum of KL to 50 digits, and the divergences that optima are taken of."""

from __future__ import annotations

import mpmath
import numpy as np
from mpmath import mpf

from cactus_theory import Alpha
from cactus_theory.rules import parameters

DIVERGENCES = [
    *parameters.DIVERGENCES.values(),
    *(Alpha(order) for order in (-3.0, -1.0, 0.3, 0.5, 1.0, 1.5, 2.0, 7.5)),
]
DIGITS = 80  # q = 1e-300 needs no more, because log1p and expm1 keep relative precision
EPS = 2.0**-52
ULPS = 18  # EPS, relative: 12 for evaluating the divergence, 2 the bracket's width, some roundings


def digits(q: float, delta: float) -> int:
    """Digits in which 50 are left of a gain as small as a tiny q or a tiny budget makes it."""
    return DIGITS + int(2 * abs(np.log10(q or 1.0)) + 2 * abs(np.log10(delta or 1.0)))


def reference_kl(odds, q):
    """KL(Bernoulli(g) || Bernoulli(q)) in mpmath, with odds = log(g/(1-g))."""
    g, c = 1 / (1 + mpmath.exp(-odds)), 1 / (1 + mpmath.exp(odds))
    return g * (mpmath.log(g) - mpmath.log(q)) + c * (mpmath.log(c) - mpmath.log1p(-q))


def reference_optimum(q: float, delta: float):
    """g and 1 - g to 50 digits: bisection on the log-odds, Newton, and a certified sign change."""
    q, delta = mpf(q), mpf(delta)
    if delta == 0 or q == 0 or q == 1:
        return q, 1 - q
    if -mpmath.log(q) <= delta:
        return mpf(1), mpf(0)
    start = mpmath.log(q) - mpmath.log1p(-q)
    low, width = start, mpf(1)
    while reference_kl(start + width, q) < delta:
        width *= 2
    high = start + width
    while high - low > mpf("1e-3"):
        middle = (low + high) / 2
        low, high = (middle, high) if reference_kl(middle, q) < delta else (low, middle)
    odds = high  # d KL / d odds = g (1-g) (odds - start): convex this close above the root
    for _ in range(2000):  # far above a tiny root, each step only halves the excess
        slope = (odds - start) / (2 + mpmath.exp(odds) + mpmath.exp(-odds))
        step = (reference_kl(odds, q) - delta) / slope
        odds -= step
        if abs(step) < mpf(10) ** -55 * (odds - start):
            break
    margin = mpf(10) ** -50 * (odds - start)
    assert reference_kl(odds - margin, q) < delta < reference_kl(odds + margin, q)
    return 1 / (1 + mpmath.exp(-odds)), 1 / (1 + mpmath.exp(odds))


def exact_kl(g, c, q):
    """Divergence of (g, c) from (q, 1-q), where g or c is a float and the other 1 minus it."""
    terms = [
        x * (mpmath.log(x) - log) for x, log in ((g, mpmath.log(q)), (c, mpmath.log1p(-q))) if x
    ]
    return mpmath.fsum(terms)
