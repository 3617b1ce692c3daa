"""Where the second-order rule overspends the KL budget, exactly; and the form that never does.

D(x) = x^2/(2 q (1-q)) - KL(q+x || q) is the budget less what is spent, for a gain x = g - q below
the cap. D(0) = D'(0) = 0 and D'' is rational, so the sign of D follows from that of D''.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from flint import arb, ctx

from proofs_check.balls import ARB, ball
from proofs_check.budget import binary_kl, second_order_boost
from proofs_check.claims import Step, claim
from proofs_check.symbolic import UNCAPPED, at_least, equal, shown, sp

q, x, a, b, d, delta = sp.symbols("q x a b d delta", positive=True)
SAFE = sp.exp(delta) - 1
HALF = sp.Rational(1, 2)
LEFT = x**2 / (2 * q * (1 - q)) - binary_kl(q + x, q)
BELOW_HALF = 1 / (2 + a)  # every q in (0, 1/2)
FROM_HALF = (1 + a) / (2 + a)  # every q in [1/2, 1)
DIGIT = Fraction(1, 10**10)


def curvature() -> Any:
    """D'' as a rational function of q and x."""
    return sp.factor(sp.simplify(sp.diff(LEFT, x, 2)))


def flat_at_zero() -> Step:
    """The step that D and D' are 0 at x = 0."""
    return Step(
        "Let D be the budget that a gain x uses by the second-order rule, less the KL that it "
        "really spends. D and its slope are 0 at x = 0, so its sign follows from its curvature.",
        r"D(x) = \frac{x^2}{2q(1-q)} - \mathrm{KL}(q+x\|q), \qquad D(0) = D'(0) = 0",
        lambda: LEFT.subs(x, 0) == 0 and sp.simplify(sp.diff(LEFT, x).subs(x, 0)) == 0,
    )


def bent(says: str, where: dict[Any, Any], *, concave: bool = False, **more: Any) -> Step:
    """A step that D'' keeps one sign on the stated set."""
    name, sign = ("-D''", -1) if concave else ("D''", 1)
    return at_least(says, shown(f"{name}(x)", sign * curvature()), 0, where=where, **more)


@claim(
    name="corollary-6",
    source="Corollary 6, sharpened",
    statement="the second-order rule keeps the KL budget wherever g <= max(1/2, 1 - q), not only "
    "where g <= 1/2",
    tex=r"q \le g \le 1 - q \ \Rightarrow\ \mathrm{KL}(h\|q) \le \delta "
    r"\qquad(\text{and } g \le \tfrac12 \Rightarrow g \le 1-q)",
    false=({"reach": sp.Rational(11, 10)},),
)
def corollary_6(reach: Any = 1) -> Iterator[Step]:
    yield flat_at_zero()
    gain = reach * (1 - 2 * BELOW_HALF) / (1 + b)  # every x in (0, 1 - 2q]
    yield bent(
        "D is convex as long as $q + x \\le 1 - q$, that is for all gains up to $1 - 2q$. So it is "
        "not negative there: no more than the budget is spent.",
        {q: BELOW_HALF, x: gain},
        assumes="$D'' \\ge 0$ with $D(0) = D'(0) = 0$ gives $D \\ge 0$",
    )
    yield at_least(
        "Corollary 6 of the paper is a special case: a boosted probability of at most 1/2 is also "
        "at most 1-q, as $q \\le g$.",
        1 - q,
        HALF,
        where={q: BELOW_HALF},
    )


@claim(
    name="overspend-region",
    source="ours, section 2",
    statement="the second-order rule spends more than delta exactly for 1/2 <= q, delta < log(1/q) "
    "and for 0.2846681370... < q < 1/2, delta_1(q) < delta < log(1/q), with one delta_1 per q",
    tex=r"\mathrm{KL}(h\|q) > \delta \iff q > q_0,\ \delta_1(q) < \delta < \log\tfrac1q,\quad "
    r"q_0 = \tfrac{1}{1+2d_0} = 0.2846681370\ldots,\ \ \delta_1 = 0 \text{ for } q \ge \tfrac12",
    false=({"split": sp.Rational(9, 10)}, {"digits": "0.2846681371"}),
)
def overspend_region(split: Any = 1, digits: str = "0.2846681370") -> Iterator[Step]:
    inflection = split * (1 - 2 * BELOW_HALF)
    yield flat_at_zero()
    yield bent(
        "For $q < 1/2$, D is convex up to the gain $1 - 2q$, so it is positive there.",
        {q: BELOW_HALF, x: inflection / (1 + b)},
        uses=("corollary-6",),
    )
    yield bent(
        "From there to the cap it is concave, so it changes sign at most once; the budget at that "
        "gain is $\\delta_1(q)$.",
        {q: BELOW_HALF, x: inflection + b / (1 + b) * (1 - BELOW_HALF - inflection)},
        concave=True,
        assumes="a concave function that starts positive changes sign at most once",
    )
    yield bent(
        "For $q \\ge 1/2$ it is concave from the start, so it is negative at once: "
        "$\\delta_1(q) = 0$.",
        {q: FROM_HALF, x: (1 - FROM_HALF) / (1 + b)},
        concave=True,
    )
    at_cap = LEFT.subs(x, 1 - q - x).subs(q, 1 / (1 + 2 * d))
    yield equal(
        "Whether it changes sign is decided where the cap begins, at $q = 1/(1+2d)$. There D is "
        "negative exactly for $d < d_0$. Beyond the cap g = 1 spends log(1/q), which exceeds "
        "the budget as long as $\\delta < \\log(1/q)$.",
        (r"\lim_{g \to 1} D", sp.limit(at_cap, x, 0)),
        d - sp.log(1 + 2 * d),
        uses=("overspend-constant",),
    )

    def edge() -> bool:
        with ctx.workprec(128):
            low, high = ball("1.2564312086"), ball("1.2564312087")
            above = bool(ball(digits) <= 1 / (1 + 2 * high))
            return above and bool(1 / (1 + 2 * low) <= ball(digits) + ball(DIGIT))

    yield Step(
        "The edge $q_0 = 1/(1+2d_0)$ to ten digits, from those of $d_0$.",
        rf"{digits} \le q_0 \le {digits} + 10^{{-10}}",
        edge,
        "interval",
    )


