"""Where the second-order rule overspends the KL budget, exactly; and the form that never does.

D(x) = x^2/(2 q (1-q)) - KL(q+x || q) is the budget less what is spent, for a gain x = g - q below
the cap. D(0) = D'(0) = 0 and D'' is rational, so the sign of D follows from that of D''.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from flint import arb, ctx

from cactus_theory.rules.cactus import second_order_boost
from proofs_check.balls import ARB, ball
from proofs_check.budget import binary_kl
from proofs_check.claims import Finding, claim, conclude
from proofs_check.symbolic import UNCAPPED, nonnegative, sp, vanishes

q, x, a, b, d, delta = sp.symbols("q x a b d delta", positive=True)
SAFE = sp.exp(delta) - 1
HALF = sp.Rational(1, 2)
LEFT = x**2 / (2 * q * (1 - q)) - binary_kl(q + x, q)
BELOW_HALF = 1 / (2 + a)  # every q in (0, 1/2)
FROM_HALF = (1 + a) / (2 + a)  # every q in [1/2, 1)


def curvature() -> Any:
    """D'' as a rational function of q and x."""
    return sp.factor(sp.simplify(sp.diff(LEFT, x, 2)))


def starts_flat() -> bool:
    """Whether D and D' are 0 at x = 0."""
    return LEFT.subs(x, 0) == 0 and sp.simplify(sp.diff(LEFT, x).subs(x, 0)) == 0


@claim(
    name="corollary-6",
    theorem="Corollary 6, sharpened",
    statement="the second-order rule keeps the KL budget wherever g <= max(1/2, 1 - q), not only "
    "where g <= 1/2",
    tex=r"q \le g \le 1 - q \ \Rightarrow\ \mathrm{KL}(h\|q) \le \delta "
    r"\qquad(\text{and } g \le \tfrac12 \Rightarrow g \le 1-q)",
    kind="symbolic",
    assumes=("D'' >= 0 with D(0) = D'(0) = 0 gives D >= 0",),
    false=({"reach": sp.Rational(11, 10)},),
)
def corollary_6(reach: Any = 1) -> Finding:
    target = BELOW_HALF
    gain = reach * (1 - 2 * target) / (1 + b)  # every x in (0, 1 - 2q]
    convex = curvature().subs({q: target, x: gain})
    return conclude(
        "D is convex and flat at 0 as long as q + x <= 1 - q",
        ("flat at 0", starts_flat()),
        ("D'' >= 0", nonnegative(convex)),
        ("g <= 1/2 is a special case", nonnegative((1 - target) - HALF)),
    )


@claim(
    name="overspend-region",
    theorem="ours, section 2",
    statement="the second-order rule spends more than delta exactly for 1/2 <= q, delta < log(1/q) "
    "and for 0.2846681370... < q < 1/2, delta_1(q) < delta < log(1/q), with one delta_1 per q",
    tex=r"\mathrm{KL}(h\|q) > \delta \iff q > q_0,\ \delta_1(q) < \delta < \log\tfrac1q,\quad "
    r"q_0 = \tfrac{1}{1+2d_0} = 0.2846681370\ldots,\ \ \delta_1 = 0 \text{ for } q \ge \tfrac12",
    kind="symbolic",
    assumes=(
        "0 < q < 1, delta > 0; delta_1 is the budget at the one zero of D in (1-2q, 1-q)",
        "a concave function that starts positive changes sign at most once",
    ),
    depends=("overspend-constant", "corollary-6"),
    false=({"split": sp.Rational(9, 10)}, {"digits": "0.2846681371"}),
)
def overspend_region(split: Any = 1, digits: str = "0.2846681370") -> Finding:
    second = curvature()
    inflection = 1 - 2 * BELOW_HALF
    before = split * inflection / (1 + b)
    after = split * inflection + b / (1 + b) * (1 - BELOW_HALF - split * inflection)
    anywhere = (1 - FROM_HALF) / (1 + b)
    at_cap = LEFT.subs(x, 1 - q - x).subs(q, 1 / (1 + 2 * d))
    with ctx.workprec(128):
        low, high = ball("1.2564312086"), ball("1.2564312087")
        edge = bool(ball(digits) <= 1 / (1 + 2 * high))
        edge = edge and bool(1 / (1 + 2 * low) <= ball(digits) + ball("1e-10"))
    return conclude(
        "D is convex then concave for q < 1/2, concave for q >= 1/2; its sign at the cap decides",
        ("flat at 0", starts_flat()),
        ("convex up to 1 - 2q", nonnegative(second.subs({q: BELOW_HALF, x: before}))),
        ("concave after", nonnegative(-second.subs({q: BELOW_HALF, x: after}))),
        ("concave from q = 1/2 on", nonnegative(-second.subs({q: FROM_HALF, x: anywhere}))),
        ("at the cap", vanishes(sp.limit(at_cap, x, 0) - (d - sp.log(1 + 2 * d)))),
        ("edge of q to 10 digits", edge),
    )


