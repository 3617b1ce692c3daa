"""How far the ledger is above the true divergence of texts: by no bounded factor."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import Distribution, emitted
from proofs_check.symbolic import at_least, equal, sp

HALF, ONE, ZERO = Fraction(1, 2), Fraction(1), Fraction(0)
epsilon, gain = sp.symbols("epsilon x", positive=True)


def second_token(
    rejected: Fraction, boosted: Fraction
) -> tuple[Distribution, Distribution, Fraction]:
    """One draft in a block, two tokens: both distributions, and how often the second is verified.

    At the first position q = (0, 1) and p = (rejected, 1 - rejected); at the second q is uniform,
    and the draft is token 0 for certain, boosted from 1/2.
    """
    draft = (rejected, 1 - rejected)
    first = emitted(draft, (ZERO, ONE), (ZERO, ONE))
    verified = rejected  # token 0 is never accepted, token 1 always: then the second is a bonus
    out = emitted((ONE, ZERO), (HALF, HALF), (boosted, boosted))
    mixed = [(1 - verified) * HALF + verified * x for x in out]
    return first, (mixed[0], mixed[1]), verified


@claim(
    name="ledger-far-above",
    source="ours, section 4",
    statement="no constant C bounds the expected ledger by C KL(text || text of the target), even "
    "with exact charges: two tokens of two, one draft in a block, Cactus with delta = 1/8",
    tex=r"\frac{\mathbb E \sum_t \mathrm{KL}(\mathrm{out}_t\|q_t)}"
    r"{\mathrm{KL}(\mathrm{out}_{1:2}\|q_{1:2})} \ge "
    r"\frac{4\,\mathrm{KL}(\frac34\|\frac12)}{\varepsilon} > \frac{1}{2\varepsilon} \to \infty",
    false=({"boosted": HALF}, {"power": 3}),
)
def ledger_far_above(boosted: Fraction = Fraction(3, 4), power: int = 2) -> Iterator[Step]:
    g = sp.Rational(boosted.numerator, boosted.denominator)
    yield equal(
        "At the second position q = (1/2, 1/2), the draft is certain, and g = 3/4.",
        (
            r"\tfrac12 + \sqrt{2 \delta \tfrac12 \tfrac12}",
            sp.Rational(1, 2) + sp.sqrt(sp.Rational(2, 8) / 4),
        ),
        (r"g", g),
    )

    def laws() -> Finding:
        for parts in range(2, 200):
            rejected = Fraction(1, parts)
            first, second, verified = second_token(rejected, boosted)
            wanted = HALF + rejected * (boosted - HALF)
            if first != (ZERO, ONE) or second != (wanted, 1 - wanted) or verified != rejected:
                return Finding("fails", f"epsilon = {rejected}")
        return Finding("holds", "198 values of epsilon")

    yield Step(
        "At the first position q = (0, 1) and p = $(\\varepsilon, 1 - \\varepsilon)$. Token 1 is "
        "emitted, always and at no cost. It is recovered with chance $\\varepsilon$; else the "
        "draft was kept, and the second token is a bonus. So the second token is verified with "
        "chance $\\varepsilon$ only, and given the first, its distribution is a mixture.",
        r"\mathrm{out}_1 = q_1, \qquad \mathbb P(x_2 = 0) = \tfrac12 + \tfrac\varepsilon4",
        laws,
        "exhaustive",
    )
    p = sp.Rational(1, 2) + epsilon / 4
    chi = sp.expand((p - sp.Rational(1, 2)) ** 2 * 2 + (1 - p - sp.Rational(1, 2)) ** 2 * 2)
    yield equal(
        "The KL of the text is at most its chi-square, by the tangent of the logarithm. It falls "
        "with the square of $\\varepsilon$.",
        (r"\chi^2", chi),
        (r"\varepsilon^2/4", epsilon**power / 4),
        uses=("tangent-of-log",),
    )
    charge = g * sp.log(2 * g) + (1 - g) * sp.log(2 * (1 - g))

    def enough() -> bool:
        return bool(sp.N(charge, 30) > sp.Rational(1, 8))

    yield Step(
        "The ledger's expectation is the charge of the second position times $\\varepsilon$: it "
        "falls as $\\varepsilon$ itself. The block position, which the ledger knows and the text "
        "does not show, makes the difference.",
        r"\mathbb E[\mathrm{ledger}] = \varepsilon\,\mathrm{KL}(\tfrac34\|\tfrac12), \qquad "
        r"\mathrm{KL}(\tfrac34\|\tfrac12) > \tfrac18",
        enough,
        assumes="SymPy's value of the logarithms to 30 digits",
    )


@claim(
    name="charge-far-above",
    source="ours, section 3",
    statement="nor does one bound the O(V) charge of a rule with candidates by C KL(out || q): for "
    "q = (1/2, 1/2) and a certain draft it is at least 1/(4x) times the KL, x being the gain",
    tex=r"\sum_S \mathrm{out} \log\frac{\mathrm{out}}{q} = (\tfrac12 + x)\log(1 + 2x) \ge x, "
    r"\qquad \mathrm{KL}(\mathrm{out}\|q) \le 4x^2 \qquad (0 < x \le \tfrac12)",
    false=({"power": 3},),
)
def charge_far_above(power: int = 2) -> Iterator[Step]:
    out = sp.Rational(1, 2) + gain
    chi = sp.expand(2 * (out - sp.Rational(1, 2)) ** 2 + 2 * (sp.Rational(1, 2) - out) ** 2)
    yield equal(
        "The KL of what is emitted is at most the chi-square.",
        (r"\chi^2", chi),
        (r"4x^2", 4 * gain**power),
        uses=("tangent-of-log",),
    )
    yield at_least(
        "The charge sums the terms with out > q alone. By $\\log(1 + t) \\ge t/(1+t)$ it is at "
        "least x.",
        (r"(\tfrac12 + x)\,\frac{2x}{1 + 2x}", out * 2 * gain / (1 + 2 * gain)),
        (r"x", gain),
        uses=("tangent-of-log",),
    )
    yield Step(
        "So the charge is at least 1/(4x) times the KL, without a bound as the budget falls to 0; "
        "it is kept because it needs no emitted distribution.",
        r"\frac{x}{4x^2} = \frac{1}{4x} \to \infty",
        lambda: sp.limit(gain / chi, gain, 0, "+") == sp.oo,
    )