BOUNDARY = {
    "0.30": "1.1239918099",
    "0.35": "0.6765298995",
    "0.40": "0.3119622791",
    "0.45": "0.0795147369",
}


@claim(
    name="overspend-boundary",
    source="ours, section 2",
    statement="the boundary delta_1(q) to 10 digits at q = 0.30, 0.35, 0.40, 0.45",
    tex=r"\delta_1(.30) = 1.1239918099\ldots,\ \delta_1(.35) = .6765298995\ldots,\ "
    r"\delta_1(.40) = .3119622791\ldots,\ \delta_1(.45) = .0795147369\ldots",
    false=({"shift": DIGIT}, {"shift": -DIGIT}),
)
def overspend_boundary(shift: Fraction = Fraction(0)) -> Iterator[Step]:
    def left(target: Fraction, budget: Fraction) -> arb:
        q_, delta_ = ball(target), ball(budget)
        g = second_order_boost(q_, delta_, xp=ARB)
        return delta_ - g * (g / q_).log() - (1 - g) * ((1 - g) / (1 - q_)).log()

    for target, budget in BOUNDARY.items():

        def signs(target: str = target, budget: str = budget) -> bool:
            low = Fraction(budget) + shift
            with ctx.workprec(128):
                return bool(left(Fraction(target), low) > 0 > left(Fraction(target), low + DIGIT))

        yield Step(
            f"At q = {target} the rule keeps its budget just below the boundary and overspends "
            "just above it. The sign change is the only one.",
            rf"D({budget}) > 0 > D({budget} + 10^{{-10}}) \quad (q = {target})",
            signs,
            "interval",
            uses=("overspend-region",),
        )


@claim(
    name="safe-closed-form",
    source="ours, section 2",
    statement="g = min(q + sqrt((e^delta - 1) q (1-q)), 1) has KL(h||q) <= delta for every q, and "
    "no larger constant than e^delta - 1 does",
    tex=r"g = \min\!\left(q + \sqrt{(e^\delta - 1)\,q(1-q)},\,1\right) \ \Rightarrow\ "
    r"\mathrm{KL}(h\|q) \le \delta, \qquad = \text{ at } q = e^{-\delta}",
    false=({"constant": sp.exp(delta)}, {"constant": delta}),
)
def safe_closed_form(constant: Any = SAFE) -> Iterator[Step]:
    bound = sp.log(1 + 2 * (constant / 2))
    yield Step(
        "This is the second-order rule of budget $(e^\\delta - 1)/2$.",
        r"q + \sqrt{(e^\delta - 1) q (1-q)} = g_2\!\left(q, \tfrac{e^\delta - 1}{2}\right)",
        lambda: (
            sp.simplify(
                q
                + sp.sqrt(constant * q * (1 - q))
                - second_order_boost(q, constant / 2, xp=UNCAPPED)
            )
            == 0
        ),
    )
    yield Step(
        "The sharp bound of that rule is delta.",
        r"\log\left(1 + 2\,\tfrac{e^\delta - 1}{2}\right) = \delta",
        lambda: sp.simplify(bound) == delta,
        uses=("sharp-kl-bound",),
    )
    yield Step(
        "The bound is attained where the cap begins, at $q = e^{-\\delta}$, so a larger constant "
        "would overspend there.",
        r"q = \frac{1}{1 + (e^\delta - 1)}, \qquad \log\tfrac1q = \delta",
        lambda: sp.simplify(sp.log(1 + constant)) == delta,
    )