NO_SHIFT = Fraction(0)
BOUNDARY = {
    "0.30": "1.1239918099",
    "0.35": "0.6765298995",
    "0.40": "0.3119622791",
    "0.45": "0.0795147369",
}


@claim(
    name="overspend-boundary",
    theorem="ours, section 2",
    statement="the boundary delta_1(q) to 10 digits at q = 0.30, 0.35, 0.40, 0.45",
    tex=r"\delta_1(.30) = 1.1239918099\ldots,\ \delta_1(.35) = .6765298995\ldots,\ "
    r"\delta_1(.40) = .3119622791\ldots,\ \delta_1(.45) = .0795147369\ldots",
    kind="interval",
    depends=("overspend-region",),
    false=({"shift": Fraction(1, 10**10)}, {"shift": Fraction(-1, 10**10)}),
)
def overspend_boundary(shift: Fraction = NO_SHIFT) -> Finding:
    def left(target: Fraction, budget: Fraction) -> arb:
        q_, delta_ = ball(target), ball(budget)
        g = q_ + (2 * delta_ * q_ * (1 - q_)).sqrt()
        return delta_ - g * (g / q_).log() - (1 - g) * ((1 - g) / (1 - q_)).log()

    steps = []
    with ctx.workprec(128):
        for target, budget in BOUNDARY.items():
            low = Fraction(budget) + shift
            high = low + Fraction(1, 10**10)
            signs = bool(left(Fraction(target), low) > 0 > left(Fraction(target), high))
            steps.append((f"q = {target}: delta_1 = {budget}...", signs))
    return conclude("certified sign changes; the zero is the only one", *steps)


@claim(
    name="safe-closed-form",
    theorem="ours, section 2",
    statement="g = min(q + sqrt((e^delta - 1) q (1-q)), 1) has KL(h||q) <= delta for every q, and "
    "no larger constant than e^delta - 1 does",
    tex=r"g = \min\!\left(q + \sqrt{(e^\delta - 1)\,q(1-q)},\,1\right) \ \Rightarrow\ "
    r"\mathrm{KL}(h\|q) \le \delta, \qquad = \text{ at } q = e^{-\delta}",
    kind="symbolic",
    depends=("sharp-kl-bound",),
    false=({"constant": sp.exp(delta)}, {"constant": delta}),
)
def safe_closed_form(constant: Any = SAFE) -> Finding:
    safe = q + sp.sqrt(constant * q * (1 - q))
    rule = second_order_boost(q, constant / 2, xp=UNCAPPED)
    bound = sp.log(1 + 2 * (constant / 2))
    edge = 1 / (1 + constant)
    return conclude(
        "the second-order rule with budget (e^delta - 1)/2, whose bound is log(1 + 2 of it)",
        ("same rule", sp.simplify(safe - rule) == 0),
        ("bound is delta", sp.simplify(bound) == delta),
        ("tight where the cap begins", sp.simplify(sp.log(1 / edge)) == delta),
        ("rate", sp.limit(bound.subs(delta, d) / d, d, 0) == 1),
    )


