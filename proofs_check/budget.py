"""The budget of one candidate under the second-order rule: Corollaries 5 and 6, and what it costs.

Two laws on {n, not n}: the candidate gives n probability g, the target q. The substitution
q = 1/(1 + u (1+z)^2), delta = u/2 makes the rule's square root rational and maps u > 0, z > 0 onto
the pairs (q, delta) where the cap g = 1 is not reached; z = 0 is the cap.
"""

from __future__ import annotations

from typing import Any

from flint import arb, ctx

from cactus_theory.rules.cactus import second_order_boost
from proofs_check.balls import ball
from proofs_check.claims import Finding, claim, conclude
from proofs_check.symbolic import SYMPY, UNCAPPED, nonnegative, sp, vanishes

q, g, x, t, u, z, delta = sp.symbols("q g x t u z delta", positive=True)
UNCAPPED_PAIR = {q: 1 / (1 + u * (1 + z) ** 2), delta: u / 2}
HALF = sp.Rational(1, 2)


def binary_kl(h: Any, q: Any) -> Any:
    """KL between two Bernoulli laws, as SymPy writes it."""
    return h * sp.log(h / q) + (1 - h) * sp.log((1 - h) / (1 - q))


def binary_chi_square(h: Any, q: Any) -> Any:
    """Chi-square divergence between two Bernoulli laws, from its definition."""
    return q * (h / q - 1) ** 2 + (1 - q) * ((1 - h) / (1 - q) - 1) ** 2


@claim(
    name="corollary-5",
    theorem="Corollary 5",
    statement="the second-order rule solves the second-order expansion of KL = delta",
    tex=r"\mathrm{KL}(q+x\,\|\,q) = \frac{x^2}{2q(1-q)} + O(x^3), \qquad "
    r"\frac{(g-q)^2}{2q(1-q)} = \delta \iff g = q + \sqrt{2\delta q(1-q)} \quad (g \ge q)",
    kind="symbolic",
    assumes=("0 < q < 1", "the cap g <= 1 is not reached"),
    false=({"coefficient": sp.Rational(1, 3)}, {"coefficient": 1}),
)
def corollary_5(coefficient: Any = HALF) -> Finding:
    series = sp.series(binary_kl(q + x, q), x, 0, 3).removeO()
    quadratic = coefficient * x**2 / (q * (1 - q))
    boosted = second_order_boost(q, delta, xp=UNCAPPED)
    gain = boosted - q
    capped = second_order_boost(q, delta, xp=SYMPY)
    at_cap = [capped.subs({q: HALF, delta: d}) for d in (sp.Rational(1, 8), 1)]
    return conclude(
        "series to second order; the code's own formula is its root",
        ("expansion", vanishes(series - quadratic)),
        ("the code solves it", vanishes(quadratic.subs(x, gain) - delta)),
        ("on the side g >= q", nonnegative((gain / sp.sqrt(q * (1 - q))) ** 2 / delta)),
        ("capped at 1", at_cap == [sp.Rational(3, 4), 1]),
    )


@claim(
    name="chi-square-exact",
    theorem="ours, section 2",
    statement="uncapped, the second-order rule has chi-square divergence exactly 2 delta",
    tex=r"\chi^2(h\|q) = \sum_i \frac{(h_i-q_i)^2}{q_i} = \frac{(g-q)^2}{q(1-q)} = 2\delta",
    kind="symbolic",
    assumes=("0 < q < 1", "the cap g <= 1 is not reached"),
    false=({"multiple": 1}, {"multiple": sp.Rational(21, 10)}),
)
def chi_square_exact(multiple: Any = 2) -> Finding:
    boosted = second_order_boost(q, delta, xp=UNCAPPED)
    other = sp.Symbol("other", positive=True)
    kept = (1 - g) / (1 - q)
    one_other = (kept * other - other) ** 2 / other
    return conclude(
        "for the whole vocabulary: every other token adds (c-1)^2 of its own probability",
        ("one other token", vanishes(one_other - other * (kept - 1) ** 2)),
        ("two points", vanishes(binary_chi_square(g, q) - (g - q) ** 2 / (q * (1 - q)))),
        ("value", vanishes(binary_chi_square(boosted, q) - multiple * delta)),
    )


