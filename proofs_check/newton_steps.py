"""How many Newton steps the exact rule needs: a theorem about NEWTON_STEPS, in exact arithmetic.

With r the root, everything depends on two numbers. For the gain they are a = r/q and s = r/(1-q),
the iterate being (1+e) r; for the complement c = 1 - g and T = log((1-q)/(q c)), the iterate being
(1-e) c. A few boxes of them cover every q down to the least positive float64.

M(t) = (t - log(1+t))/t^2 and its kin are integrals over u in [0, 1] of u/(1+tu), (1-u)/(1+tu) and
1/(1+tu): they fall with t, while t M(t) and t E(t) grow (`newton-kernels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from flint import arb

from cactus_theory.divergences import _kl_root
from proofs_check.balls import Box, ball, prove_positive
from proofs_check.certificates import inequality
from proofs_check.claims import Finding, Step, claim
from proofs_check.symbolic import equal, sp, vanishes

NEWTON_STEPS = _kl_root.NEWTON_STEPS
HALF = Fraction(1, 2)


def box(*sides: str) -> Box:
    """A box from "low high" strings."""
    pairs = (side.split() for side in sides)
    return tuple((Fraction(low), Fraction(high)) for low, high in pairs)


def between_ends(function: Any, x: arb) -> arb:
    """Enclosure of a monotone function over a ball, from its two ends."""
    return function(x.lower()).union(function(x.upper()))


def kernel_e(t: arb) -> arb:
    """E(t) = ((1+t) log(1+t) - t)/t^2."""
    return between_ends(lambda x: (-x).hypgeom_2f1(1, 1, 3) / 2, t)


def kernel_m(t: arb) -> arb:
    """M(t) = (t - log(1+t))/t^2."""
    return between_ends(lambda x: (-x).hypgeom_2f1(1, 2, 3) / 2, t)


def kernel_l(t: arb) -> arb:
    """L(t) = log(1+t)/t."""
    return between_ends(lambda x: (-x).hypgeom_2f1(1, 1, 2), t)


def t_e(t: arb) -> arb:
    """t E(t), also for large t."""
    return between_ends(lambda x: ((1 + x) * x.log1p() - x) / x if x != 0 else x, t)


def t_m(t: arb) -> arb:
    """t M(t), also for large t."""
    return between_ends(lambda x: (x - x.log1p()) / x if x != 0 else x, t)


def clipped(error: arb, s: arb) -> arb:
    """The start's error, clipped as the code does: x <= (1-q)/2 is (1+e) s <= 1/2."""
    return (error.min(1 / (2 * s) - 1) if s > 0 else error).max(arb(0)).upper()


def spare(errors: list[arb], single: int = 24) -> arb:
    """min over both formats of 1 - error/(half an ulp), after four steps and after the last."""
    return (1 - errors[4] * arb(2) ** single).min(1 - errors[-1] * arb(2) ** 53)


def near(alpha: arb, sigma: arb, a: arb, s: arb, error: arb, steps: int) -> list[arb]:
    """Errors where a is at most 1/2; a : s = alpha : sigma, weights of order one."""
    errors = [clipped(error, s)]
    for _ in range(steps):
        e = errors[-1]
        v = (s * (1 + e)).min(ball(HALF))
        down = alpha / (1 + a) * kernel_m(a * e / (1 + a))
        up = sigma / (1 - s) * kernel_m(-s * e / (1 - s))
        slope = (1 + e) * (alpha * kernel_l(a * (1 + e)) + sigma * kernel_l(-v))
        errors.append((e * e * (down + up) / slope).upper())
    return errors


def gain_small(a: arb, sigma: arb, steps: int = 5) -> list[arb]:
    """q < 1/2 and r <= q/2, with sigma = s/a."""
    energy = kernel_e(a) + sigma * kernel_e(-a * sigma)
    start = a * energy + (a * a * energy * energy + 2 * energy).sqrt()
    return near(arb(1), sigma, a, a * sigma, start - 1, steps)


def gain_from_half(s: arb, alpha: arb, steps: int = 5) -> list[arb]:
    """q >= 1/2, with alpha = a/s."""
    energy = alpha * kernel_e(alpha * s) + kernel_e(-s)
    start = (2 * energy / (1 + alpha)).sqrt()
    return near(alpha, arb(1), alpha * s, s, start - 1, steps)


