"""Root of KL(Bernoulli(g) || Bernoulli(q)) = delta with g >= q, by a fixed number of Newton steps.

Branch-free over a namespace ``xp``, so the decoder solves the same equation with torch as the
theory with numpy. Two regimes keep both g and 1 - g accurate: below the half-way point (1+q)/2 the
unknown is the gain x = g - q, above it the complement c = 1 - g.
"""

from __future__ import annotations

from typing import Any

from cactus_theory.divergences import binary_kl_of_gain, log_growth

NEWTON_STEPS = 6  # five reach float64 accuracy everywhere a sweep of 1.6 million pairs looked


def kl_root(target_prob: Any, delta: Any, *, deficit: Any = None, xp: Any) -> tuple[Any, Any, Any]:
    """Return g, 1 - g and (1 - g)/(1 - q).

    `deficit` is -log(q) - delta, what g = 1 would overspend. Where it nearly cancels, a caller who
    wants 1 - g to the last digits must say it more exactly than float64 subtraction can.
    """
    inner = (target_prob > 0) & (target_prob < 1)
    q = xp.where(inner, target_prob, 0.5)
    room = 1 - q
    if deficit is None:
        deficit = -xp.log(q) - delta
    upper = inner & (delta >= binary_kl_of_gain(room / 2, q, xp=xp)) & (deficit > 0)
    sure = (target_prob >= 1) | (inner & (deficit <= 0))
    gain = _solve_gain(q, room, delta, xp=xp)
    complement = _solve_complement(q, room, xp.where(upper, deficit, 0.1), xp=xp)

    complement = xp.where(upper, complement, room - gain)
    boosted = xp.where(upper, 1 - complement, q + gain)
    still = xp.logical_not(inner) | (delta <= 0)
    complement = xp.where(still, 1 - target_prob, xp.where(sure, 0.0, complement))
    boosted = xp.where(still, target_prob, xp.where(sure, 1.0, boosted))
    ratio = xp.where(still, 1.0, complement / room)
    return boosted[()], complement[()], ratio[()]


def _solve_gain(q: Any, room: Any, delta: Any, *, xp: Any) -> Any:
    """x with KL(q + x || q) = delta; KL is convex in x, so Newton descends from any upper bound."""
    # KL >= x^2 / (2 q (1-q)) for q >= 1/2, and KL >= x^2 / (2 (q+x)) always.
    above_half = xp.sqrt(2 * delta * q * room)
    below_half = delta + xp.sqrt(delta * delta + 2 * delta * q)
    x = xp.where(q >= 0.5, above_half, below_half)
    x = xp.where(x < room / 2, x, room / 2)
    for _ in range(NEWTON_STEPS):
        slope = log_growth(q, x, xp=xp) - xp.log1p(-x / room)
        excess = binary_kl_of_gain(x, q, xp=xp) - delta
        x = xp.clip(x - excess / xp.where(slope > 0, slope, 1.0), 0.0, 0.5)
        x = xp.where(x < room / 2, x, room / 2)
    return x


def _solve_complement(q: Any, room: Any, deficit: Any, *, xp: Any) -> Any:
    """c with log(1/q) - KL(1-c || q) = deficit, a concave function: from wherever Newton
    starts, its first step lands below the root and it climbs from there.

    The left side is c L - log(1-c), L = log((1-c)(1-q)/(c q)) being also its slope, so that
    Newton's step is simply c <- (deficit + log(1-c)) / L.
    """
    log_q = xp.log(q)
    c = deficit / (1 + xp.log(room) - log_q - xp.log(deficit))
    for _ in range(NEWTON_STEPS):
        c = xp.clip(c, 1e-320, 0.5)
        c = xp.where(c < room / 2, c, room / 2)
        shrunk = xp.log1p(-c)
        c = (deficit + shrunk) / (shrunk - log_q - xp.log(c / room))
    return c
