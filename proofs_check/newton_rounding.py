"""What the last Newton step of kl_root loses to rounding in float64, in each of its three branches.

In units of u = 2^-53. A sum, product or quotient errs by u, log and log1p by 2u (one ulp), 1 - q by
u. The errors add up, each times how much the result depends on it. Products of two errors are below
1e-12 of the bounds, which have more than that to spare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from flint import arb

from proofs_check.balls import ball, prove_positive
from proofs_check.certificates import inequality
from proofs_check.claims import Finding, Step, claim
from proofs_check.newton_steps import box, kernel_l, kernel_m
from proofs_check.symbolic import equal, sp

STEEP, FLAT, COMPLEMENT = 50, 14, 40  # units of u
QUARTER = Fraction(1, 4)
_ROUNDINGS = "float64 rounds to nearest; log and log1p err by one ulp at most; nothing underflows"


def steep(a: arb, s: arb) -> arb:
    """Loss of x <- (delta - q log(1+a) - (1-q) log(1-s)) / (log(1+a) - log(1-s)); a + s >= 1/4."""
    slope = a * kernel_l(a) + s * kernel_l(-s)
    return 5 + (1 + 2 * kernel_l(a) + 2 * (1 + s) / (1 - s) + 5 * kernel_l(-s)) / slope


def flat(t: arb, share: arb) -> arb:
    """Loss of x <- (delta + x (left - right)) / slope, a = t share, s = t (1 - share) <= 1/4."""
    rest = 1 - share
    a, s = t * share, t * rest
    slope = share * kernel_l(a) + rest * kernel_l(-s)
    spent = ball("6.5") * share * kernel_m(a) + 8 * rest * kernel_m(-s)
    return 5 + (spent + share / (1 + a) + 2 * rest / (1 - s)) / slope


def complement(log_q: arb, log_s: arb) -> arb:
    """Loss of c <- (deficit + log(1-c)) / L; c = (1-q) s, s <= 1/2, log(1/q) > 1.25 delta."""
    c = (1 - (-log_q).exp()) * (-log_s).exp()
    lost = c * kernel_l(-c)  # -log(1-c), at most half of log(1/q)
    slope = (log_q - lost).max(log_q / 2).max(arb(0)) + log_s
    return 17 + (13 * kernel_l(-c) + 2 + 6 * lost - log_s) / slope


def spare_steep(a: arb, s: arb, units: Any = STEEP) -> arb:
    """What the bound has to spare, where the branch is taken."""
    return arb(1) if a + s < ball(QUARTER) else units - steep(a, s)


BRANCHES: dict[str, tuple[Callable[..., arb], tuple[Any, ...]]] = {
    "rounding-steep": (spare_steep, box("0 3", "0 1/2")),
    "rounding-flat": (lambda t, share, units=FLAT: units - flat(t, share), box("0 1/4", "0 1")),
    "rounding-complement": (
        lambda x, y, units=COMPLEMENT: units - complement(x, y),
        box("0 745", "69/100 1490"),
    ),
}
for _name, (_spare, _) in BRANCHES.items():
    inequality(_name)(lambda x, y, spare=_spare: spare(x, y))


@claim(
    name="newton-last-step",
    source="ours, in code",
    statement="one Newton step of kl_root, evaluated in float64 at the root, returns it within 50 "
    "ulp for a gain of at least q (1-q)/4, within 14 ulp for a smaller gain, and 1 - g within 40 "
    "ulp above the half-way point, wherever log(1/q) > 1.25 delta",
    tex=r"|\hat x - x| \le 50u\,x \ \left(x \ge \tfrac{q(1-q)}4\right), \quad 14u\,x \ "
    r"\left(x < \tfrac{q(1-q)}4\right), \qquad |\hat c - c| \le 40u\,c",
    false=({"gain": 40}, {"small": 9}, {"rest": 25}, {"slope": 2}),
)
def newton_last_step(
    gain: int = STEEP, small: int = FLAT, rest: int = COMPLEMENT, slope: int = 1
) -> Iterator[Step]:
    a, s = sp.symbols("a s", positive=True)
    yield equal(
        "Let $a = x/q$, $s = x/(1-q)$. The logarithm of 1+a depends on an error of a by this "
        "factor; so does that of 1-s, with -s for a.",
        (
            r"\frac{a}{\log(1+a)} \frac{d\log(1+a)}{da}",
            a * sp.diff(sp.log(1 + a), a) / sp.log(1 + a),
        ),
        (r"\frac{a}{(1+a)\log(1+a)}", a / ((1 + a) * sp.log(1 + slope * a))),
    )
    up, down = sp.log(1 + a), -sp.log(1 - s)
    # all over x: q = x/a, 1 - q = x/s
    budget = (1 + 1 / a) * up - (1 / s - 1) * down
    yield equal(
        "At the root the numerator is x times the slope, so that errors of its terms count by "
        "their size over that. The branch for large gains subtracts terms of about x each, which "
        "costs most where the slope is least.",
        (
            r"\frac{\delta}{x} - \frac{\log(1+a)}{a} - \frac{\log(1-s)}{s}",
            budget - up / a + down / s,
        ),
        (r"\log(1+a) - \log(1-s)", up + down),
        assumes="$KL(q + x\\|q) = \\delta$",
    )

    def proved(name: str, units: int) -> Callable[[], Finding]:
        spare, region = BRANCHES[name]
        return lambda: prove_positive(lambda x, y: spare(x, y, units), region, name=name)

    yield Step(
        "Large gains. $-q\\log(1+a)$ errs by $1/(1+a) + 3L(a)$ over x, $-(1-q)\\log(1-s)$ by "
        "$2/(1-s) + 4L(-s)$, their sum by at most $L(-s) - L(a)$, the numerator by 1, the slope by "
        "$[a/(1+a) + 2s/(1-s)]$ over itself and 3 more, the quotient by 1. Where a is above 3 "
        "every term but the slope, which grows, is at most that at a = 3.",
        r"5 + \frac{1 + 2L(a) + 2\frac{1+s}{1-s} + 5L(-s)}{\log(1+a) - \log(1-s)} < 50 "
        r"\qquad \left(a + s \ge \tfrac14,\ a \le 3,\ s \le \tfrac12\right)",
        proved("rounding-steep", gain),
        "interval",
        assumes=_ROUNDINGS,
        uses=("newton-kernels",),
    )
    yield Step(
        "Small gains. left = a M(a) is computed from $r = a/(2+a)$, which errs by 2 and counts by "
        "at most 7/6; its series is at most a seventh of it, with 6.5, and the last subtraction 1: "
        "4.5 in all. right errs by 6. The difference and the product by x add 2.",
        r"5 + \frac{6.5\, aM(a) + 8\, sM(-s) + \frac{a}{1+a} + \frac{2s}{1-s}}"
        r"{\log(1+a) - \log(1-s)} < 14 \qquad \left(a + s \le \tfrac14\right)",
        proved("rounding-flat", small),
        "interval",
        assumes=_ROUNDINGS,
    )
    yield Step(
        "The complement. $\\log\\frac1q$ is at most 5 times the deficit, which therefore errs by "
        "11, and is $cL + \\ell$ with $\\ell = -\\log(1-c)$. The slope L is $\\log\\frac1q - "
        "\\ell + \\log\\frac{1-q}{c}$; it errs by at most "
        "$3 + (2 + 6\\ell - \\log\\frac{1-q}c)/L$ and 1.",
        r"17 + \frac{13\,\ell/c + 2 + 6\ell - \log\frac{1-q}{c}}{L} < 40",
        proved("rounding-complement", rest),
        "interval",
        assumes=_ROUNDINGS,
    )