def gain_large(log_a: arb, s: arb, steps: int = 5) -> list[arb]:
    """q < 1/2 and r >= q/2, with a = e^log_a."""
    a, b = log_a.exp(), 1 / (1 + (-log_a).exp())
    energy = t_e(a) - t_e(-s)
    start = (energy + (energy * energy + 2 * energy / a).sqrt() - 1).upper()
    errors = [clipped(start, s)]
    if not s > 0:  # pointwise the start is min(start, 1/(2s) - 1): all such values
        errors = [start.min(1 / (2 * s.upper()) - 1).max(arb(0)).union(start)]
    for _ in range(steps):
        e = errors[-1]
        v = (s * (1 + e)).min(ball(HALF))
        w = s * e / (1 - s)
        w = w if s > 0 else w.min(ball(HALF))  # as s (1+e) <= 1/2
        slope = (a * (1 + e)).log1p() - (-v).log1p()
        errors.append((e * (t_m(b * e) - t_m(-w)) / slope).upper())
    return errors


def gain_largest(log_a: arb, log_s: arb, steps: int = 5) -> list[arb]:
    """`gain_large` in the logarithm of 1/s."""
    return gain_large(log_a, (-log_s).exp(), steps)


def complement(log_q: arb, log_s: arb, steps: int = 5) -> list[arb]:
    """c = (1-q) s at most half of 1 - q, with log_q = log(1/q), log_s = log(1/s)."""
    c, large_t = (1 - (-log_q).exp()) * (-log_s).exp(), log_q + log_s
    excess = (1 - c) * kernel_l(-c)
    ahead = large_t + excess
    right = (excess + ahead.log() - 1) / (1 + large_t - ahead.log())  # y - 1 of the start
    if log_s < 4:
        right = right.min(log_s.exp() / 2 - 1)  # clipped to (1-q)/2
    odds = c / (1 - c)

    def after(e: arb) -> arb:
        slope = large_t + (-c * (1 - e)).log1p() - (1 - e).log()
        return (e * e * (kernel_m(-e) + odds * kernel_m(odds * e)) / slope).upper()

    # the next error grows with |e| on either side of the root
    errors = [right, after(-right.lower()).max(after(-right.upper()))]
    for _ in range(steps - 1):
        errors.append(after(errors[-1]))
    return errors


REGIONS = {
    "newton-gain-small": (gain_small, box("0 1/2", "0 1")),
    "newton-gain-half": (gain_from_half, box("0 1/2", "0 1")),
    "newton-gain-middle": (gain_large, box("-7/10 12", "0 1/2")),
    "newton-gain-large": (gain_largest, box("12 745", "69/100 8")),
    "newton-gain-edge": (gain_large, box("12 745", "0 1/2900")),  # 1/2900 > e^-8
    "newton-complement": (complement, box("0 745", "69/100 745")),
}
SAYS = {
    "newton-gain-small": "Gain for $q < 1/2$ and $r \\le q/2$, in $a = r/q$ and $s/a = q/(1-q)$.",
    "newton-gain-half": "Gain for $q \\ge 1/2$, in $s = r/(1-q)$ and $a/s = (1-q)/q$.",
    "newton-gain-middle": "Gain for $q < 1/2$ and $r \\ge q/2$, in log a and s.",
    "newton-gain-large": "The same for large a, in log a and log(1/s).",
    "newton-gain-edge": "The same for large a and small s, in log a and s.",
    "newton-complement": "Complement $c = (1-q)s$, in log(1/q) and log(1/s).",
}
for _name, (_errors, _) in REGIONS.items():
    inequality(_name)(lambda x, y, errors=_errors: spare(errors(x, y)))