@claim(
    name="overspend-factor",
    source="ours, section 2",
    statement="the KL budget is overspent by a factor of at most log(1 + 2 delta)/delta, which "
    "falls from 2 and is 1.2217 at delta = 3/4 and 1.0986 at 1",
    tex=r"\frac{\mathrm{KL}(h\|q)}{\delta} \le \frac{\log(1+2\delta)}{\delta} < 2, \qquad "
    r"1.2217\ldots\ (\delta = \tfrac34),\quad 1.0986\ldots\ (\delta = 1)",
    false=({"at_one": "1.0985"}, {"at_one": "1.0987"}),
)
def overspend_factor(at_one: str = "1.0986") -> Iterator[Step]:
    factor = sp.log(1 + 2 * d) / d
    yield equal(
        "The derivative of the factor F has the sign of the right side, with $d = \\delta$, "
        "which is negative: with $t = 1/(1+2\\delta)$ it is $1 - t + \\log t$. So F falls.",
        (r"F'(\delta)\,\delta^2", sp.diff(factor, d) * d**2),
        2 * d / (1 + 2 * d) - sp.log(1 + 2 * d),
        uses=("sharp-kl-bound", "tangent-of-log"),
    )
    yield Step(
        "It starts at 2.",
        r"\lim_{\delta \to 0} F(\delta) = 2",
        lambda: sp.limit(factor, d, 0, "+") == 2,
    )
    for budget, digits in (("0.75", "1.2217"), ("1", at_one)):

        def between(budget: str = budget, digits: str = digits) -> bool:
            with ctx.workprec(128):
                value = (1 + 2 * ball(budget)).log() / ball(budget)
                return bool(ball(digits) < value < ball(digits) + ball("1e-4"))

        yield Step(
            f"Its value at {budget}.",
            rf"{digits} < F({budget}) < {digits} + 10^{{-4}}",
            between,
            "interval",
        )


@claim(
    name="second-below-exact",
    source="ours, section 2",
    statement="for q <= 0.2846681370 the second-order optimum never exceeds the exact one, and "
    "their ratio, at most (q + sqrt(2 delta q)) log(1/q)/delta, vanishes as q tends to 0; at "
    "q = 1e-4, delta = 1 it is 0.0142 to 0.1554",
    tex=r"q \le q_0 \Rightarrow g_2 \le g_{\mathrm{KL}}, \qquad \frac{g_2}{g_{\mathrm{KL}}} \le "
    r"\frac{(q + \sqrt{2\delta q})\log(1/q)}{\delta} \xrightarrow[q \to 0]{} 0",
    false=({"exact": "0.1555"}, {"second": "0.0143"}),
)
def second_below_exact(exact: str = "0.1554", second: str = "0.0142") -> Iterator[Step]:
    gain = second_order_boost(q, delta, xp=UNCAPPED) - q
    yield at_least(
        "For q up to $q_0$ the second-order candidate keeps the KL budget, so it does not exceed "
        "the exact optimum. Its gain is at most $\\sqrt{2\\delta q}$.",
        2 * delta * q,
        (r"(g_2 - q)^2", gain**2),
        tex=r"2\delta q - (g_2 - q)^2 = 2\delta q^2 \ge 0",
        assumes="a boosted probability is at most the exact optimum where its KL is within delta",
        uses=("overspend-region", "root-unique-monotone"),
    )
    bound = (q + sp.sqrt(2 * delta * q)) * sp.log(1 / q) / delta
    yield Step(
        "Divide by the lower bound $\\delta/\\log(1/q)$ of the exact optimum: the ratio vanishes, "
        "as a square root beats a logarithm.",
        r"\lim_{q \to 0} \frac{(q + \sqrt{2\delta q}) \log(1/q)}{\delta} = 0",
        lambda: sp.limit(bound, q, 0, "+") == 0,
        uses=("exact-optimum-small-q",),
    )

    def spent(g: arb) -> arb:
        rare = ball("1e-4")
        return g * (g / rare).log() + (1 - g) * ((1 - g) / (1 - rare)).log()

    def root() -> bool:
        with ctx.workprec(128):
            return bool(spent(ball(exact)) < 1) and bool(spent(ball(exact) + ball("1e-4")) > 1)

    def closed() -> bool:
        with ctx.workprec(128):
            value = second_order_boost(ball("1e-4"), ball(1), xp=ARB)
            return bool(ball(second) < value < ball(second) + ball("1e-4"))

    yield Step(
        "The exact optimum at q = 1e-4 and delta = 1, by a sign change of KL - 1.",
        rf"\mathrm{{KL}}({exact}\|10^{{-4}}) < 1 < \mathrm{{KL}}({exact} + 10^{{-4}}\|10^{{-4}})",
        root,
        "interval",
    )
    yield Step(
        "The second-order one, by the code's own formula.",
        rf"{second} < g_2(10^{{-4}}, 1) < {second} + 10^{{-4}}",
        closed,
        "interval",
    )
