"""Root of KL(Bernoulli(g) || Bernoulli(q)) = delta with g >= q, by a fixed number of Newton steps.

Two regimes keep both g and 1 - g accurate: below the half-way point (1+q)/2 the unknown is the gain
x = g - q, above it the complement c = 1 - g. This is the decoder's solver, over a namespace ``xp``;
the theory's bracketed root (`_root`) validates it and shares nothing with it. Over torch it is free
of branches and solves both regimes everywhere; over numpy each element is solved in its own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from cactus_theory._chunks import by_chunks

NEWTON_STEPS = 6  # one more than float64 needs in exact arithmetic: the claim newton-steps
_LOG_2 = math.log(2)
_SERIES = tuple(1 / (2 * k + 3) for k in range(10))


def kl_root(target_prob: Any, delta: Any, *, deficit: Any = None, xp: Any) -> tuple[Any, Any, Any]:
    """Return g, 1 - g and (1 - g)/(1 - q).

    `deficit` is -log(q) - delta, the amount by which g = 1 would exceed the budget. Where it nearly
    cancels, a caller who wants 1 - g to the last digits must pass it more exactly than float64
    subtraction can.
    """
    if xp is np:
        given = () if deficit is None else (deficit,)
        return by_chunks(_by_regime, target_prob, delta, *given, outputs=3)
    inner = (target_prob > 0) & (target_prob < 1)
    q = xp.where(inner, target_prob, 0.5)
    room, log_q = 1 - q, xp.log(q)
    if deficit is None:
        deficit = -log_q - delta
    sure = deficit <= 0
    upper = _is_upper(q, room, log_q, delta, xp=xp)
    gain = _solve_gain(q, room, delta, xp=xp)
    complement = _solve_complement(room, log_q, xp.where(sure, 0.1, deficit), xp=xp)

    complement = xp.where(sure, 0.0, xp.where(upper, complement, room - gain))
    boosted = xp.where(upper | sure, 1 - complement, q + gain)
    moved = inner & (delta > 0)
    boosted = xp.where(moved, boosted, target_prob)
    ratio = xp.where(moved, complement / room, 1.0)
    return boosted, xp.where(moved, complement, 1 - target_prob), ratio


def _by_regime(target: Any, delta: Any, deficit: Any = None) -> tuple[Any, Any, Any]:
    """`kl_root` of numpy arrays of shape (n,), each element solved in its own regime only."""
    room = 1 - target
    with np.errstate(divide="ignore"):
        log_q = np.log(target)
    if deficit is None:
        deficit = -log_q - delta
    upper = _is_upper(target, room, log_q, delta, xp=np)
    still = (target <= 0) | (target >= 1) | (delta <= 0)
    # KL <= chi-square = x^2 / (q (1-q)), so that the root is at least q (1-q) / 4.
    steep = (target * room <= 16 * delta) & (target > 1e-290)
    boosted, complement, ratio = np.ones_like(room), np.zeros_like(room), np.zeros_like(room)

    at = np.flatnonzero(upper & (deficit > 0))
    rest = room[at]
    c = _solve_complement(rest, log_q[at], deficit[at], xp=np)
    boosted[at], complement[at], ratio[at] = 1 - c, c, c / rest
    lower = ~(upper | still)
    flat_gain = partial(_solve_gain, xp=np)
    for regime, solve in ((lower & steep, _solve_steep_gain), (lower & ~steep, flat_gain)):
        at = np.flatnonzero(regime)
        if at.size:
            q, rest = target[at], room[at]
            x = solve(q, rest, delta[at])
            c = rest - x
            boosted[at], complement[at], ratio[at] = q + x, c, c / rest
    at = np.flatnonzero(still)
    boosted[at], complement[at], ratio[at] = target[at], room[at], 1.0
    return boosted, complement, ratio


def _is_upper(q: Any, room: Any, log_q: Any, delta: Any, *, xp: Any) -> Any:
    """Whether KL((1+q)/2 || q) <= delta, with nothing that cancels near q = 1."""
    growth = xp.log1p(-room / 2) - log_q
    return 2 * delta >= (1 + q) * growth - _LOG_2 * room


def _start(q: Any, room: Any, delta: Any, *, xp: Any) -> Any:
    """A gain above the root: KL >= x^2 / (2 q (1-q)) for q >= 1/2, x^2 / (2 (q+x)) always."""
    # Roots of factors, as the products might underflow.
    above_half = (2 * delta) ** 0.5 * xp.sqrt(q * room)
    below_half = delta + delta**0.5 * xp.sqrt(delta + 2 * q)
    return xp.minimum(xp.where(q >= 0.5, above_half, below_half), room / 2)


def _solve_steep_gain(q: Any, room: Any, delta: Any) -> Any:
    """x with KL(q + x || q) = delta, where x >= q (1-q) / 4.

    KL(q + x || q) = q a + (1-q) b + x (a - b), a = log(1 + x/q), b = log(1 - x/(1-q)), a - b being
    also its slope, so that Newton's step is simply x <- (delta - q a - (1-q) b) / (a - b).
    """
    half, minus = room / 2, -room
    x = _start(q, room, delta, xp=np)
    a, b = np.empty_like(x), np.empty_like(x)
    for _ in range(NEWTON_STEPS):
        np.log1p(np.divide(x, q, out=a), out=a)
        np.log1p(np.divide(x, minus, out=b), out=b)
        np.subtract(a, b, out=x)
        a *= q
        b *= minus
        b -= a
        b += delta
        np.minimum(np.divide(b, x, out=x), half, out=x)
    return x


def _solve_gain(q: Any, room: Any, delta: Any, *, xp: Any) -> Any:
    """`_solve_steep_gain` wherever the root is; KL is convex, so Newton descends from above.

    For small x, -q a - (1-q) b would cancel. With r = x/(2q + x), log(1 + x/q) = 2 atanh(r) makes
    -q a = x (u(r) - 1), u(r) = r - r^2 (1-r) (1/3 + r^2/5 + ...); the other term likewise, with
    q - 1 for q.
    """
    half, close = room / 2, q * room / 4
    x = _start(q, room, delta, xp=xp)
    # Where x / q might overflow, 1 + x/q = x/q in floats.
    scaled = xp.where(x > 1e300 * q, q * 2.0**100, q)
    pair, shift = xp.stack((scaled, -room)), xp.log(scaled / q)
    for _ in range(NEWTON_STEPS):
        a, b = xp.log1p(x / pair)
        a = a + shift
        left, right = _departure(x / (2 * pair + x))
        spent = xp.where(x < close, x * (left - right), -q * a - room * b)
        x = xp.minimum((delta + spent) / (a - b), half)
    return x


def _departure(r: Any) -> Any:
    """1 - log(1+t)/t with t = 2r/(1-r), for |r| <= 1/7."""
    square, series = r * r, _SERIES[-1]
    for coefficient in reversed(_SERIES[:-1]):
        series = series * square + coefficient
    return r - (1 - r) * square * series


def _solve_complement(room: Any, log_q: Any, deficit: Any, *, xp: Any) -> Any:
    """c with log(1/q) - KL(1-c || q) = deficit, a concave function: from wherever Newton
    starts, its first step lands below the root and it climbs from there.

    The left side is c L - log(1-c), L = log((1-c)(1-q)/(c q)) being also its slope, so that
    Newton's step is simply c <- (deficit + log(1-c)) / L.
    """
    half = room / 2
    c = deficit / (1 + xp.log(room) - log_q - xp.log(deficit))
    for _ in range(NEWTON_STEPS):
        c = xp.minimum(xp.clip(c, 1e-320, 0.5), half)
        shrunk = xp.log1p(-c)
        c = (deficit + shrunk) / (shrunk - log_q - xp.log(c / room))
    return c