@claim(
    name="newton-kernels",
    source="lemma",
    statement="E, M and L are integrals of positive functions that fall with t; t E, t M and t L "
    "grow; all three are hypergeometric functions",
    tex=r"E = \int_0^1\!\tfrac{1-u}{1+tu}du = \tfrac{(1+t)\log(1+t)-t}{t^2},\ "
    r"M = \int_0^1\!\tfrac{u}{1+tu}du = \tfrac{t-\log(1+t)}{t^2},\ "
    r"L = \int_0^1\!\tfrac{du}{1+tu} = \tfrac{\log(1+t)}{t}",
    false=({"weight": 2},),
)
def newton_kernels(weight: int = 1) -> Iterator[Step]:
    t, u = sp.symbols("t u", positive=True)
    log = sp.log(1 + t)
    for name, top, value, series in (
        ("E", 1 - u, ((1 + t) * log - t) / t**2, sp.hyper((1, 1), (3,), -t) / 2),
        ("M", u, weight * (t - log) / t**2, sp.hyper((1, 2), (3,), -t) / 2),
        ("L", sp.S.One, log / t, sp.hyper((1, 1), (2,), -t)),
    ):
        integrand = top / (1 + t * u)

        def closed(integrand: Any = integrand, value: Any = value, series: Any = series) -> bool:
            integral = sp.integrate(sp.apart(integrand, u), (u, 0, 1))
            return vanishes(sp.simplify(integral - value)) and vanishes(
                sp.simplify(sp.hyperexpand(series) - value)
            )

        yield Step(
            f"{name} in closed form, and as a hypergeometric function, which ball arithmetic can "
            "evaluate without cancellation.",
            rf"{name}(t) = \int_0^1 {sp.latex(integrand)}\,du = {sp.latex(value)} = "
            rf"{sp.latex(series)}",
            closed,
            assumes="$t > -1$, so $1 + tu > 0$",
        )
        falls, grows = -top * u / (1 + t * u) ** 2, top / (1 + t * u) ** 2
        yield Step(
            f"The integrand of {name} falls with t, and t times it grows: the signs of both "
            "derivatives are read off, as $0 \\le u \\le 1$.",
            rf"\partial_t\left[{sp.latex(integrand)}\right] = {sp.latex(falls)}, \qquad "
            rf"\partial_t\left[t \cdot {sp.latex(integrand)}\right] = {sp.latex(grows)}",
            lambda integrand=integrand, falls=falls, grows=grows: (
                sp.cancel(sp.diff(integrand, t) - falls) == 0
                and sp.cancel(sp.diff(t * integrand, t) - grows) == 0
            ),
        )


@claim(
    name="newton-error",
    source="ours, in code",
    statement="the relative error of one Newton step is a product of positive terms, for the gain "
    "and for the complement, and both starts depend on the same two numbers",
    tex=r"e' = \frac{e^2}{F'}\left[\tfrac{a}{1+a}M\!\left(\tfrac{ae}{1+a}\right) + "
    r"\tfrac{s}{1-s}M\!\left(\tfrac{-se}{1-s}\right)\right],\qquad e' = \frac{e^2}{L}\left[M(-e) + "
    r"\tfrac{c}{1-c}M\!\left(\tfrac{ce}{1-c}\right)\right]",
    false=({"scale": 2},),
)
def newton_error(scale: int = 1) -> Iterator[Step]:
    a, b, e, big, y = sp.symbols("a b e T y", positive=True)

    def kernel(t: Any) -> Any:
        return scale * (t - sp.log(1 + t)) / t**2

    s = 1 / (1 + e + b)  # every s with s (1+e) < 1
    gain = (1 / a + y) * sp.log(1 + a * y) + (1 / s - y) * sp.log(1 - s * y)
    missed = sp.diff(gain, y) * (y - 1) - gain + gain.subs(y, 1)
    shape = a / (1 + a) * kernel(a * e / (1 + a)) + s / (1 - s) * kernel(-s * e / (1 - s))
    yield equal(
        "The gain. Let r be the root, $a = r/q$, $s = r/(1-q)$ and $x = yr$. Then KL/r depends "
        "on a, s and y alone. What a Newton step from $y = 1+e$ misses, times the slope, in "
        "closed form.",
        (r"F'(y)(y-1) - F(y) + F(1)", missed.subs(y, 1 + e)),
        (
            r"e^2\left[\tfrac{a}{1+a}M\!\left(\tfrac{ae}{1+a}\right) + "
            r"\tfrac{s}{1-s}M\!\left(\tfrac{-se}{1-s}\right)\right]",
            e**2 * shape,
        ),
        assumes="$0 < s(1+e) < 1$",
    )
    # KL(q + r || q)/r with q = r/a, 1 - q = r/s
    spent = ((1 + a) * sp.log(1 + a) - a) / a + ((1 - s) * sp.log(1 - s) + s) / s
    yield equal(
        "Its start solves a lower bound of KL for the budget, which is also a function of a and s.",
        (r"\frac{\delta}{r} = F(1)", gain.subs(y, 1)),
        (r"a E(a) + s E(-s)", spent),
        tex=r"\frac{\delta}{r} = \frac{(1+a)\log(1+a) - a}{a} + \frac{(1-s)\log(1-s) + s}{s}",
    )

    def rise(at: Any, rest: Any) -> Any:  # deficit of 1 - c at, over c
        return at * (big + sp.log(1 - rest * at) - sp.log(at)) - sp.log(1 - rest * at) / rest

    def complement_gap(error: Any, rest: Any) -> Any:
        slope = sp.diff(rise(y, rest), y)
        over = (slope * (1 - y) + rise(y, rest)).subs(y, 1 - error) - rise(1, rest)
        odds = rest / (1 - rest)
        return over - error**2 * (kernel(-error) + odds * kernel(odds * error))

    rest = 1 / (1 + b)
    slope = sp.diff(rise(y, rest), y) - (big + sp.log(1 - rest * y) - sp.log(y))
    yield Step(
        "The complement $c = 1 - g$. Let $T = \\log\\frac{1-q}{qc}$ and the iterate be yc. The "
        "budget not spent, over c, depends on c, T and y alone; this is its slope.",
        r"D(y) = y\,[T + \log(1 - cy) - \log y] - \tfrac1c\log(1 - cy), \qquad "
        r"D'(y) = T + \log(1 - cy) - \log y",
        lambda: vanishes(slope.subs(y, 1 / (1 + e))),
    )
    yield Step(
        "What a step from $y = 1-e$ misses, times the slope, for errors on either side of the "
        "root.",
        r"D'(y)(1-y) + D(y) - D(1) = e^2\left[M(-e) + \tfrac{c}{1-c}"
        r"M\!\left(\tfrac{ce}{1-c}\right)\right]",
        lambda: (
            vanishes(complement_gap(e / (1 + e), rest))
            and vanishes(complement_gap(-e, 1 / (1 + e + b)))
        ),
        assumes="$0 < c(1-e) < 1$",
    )
    yield equal(
        "Its start solves a bound of the budget not spent, which is also a function of T and c.",
        ("D(1)", rise(1, rest)),
        (r"T - \frac{(1-c)\log(1-c)}{c}", big - (1 - rest) * sp.log(1 - rest) / rest),
    )