@claim(
    name="tangent-of-log",
    theorem="lemma",
    statement="log t <= t - 1 for every t > 0, with equality at 1 only",
    tex=r"\log t \le t - 1 \quad (t > 0)",
    kind="symbolic",
    assumes=("a function is monotone where its derivative keeps one sign",),
    false=({"slope": sp.Rational(9, 10)}, {"slope": sp.Rational(11, 10)}),
)
def tangent_of_log(slope: Any = 1) -> Finding:
    gap = slope * (t - 1) - sp.log(t)
    falling = -sp.diff(gap, t).subs(t, 1 / (1 + z))
    rising = sp.diff(gap, t).subs(t, 1 + z)
    return conclude(
        "falls on (0, 1), rises on (1, oo), and is 0 at 1",
        ("zero at 1", gap.subs(t, 1) == 0),
        ("falls before 1", nonnegative(falling)),
        ("rises after 1", nonnegative(rising)),
    )


@claim(
    name="sharp-kl-bound",
    theorem="ours, section 2",
    statement="the second-order rule has KL(h||q) <= log(1 + 2 delta) for every q and delta > 0, "
    "with equality at q = 1/(1 + 2 delta)",
    tex=r"\mathrm{KL}(h\|q) \le \log(1+\chi^2(h\|q)) \le \log(1+2\delta)"
    r"\quad (0<q<1,\ \delta>0), \qquad = \text{ at } q = \tfrac1{1+2\delta}",
    kind="symbolic",
    depends=("tangent-of-log", "chi-square-exact"),
    false=({"factor": sp.Rational(199, 100)}, {"factor": sp.Rational(201, 100)}),
)
def sharp_kl_bound(factor: Any = 2) -> Finding:
    target = UNCAPPED_PAIR[q]
    boosted = sp.factor(second_order_boost(q, delta, xp=UNCAPPED).subs(UNCAPPED_PAIR))
    (w_1, w_2), (r_1, r_2) = (
        (boosted, 1 - boosted),
        (boosted / target, (1 - boosted) / (1 - target)),
    )
    mean = sp.cancel(w_1 * r_1 + w_2 * r_2)
    # log(mean) - KL = -sum w log(r/mean) >= -sum w (r/mean - 1) = 0, by the tangent of log.
    jensen = w_1 * sp.log(r_1 / mean) + w_2 * sp.log(r_2 / mean)
    tangent = w_1 * (r_1 / mean - 1) + w_2 * (r_2 / mean - 1)
    bound = 1 + factor * delta
    cap = 1 / (1 + 2 * delta)
    above_cap = (1 + z) / (1 + z + 2 * delta)  # all q in [cap, 1), for z >= 0
    overshoot = (second_order_boost(q, delta, xp=UNCAPPED) - q) ** 2 - (1 - q) ** 2
    return conclude(
        "Jensen by the tangent of log; above the cap g = 1 and KL = log(1/q)",
        ("KL - log mean", vanishes(binary_kl(boosted, target) - sp.log(mean) - jensen)),
        ("tangent sum is 0", vanishes(tangent)),
        ("mean ratio <= bound", nonnegative(bound.subs(delta, u / 2) - mean)),
        ("g = 1 for q >= cap", nonnegative(sp.cancel(overshoot.subs(q, above_cap)))),
        ("1/q <= bound for q >= cap", nonnegative(bound - 1 / above_cap)),
        ("g = 1 at the cap", vanishes(second_order_boost(cap, delta, xp=UNCAPPED) - 1)),
        ("equality at the cap", vanishes(1 / cap - bound)),
    )


@claim(
    name="overspend-constant",
    theorem="ours, section 2",
    statement="log(1 + 2 d) > d exactly for 0 < d < 1.2564312086..., the one positive root",
    tex=r"\log(1+2d) > d \iff 0 < d < d_0, \quad d_0 = -\tfrac12 - W_{-1}\!\left("
    r"-\tfrac{1}{2\sqrt e}\right) = 1.2564312086\ldots",
    kind="interval",
    false=({"root": "1.2564312087"}, {"root": "1.2564312085"}, {"scale": 3}),
)
def overspend_constant(root: str = "1.2564312086", scale: int = 2) -> Finding:
    d = sp.Symbol("d", positive=True)
    slope = sp.diff(sp.log(1 + 2 * d) - d, d)
    with ctx.workprec(128):
        low = ball(root)
        high = low + ball("1e-10")

        def excess(at: arb) -> arb:
            return (1 + scale * at).log() - at

        signs = bool(excess(low) > 0) and bool(excess(high) < 0)
    return conclude(
        "rises from 0 until d = 1/2, falls after; the sign change is certified to 10 digits",
        ("rises on (0, 1/2)", nonnegative(slope.subs(d, 1 / (2 + z)))),
        ("falls after 1/2", nonnegative(-slope.subs(d, sp.Rational(1, 2) + z))),
        ("sign change", signs),
    )