@claim(
    name="overspend-factor",
    theorem="ours, section 2",
    statement="the KL budget is overspent by a factor of at most log(1 + 2 delta)/delta, which "
    "falls from 2 and is 1.2217 at delta = 3/4 and 1.0986 at 1",
    tex=r"\frac{\mathrm{KL}(h\|q)}{\delta} \le \frac{\log(1+2\delta)}{\delta} < 2, \qquad "
    r"1.2217\ldots\ (\delta = \tfrac34),\quad 1.0986\ldots\ (\delta = 1)",
    kind="interval",
    assumes=("log(1+t) >= t/(1+t), which makes the factor fall",),
    depends=("sharp-kl-bound", "tangent-of-log"),
    false=({"at_one": "1.0985"}, {"at_one": "1.0987"}),
)
def overspend_factor(at_one: str = "1.0986") -> Finding:
    factor = sp.log(1 + 2 * d) / d
    falls = sp.simplify(sp.diff(factor, d) * d**2 - (2 * d / (1 + 2 * d) - sp.log(1 + 2 * d)))
    steps = []
    with ctx.workprec(128):
        for budget, digits in (("0.75", "1.2217"), ("1", at_one)):
            value = (1 + 2 * ball(budget)).log() / ball(budget)
            steps.append((digits, bool(ball(digits) < value < ball(digits) + ball("1e-4"))))
    return conclude(
        "derivative and two values",
        ("falls", falls == 0),
        ("starts at 2", sp.limit(factor, d, 0, "+") == 2),
        *steps,
    )


@claim(
    name="second-below-exact",
    theorem="ours, section 2",
    statement="for q <= 0.2846681370 the second-order optimum never exceeds the exact one, and "
    "their ratio, at most (q + sqrt(2 delta q)) log(1/q)/delta, vanishes; at q = 1e-4, delta = 1 "
    "it is 0.0142 to 0.1554",
    tex=r"q \le q_0 \Rightarrow g_2 \le g_{\mathrm{KL}}, \qquad \frac{g_2}{g_{\mathrm{KL}}} \le "
    r"\frac{(q + \sqrt{2\delta q})\log(1/q)}{\delta} \xrightarrow[q \to 0]{} 0",
    kind="interval",
    assumes=("g <= exact optimum exactly where KL(g||q) <= delta",),
    depends=("overspend-region", "root-unique-monotone", "exact-optimum-small-q"),
    false=({"exact": "0.1555"}, {"second": "0.0143"}),
)
def second_below_exact(exact: str = "0.1554", second: str = "0.0142") -> Finding:
    bound = (q + sp.sqrt(2 * delta * q)) * sp.log(1 / q) / delta
    gain = second_order_boost(q, delta, xp=UNCAPPED) - q
    rare, digit = Fraction(1, 10_000), ball("1e-4")

    def spent(g: arb) -> arb:
        return g * (g / ball(rare)).log() + (1 - g) * ((1 - g) / (1 - ball(rare))).log()

    with ctx.workprec(128):
        low, value = ball(exact), second_order_boost(ball(rare), ball(1), xp=ARB)
        root = bool(spent(low) < 1) and bool(spent(low + digit) > 1)
        closed = bool(ball(second) < value < ball(second) + digit)
    return conclude(
        "the order from overspend-region; the ratio by the lower bound delta/log(1/q)",
        ("gain", nonnegative(sp.cancel((2 * delta * q - gain**2) / q**2))),
        ("ratio vanishes", sp.limit(bound.subs(delta, 1), q, 0, "+") == 0),
        ("exact at 1e-4", root),
        ("second order at 1e-4", closed),
    )