@claim(
    name="newton-steps",
    source="ours, in code",
    statement="from the starts of kl_root, 4 Newton steps reach relative error 2^-24 and 5 reach "
    "2^-53, for every float64 q in (0, 1) and every delta: NEWTON_STEPS = "
    f"{NEWTON_STEPS} has {NEWTON_STEPS - 5} to spare",
    tex=r"\frac{|x_4 - r|}{r} < 2^{-24},\quad \frac{|x_5 - r|}{r} < 2^{-53} "
    r"\qquad (2^{-1074} \le q < 1,\ \delta > 0;\ \text{also for } 1-g \ge 2^{-1074}(1-q))",
    false=({"steps": 4}, {"steps": 5, "single": 27}, {"taken": 4}),
)
def newton_steps(steps: int = 5, single: int = 24, taken: int = NEWTON_STEPS) -> Iterator[Step]:
    yield Step(
        "The code takes at least 5 steps.",
        rf"\texttt{{NEWTON\_STEPS}} = {taken} \ge {steps}",
        lambda: steps <= taken,
        "exhaustive",
    )
    how = (
        " The error of the start is a function of the two numbers, and that of each step grows "
        "with the error before; E, M and L are monotone, so their values at the ends of a ball "
        "enclose them. Six regions cover all q and all budgets."
    )
    for number, (name, (errors, region)) in enumerate(REGIONS.items()):

        def bounded(errors: Any = errors, region: Box = region, name: str = name) -> Finding:
            return prove_positive(
                lambda x, y: spare(errors(x, y, steps), single), region, name=name
            )

        sides = r" \times ".join(rf"\left[{low}, {high}\right]" for low, high in region)
        uses = ("newton-monotone", "newton-start", "newton-kernels", "newton-error")
        yield Step(
            SAYS[name] + how * (number == 0),
            rf"e_4 < 2^{{-24}}, \quad e_5 < 2^{{-53}} \quad\text{{on}}\quad {sides}",
            bounded,
            "interval",
            assumes="exact arithmetic" * (number == 0),
            uses=uses * (number == 0),
        )
