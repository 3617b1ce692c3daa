"""The budget of one candidate under the second-order rule: Corollaries 5 and 6, and what it costs.

Two distributions on {n, not n}: the candidate gives n probability g, the target q. The substitution
q = 1/(1 + u (1+z)^2), delta = u/2 makes the rule's square root rational and maps u > 0, z > 0 onto
the pairs (q, delta) where the cap g = 1 is not reached; z = 0 is the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flint import arb, ctx

from cactus_theory.rules.cactus import second_order_boost
from proofs_check.balls import ball
from proofs_check.claims import Step, claim
from proofs_check.symbolic import SYMPY, UNCAPPED, at_least, equal, nonnegative, shown, sp, vanishes

q, g, x, t, u, z, delta = sp.symbols("q g x t u z delta", positive=True)
UNCAPPED_PAIR = {q: 1 / (1 + u * (1 + z) ** 2), delta: u / 2}
HALF = sp.Rational(1, 2)


def binary_kl(h: Any, q: Any) -> Any:
    """KL between two Bernoulli distributions, as SymPy writes it."""
    return h * sp.log(h / q) + (1 - h) * sp.log((1 - h) / (1 - q))


def binary_chi_square(h: Any, q: Any) -> Any:
    """Chi-square divergence between two Bernoulli distributions, from its definition."""
    return q * (h / q - 1) ** 2 + (1 - q) * ((1 - h) / (1 - q) - 1) ** 2


@claim(
    name="corollary-5",
    source="Corollary 5",
    statement="the second-order rule solves the second-order expansion of KL = delta",
    tex=r"\mathrm{KL}(q+x\,\|\,q) = \frac{x^2}{2q(1-q)} + O(x^3), \qquad "
    r"\frac{(g-q)^2}{2q(1-q)} = \delta \iff g = q + \sqrt{2\delta q(1-q)} \quad (g \ge q)",
    false=({"coefficient": sp.Rational(1, 3)}, {"coefficient": 1}),
)
def corollary_5(coefficient: Any = HALF) -> Iterator[Step]:
    quadratic = coefficient * x**2 / (q * (1 - q))
    gain = second_order_boost(q, delta, xp=UNCAPPED) - q
    yield equal(
        "Expand the divergence of the two points in the gain $x = g - q$. The terms of order 0 and "
        "1 vanish, because KL is least, and 0, at $g = q$.",
        (r"\mathrm{KL}(q+x\|q) + O(x^3)", sp.series(binary_kl(q + x, q), x, 0, 3).removeO()),
        quadratic,
        assumes="$0 < q < 1$",
    )
    yield equal(
        "The code's own formula, without its cap, solves the quadratic equation.",
        (r"\left.\tfrac{x^2}{2q(1-q)}\right|_{x = g_{\text{code}} - q}", quadratic.subs(x, gain)),
        delta,
        assumes="the cap $g \\le 1$ is not reached",
    )
    yield at_least(
        "Of the two solutions it is the one with $g \\ge q$: the gain is the positive root of a "
        "positive number.",
        (r"\frac{(g_{\text{code}} - q)^2}{q(1-q)\,\delta}", gain**2 / (q * (1 - q)) / delta),
        0,
    )
    capped = second_order_boost(q, delta, xp=SYMPY)
    yield Step(
        "With its cap the code gives 3/4 below it, and 1 beyond it, at q = 1/2.",
        r"g_{\text{code}}(\tfrac12, \tfrac18) = \tfrac34, \qquad g_{\text{code}}(\tfrac12, 1) = 1",
        lambda: [capped.subs({q: HALF, delta: d}) for d in (HALF**3, 1)] == [3 * HALF**2, 1],
    )


@claim(
    name="chi-square-exact",
    source="ours, section 2",
    statement="uncapped, the second-order rule has chi-square divergence exactly 2 delta",
    tex=r"\chi^2(h\|q) = \sum_i \frac{(h_i-q_i)^2}{q_i} = \frac{(g-q)^2}{q(1-q)} = 2\delta",
    false=({"multiple": 1}, {"multiple": sp.Rational(21, 10)}),
)
def chi_square_exact(multiple: Any = 2) -> Iterator[Step]:
    q_i = sp.Symbol("q_i", positive=True)
    c = (1 - g) / (1 - q)
    yield equal(
        "Every other token has $h_i = c q_i$, and adds $(c-1)^2$ times its own probability. "
        "So all of them together add what one token of probability 1-q would.",
        (r"\frac{(c q_i - q_i)^2}{q_i}", (c * q_i - q_i) ** 2 / q_i),
        (r"q_i (c - 1)^2", q_i * (c - 1) ** 2),
        assumes="$0 < q < 1$",
    )
    yield equal(
        "The divergence of the two points is a square over the variance.",
        (r"q\left(\tfrac gq - 1\right)^2 + (1-q)(c-1)^2", binary_chi_square(g, q)),
        (g - q) ** 2 / (q * (1 - q)),
    )
    yield equal(
        "The code's formula put in.",
        (
            r"\chi^2(h_{\text{code}}\|q)",
            binary_chi_square(second_order_boost(q, delta, xp=UNCAPPED), q),
        ),
        multiple * delta,
        assumes="the cap $g \\le 1$ is not reached",
    )


@claim(
    name="tangent-of-log",
    source="lemma",
    statement="log t <= t - 1 for every t > 0, with equality at 1 only",
    tex=r"\log t \le t - 1 \quad (t > 0)",
    false=({"slope": sp.Rational(9, 10)}, {"slope": sp.Rational(11, 10)}),
)
def tangent_of_log(slope: Any = 1) -> Iterator[Step]:
    gap = slope * (t - 1) - sp.log(t)
    yield Step(
        "Both sides agree at 1: their difference D is 0 there.",
        r"D(t) = t - 1 - \log t, \qquad D(1) = 0",
        lambda: gap.subs(t, 1) == 0,
    )
    yield at_least(
        "D falls before 1, where its derivative is negative.",
        shown("-D'(t)", -sp.diff(gap, t)),
        0,
        where={t: 1 / (1 + z)},
    )
    yield at_least(
        "D rises after 1. So 1 is its only minimum.",
        shown("D'(t)", sp.diff(gap, t)),
        0,
        where={t: 1 + z},
        assumes="a function is monotone where its derivative keeps one sign",
    )


@claim(
    name="sharp-kl-bound",
    source="ours, section 2",
    statement="the second-order rule has KL(h||q) <= log(1 + 2 delta) for every q and delta > 0, "
    "with equality at q = 1/(1 + 2 delta)",
    tex=r"\mathrm{KL}(h\|q) \le \log(1+\chi^2(h\|q)) \le \log(1+2\delta)"
    r"\quad (0<q<1,\ \delta>0), \qquad = \text{ at } q = \tfrac1{1+2\delta}",
    false=({"factor": sp.Rational(199, 100)}, {"factor": sp.Rational(201, 100)}),
)
def sharp_kl_bound(factor: Any = 2) -> Iterator[Step]:
    target = UNCAPPED_PAIR[q]
    uncapped = second_order_boost(q, delta, xp=UNCAPPED)
    boosted = sp.factor(uncapped.subs(UNCAPPED_PAIR))
    (w_1, w_2), (r_1, r_2) = (
        (boosted, 1 - boosted),
        (boosted / target, (1 - boosted) / (1 - target)),
    )
    mean = sp.cancel(w_1 * r_1 + w_2 * r_2)
    bound = 1 + factor * delta
    cap = 1 / (1 + 2 * delta)
    yield equal(
        "Below the cap, let $r_1 = g/q$ and $r_2 = (1-g)/(1-q)$, and let M be their mean under the "
        "candidate, which is $1 + \\chi^2(h\\|q)$. KL is the mean of the logarithm of the ratio.",
        (r"\mathrm{KL}(h\|q) - \log M", binary_kl(boosted, target) - sp.log(mean)),
        (
            r"g \log\frac{r_1}{M} + (1-g) \log\frac{r_2}{M}",
            w_1 * sp.log(r_1 / mean) + w_2 * sp.log(r_2 / mean),
        ),
    )
    yield equal(
        "Replace each logarithm by its tangent, which is larger. The tangents sum to 0, so "
        "$\\mathrm{KL} \\le \\log M$.",
        (
            r"g \left(\frac{r_1}{M} - 1\right) + (1-g) \left(\frac{r_2}{M} - 1\right)",
            w_1 * (r_1 / mean - 1) + w_2 * (r_2 / mean - 1),
        ),
        0,
        uses=("tangent-of-log",),
    )
    yield Step(
        "M is at most the bound, for the code's formula.",
        rf"1 + {sp.latex(factor * delta)} \ge M \qquad \left(q = \tfrac1{{1 + 2\delta (1+z)^2}}, "
        r"\ z \ge 0\right)",
        lambda: nonnegative(bound.subs(delta, u / 2) - mean),
        uses=("chi-square-exact",),
    )
    above_cap = (1 + z) / (1 + z + 2 * delta)  # all q in [cap, 1), for z >= 0
    yield at_least(
        "From $q = 1/(1+2\\delta)$ on the uncapped formula exceeds 1, so g = 1.",
        (r"(g_{\text{uncapped}} - q)^2 - (1-q)^2", sp.cancel((uncapped - q) ** 2 - (1 - q) ** 2)),
        0,
        where={q: above_cap},
    )
    yield at_least(
        "There KL is log(1/q), and 1/q is at most the bound.", bound, 1 / q, where={q: above_cap}
    )
    yield Step(
        "At $q = 1/(1+2\\delta)$ the uncapped formula gives exactly 1, and 1/q is the bound: "
        "equality.",
        r"g_{\text{uncapped}} = 1, \qquad \tfrac1q = 1 + 2\delta",
        lambda: vanishes(uncapped.subs(q, cap) - 1) and vanishes(1 / cap - bound),
    )


@claim(
    name="overspend-constant",
    source="ours, section 2",
    statement="log(1 + 2 d) > d exactly for 0 < d < 1.2564312086..., the one positive root",
    tex=r"\log(1+2d) > d \iff 0 < d < d_0, \quad d_0 = -\tfrac12 - W_{-1}\!\left("
    r"-\tfrac{1}{2\sqrt e}\right) = 1.2564312086\ldots",
    false=({"root": "1.2564312087"}, {"root": "1.2564312085"}, {"scale": 3}),
)
def overspend_constant(root: str = "1.2564312086", scale: int = 2) -> Iterator[Step]:
    d = sp.Symbol("d", positive=True)
    excess = sp.log(1 + 2 * d) - d
    yield at_least(
        "The excess E(d) = log(1 + 2d) - d is 0 at d = 0 and rises up to 1/2.",
        shown("E'(d)", sp.together(sp.diff(excess, d))),
        0,
        where={d: 1 / (2 + z)},
    )
    yield at_least(
        "It falls after 1/2, so it is 0 at most once more.",
        shown("-E'(d)", sp.together(-sp.diff(excess, d))),
        0,
        where={d: HALF + z},
        assumes="a function is monotone where its derivative keeps one sign",
    )

    def changes_sign() -> bool:
        with ctx.workprec(128):
            low = ball(root)

            def value(at: arb) -> arb:
                return (1 + scale * at).log() - at

            return bool(value(low) > 0) and bool(value(low + ball("1e-10")) < 0)

    yield Step(
        "The sign change is certified to ten digits.",
        rf"E({root}) > 0 > E({root} + 10^{{-10}})",
        changes_sign,
        "interval",
    )
    w = -HALF - d
    yield equal(
        "It is the stated value of the Lambert function: with $w = -1/2 - d$ the equation "
        "log(1 + 2d) = d reads $w e^w = -1/(2\\sqrt e)$, and $w \\le -1$ is the branch $W_{-1}$.",
        (r"w e^w \quad\text{at}\quad e^{-d} = \tfrac1{1+2d}", w * sp.exp(-HALF) / (1 + 2 * d)),
        -1 / (2 * sp.sqrt(sp.E)),
    )
