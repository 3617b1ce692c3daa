"""The constrained optimum of one candidate: Theorem 2 for every convex generator, and its root.

Names: B(g) = q f(g/q) + (1-q) f((1-g)/(1-q)) is the divergence of the two-point candidate, r = g/q
and c = (1-g)/(1-q) its two ratios. For g >= q, r >= 1 >= c.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from cactus_theory import KL, ChiSquare, JensenShannon, ReverseKL, SquaredHellinger, TotalVariation
from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import candidate, distributions, total_variation
from proofs_check.symbolic import UNCAPPED, at_least, equal, sp, tex_of, vanishes

a, b, q, g, t, s, delta = sp.symbols("a b q g t s delta", positive=True)
alpha = sp.Symbol("alpha", real=True)
f = sp.Function("f")
r, c = sp.symbols("r c", positive=True)
SHRINK = (1 - g) / (1 - q)
HALF = sp.Rational(1, 2)
TWO_POINTS = q * f(g / q) + (1 - q) * f((1 - g) / (1 - q))

GENERATORS = {
    "KL": t * sp.log(t),
    "chi-square": (t - 1) ** 2,
    "squared Hellinger": (sp.sqrt(t) - 1) ** 2 / 2,
    "reverse KL": -sp.log(t),
    "Jensen-Shannon": (t * sp.log(2 * t / (1 + t)) + sp.log(2 / (1 + t))) / 2,
    "alpha": (t**alpha - 1 - alpha * (t - 1)) / (alpha * (alpha - 1)),
}


@claim(
    name="theorem-2-two-points",
    source="Theorem 2",
    statement="for every convex f and every vocabulary, the best candidate that gives n the "
    "probability g lowers all other tokens by one factor, so the optimum is the largest g whose "
    "two-point divergence B(g) is within the budget",
    tex=r"D_f(h\|q) \ge B(g) = q f\!\left(\tfrac{g}{q}\right) + (1-q) f\!\left(\tfrac{1-g}{1-q}"
    r"\right),\quad h(n) = g, \qquad = \text{ for } h(i) = \tfrac{1-g}{1-q}\,q(i)\ (i \ne n)",
    false=({"factor": (1 - g**2) / (1 - q)}, {"factor": 1}),
)
def theorem_2_two_points(factor: Any = SHRINK) -> Iterator[Step]:
    others, moved = sp.symbols("Q H", positive=True)  # sums over i != n of q(i) and h(i)
    sums = {others: 1 - q, moved: 1 - g}
    m = sp.Symbol("m", real=True)
    q_i = sp.Symbol("q_i", positive=True)
    # sum q_i f(h_i/q_i) >= sum q_i [f(c) + m (h_i/q_i - c)]
    supported = others * f(c) + m * (moved - c * others)
    yield Step(
        "Bound f from below by its supporting line at $c = (1-g)/(1-q)$, of slope m, at the ratio "
        "of every token but n. The other tokens have total probability 1-q under the target and "
        "1-g under any candidate with h(n) = g, so the linear terms cancel.",
        r"\sum_{i \ne n} q_i f\!\left(\tfrac{h_i}{q_i}\right) \ge \sum_{i \ne n} q_i \left[f(c) + "
        r"m\left(\tfrac{h_i}{q_i} - c\right)\right] = (1-q) f(c)",
        lambda: vanishes(supported.subs(sums).subs(c, factor) - (1 - q) * f(factor)),
        assumes="$0 < q < 1$; a convex f has a supporting line at every interior point",
    )
    yield equal(
        "The bound is attained, token by token, where every other ratio is c.",
        q_i * f(c * q_i / q_i),
        q_i * f(c),
        tex=r"q_i f\!\left(\tfrac{c\,q_i}{q_i}\right) = q_i f(c)",
    )
    yield Step(
        "This candidate is a distribution: what it gives to the other tokens sums to 1-g.",
        rf"\sum_{{i \ne n}} {tex_of(factor)}\,q_i = 1 - g",
        lambda: vanishes((factor * others).subs(sums) - (1 - g)),
    )


@claim(
    name="theorem-2-kkt",
    source="Theorem 2",
    statement="the two-point form satisfies the Karush-Kuhn-Tucker (KKT) conditions of the "
    "constrained problem for KL, chi-square, squared Hellinger, reverse KL, Jensen-Shannon and "
    "every alpha divergence",
    tex=r"e_n = \mu \nabla_h D_f(h\|q) + \lambda \mathbf 1, \qquad "
    r"\mu = \frac{1}{f'(g/q) - f'(c)} > 0,\quad \lambda = -\mu f'(c)",
    false=({"extra": t * (1 - t)}, {"extra": t**2}, {"uneven": sp.Rational(11, 10)}),
)
def theorem_2_kkt(extra: Any = None, uneven: Any = 1) -> Iterator[Step]:
    slope_, q_i = sp.Function("f'"), sp.Symbol("q_i", positive=True)
    mu = 1 / (slope_(r) - slope_(c))
    lam = -mu * slope_(c)
    h_i = uneven * c * q_i  # another token at the candidate
    yield Step(
        "With these multipliers the gradient of the Lagrangian is 1 for n and 0 for every other "
        "token, whatever f is: that is stationarity.",
        r"\mu f'(r) + \lambda = 1, \qquad \mu f'\!\left(\tfrac{h_i}{q_i}\right) + \lambda = 0",
        lambda: vanishes(mu * slope_(r) + lam - 1) and vanishes(mu * slope_(h_i / q_i) + lam),
    )
    for name, f_ in (GENERATORS if extra is None else {**GENERATORS, "extra": extra}).items():

        def convex(f_: Any = f_) -> bool:
            curvature = sp.factor(sp.simplify(sp.diff(f_, t, 2)))
            return f_.subs(t, 1) == 0 and bool(curvature.is_positive)

        more = r" \quad (\alpha \ne 0, 1)" if name == "alpha" else ""
        first = name == "KL"
        yield Step(
            f"{name[0].upper()}{name[1:]}: the generator is 0 at 1 and strictly convex."
            + (" So f' increases, and $r > c$ makes the budget's multiplier positive." * first),
            rf"f(t) = {tex_of(f_)}, \qquad f(1) = 0,\quad f''(t) > 0{more}",
            convex,
            assumes="the KKT conditions suffice for a convex problem" * first,
        )


@claim(
    name="root-unique-monotone",
    source="Theorem 2",
    statement="for strictly convex f the root g of B(g) = delta is unique in (q, 1], and grows "
    "with delta and with q",
    tex=r"\partial_g B = f'(r) - f'(c) > 0,\quad \partial_q B = \varphi(r) - \varphi(c) < 0,\ "
    r"\varphi(t) = f(t) - t f'(t) \ \Rightarrow\ \partial_\delta g > 0,\ \partial_q g > 0",
    false=({"sign": -1},),
)
def root_unique_monotone(sign: int = 1) -> Iterator[Step]:
    phi = f(t) - sign * t * slope(t)
    yield Step(
        "Differentiate B in g.",
        r"\partial_g B(g) = f'(r) - f'(c)",
        lambda: sp.expand(sp.diff(TWO_POINTS, g) - (slope(g / q) - slope(SHRINK))) == 0,
        assumes="f is twice differentiable with $f'' > 0$",
    )
    yield at_least(
        "Above q the first ratio is the larger one. As f' increases, B increases with g: its root "
        "is unique, and grows with delta.",
        (r"r - c = \frac{g}{q} - \frac{1-g}{1-q}", g / q - SHRINK),
        0,
        where={g: 1 / (1 + b) + a, q: 1 / (1 + b)},
    )
    yield Step(
        "Differentiate B in q.",
        r"\partial_q B = \varphi(r) - \varphi(c), \qquad \varphi(t) = f(t) - t f'(t)",
        lambda: (
            sp.simplify(sp.diff(TWO_POINTS, q) - (phi.subs(t, g / q) - phi.subs(t, SHRINK))) == 0
        ),
    )
    yield Step(
        "The function phi falls with t, so B falls with q, and the root grows with q.",
        r"\varphi'(t) = -t f''(t)",
        lambda: vanishes(sp.diff(phi, t).doit() + t * sp.diff(f(t), t, 2)),
        assumes="the implicit function theorem",
    )


def slope(at: Any) -> Any:
    """f' at a point, for the generator f that is left undefined."""
    return sp.Subs(sp.Derivative(f(t), t), t, at)


@claim(
    name="closed-forms",
    source="section 1",
    statement="total variation, chi-square and squared Hellinger budgets have closed-form optima; "
    "under reverse KL certainty is never within the budget",
    tex=r"g_{\mathrm{TV}} = q + \delta,\quad g_{\chi^2} = q + \sqrt{\delta q(1-q)},\quad "
    r"g_{H^2} = \left(\sqrt q\,s + \sqrt{(1-q)(1-s^2)}\right)^2,\ s = 1 - \delta;"
    r"\quad \mathrm{KL}(q\|g) \to \infty \text{ as } g \to 1",
    false=({"angle": 1 - delta / 2}, {"chi": 2 * delta}),
)
def closed_forms(angle: Any = 1 - delta, chi: Any = delta) -> Iterator[Step]:
    variation = HALF * (q * (g / q - 1) + (1 - q) * (1 - SHRINK))
    yield equal(
        "Total variation, half the sum of the absolute differences, of the two-point candidate "
        "with $g = q + \\delta$.",
        (r"\tfrac12\left[(g - q) + (1-q)(1-c)\right]", variation.subs(g, q + delta)),
        delta,
        assumes="each closed form is stated below its cap: $g \\le 1$, for Hellinger also "
        "$s \\ge \\sqrt q$",
        uses=("root-unique-monotone",),
    )
    gain = UNCAPPED.sqrt(chi * q * (1 - q))
    yield equal(
        "Chi-square of the candidate with the stated gain $x = g - q$.",
        (r"\frac{x^2}{q} + \frac{x^2}{1-q}", gain**2 / q + gain**2 / (1 - q)),
        delta,
        assumes="$0 < q < 1$",
    )
    # q = 1/(1+a^2): sqrt(q) and sqrt(1-q) share a root
    root_q, root_rest = 1 / sp.sqrt(1 + a**2), a / sp.sqrt(1 + a**2)
    sine = sp.Symbol("sine", positive=True)
    root_g, root_left = root_q * s + root_rest * sine, root_rest * s - root_q * sine
    total = sp.expand(sp.expand(root_g**2 + root_left**2).subs({sine**2: 1 - s**2}))
    affinity = sp.expand(root_q * root_g + root_rest * root_left).subs(s, angle)
    yield Step(
        "Squared Hellinger distance: rotate the point of the unit circle with coordinates "
        "$\\sqrt q, \\sqrt{1-q}$ by the angle whose cosine is s. The rotated point is on the unit "
        "circle as well, so its squares are the two probabilities g and 1-g.",
        r"\sqrt g = s\sqrt q + \sqrt{1-s^2}\sqrt{1-q}, \quad \sqrt{1-g} = s\sqrt{1-q} - "
        r"\sqrt{1-s^2}\sqrt q, \qquad g + (1-g) = 1",
        lambda: vanishes(total - 1),
    )
    yield equal(
        "The distance is 1 less the scalar product of the two points, which is s; so it is delta "
        f"for $s = {tex_of(angle)}$.",
        (r"1 - \sqrt{q g} - \sqrt{(1-q)(1-g)}", 1 - affinity),
        delta,
    )
    reverse = q * sp.log(q / g) + (1 - q) * sp.log((1 - q) / (1 - g))
    yield Step(
        "Reverse KL grows without bound as g approaches 1: in its second term a positive "
        "probability is divided by 1-g.",
        r"\lim_{g \to 1} \left[q \log\tfrac{q}{g} + (1-q) \log\tfrac{1-q}{1-g}\right] = \infty",
        lambda: sp.limit(reverse.subs(q, 1 / (1 + a)), g, 1, "-") == sp.oo,
    )


@claim(
    name="exact-optimum-small-q",
    source="ours, section 2",
    statement="the exact optimum lies between delta/log(1/q) and (delta + log 2)/log(1/q) for "
    "q <= exp(-delta)",
    tex=r"\frac{\delta}{\log(1/q)} \le g_{\mathrm{KL}} \le \frac{\delta + \log 2}{\log(1/q)}, "
    r"\qquad g_{\mathrm{KL}} \log\tfrac1q \to \delta \text{ as } q \to 0",
    false=({"lower": 2}, {"lower": sp.Rational(11, 10)}),
)
def exact_optimum_small_q(lower: Any = 1) -> Iterator[Step]:
    length = sp.Symbol("L", positive=True)  # log(1/q)
    entropy = -g * sp.log(g) - (1 - g) * sp.log(1 - g)
    kl = g * sp.log(g / q) + (1 - g) * sp.log((1 - g) / (1 - q))
    split = g * sp.log(1 / q) - entropy + (1 - g) * sp.log(1 / (1 - q))
    inside = {g: 1 / (1 + a), q: 1 / (1 + b)}
    yield equal(
        "Split KL into the cost of the token, the entropy H of the two points, and a rest that is "
        "not negative.",
        (r"\mathrm{KL}(g\|q)", kl),
        (r"g \log\tfrac1q - H(g) + (1-g) \log\tfrac1{1-q}", split),
        where=inside,
    )
    rest = -entropy + (1 - g) * sp.log(1 / (1 - g))
    yield equal(
        "Lower end. As $g \\ge q$, replacing q by g in the rest raises it, and what is left beside "
        "the cost of the token is $g \\log g \\le 0$. So $\\mathrm{KL} \\le g \\log(1/q)$.",
        (r"-H(g) + (1-g)\log\tfrac1{1-g}", rest),
        g * sp.log(g),
        where={g: 1 / (1 + a)},
        uses=("root-unique-monotone",),
    )
    yield at_least(
        "With L = log(1/q), the lower end keeps the budget, so the root is above it.",
        delta,
        ("g L", (g * length).subs(g, lower * delta / length)),
        tex=rf"\delta \ge g L \quad\text{{at}}\quad g = {tex_of(lower * delta / length)}",
    )
    yield Step(
        "Upper end. The entropy of two points is concave and largest at 1/2, where it is log 2; "
        "dropping the rest gives $g L - \\log 2 \\le \\mathrm{KL} = \\delta$. Divided by L, both "
        "ends agree as q tends to 0.",
        r"H''(g) = -\frac{1}{g(1-g)}, \quad H'(\tfrac12) = 0, \quad H(\tfrac12) = \log 2",
        lambda: (
            vanishes(entropy.subs(g, HALF) - sp.log(2))
            and sp.simplify(sp.diff(entropy, g).subs(g, HALF)) == 0
            and vanishes(sp.diff(entropy, g, 2) + 1 / (g * (1 - g)))
        ),
    )


@claim(
    name="certainty",
    source="Theorem 2",
    statement="the budget at which g = 1: log(1/q) for KL, (1-q)/q for chi-square, 1 - sqrt(q) "
    "for squared Hellinger, 1 - q for total variation, none for reverse KL",
    tex=r"g = 1 \iff \delta \ge \log\tfrac1q\ (\mathrm{KL}),\ \tfrac{1-q}{q}\ (\chi^2),\ "
    r"1 - \sqrt q\ (H^2),\ 1 - q\ (\mathrm{TV}),\ \infty\ (\text{reverse KL})",
    false=({"scale": 2}, {"hellinger": 2}),
)
def certainty(scale: int = 1, hellinger: int = 1) -> Iterator[Step]:
    wanted = {
        "KL": -scale * sp.log(q),
        "chi-square": (1 - q) / q,
        "squared Hellinger": hellinger * (1 - sp.sqrt(q)),
    }
    for name, value in wanted.items():
        at_one = q * GENERATORS[name].subs(t, 1 / q) + (1 - q) * sp.limit(
            GENERATORS[name], t, 0, "+"
        )
        yield equal(
            f"{name[0].upper()}{name[1:]}: B(1), where f(0) is the limit. As B grows with g, the "
            "candidate is sure of its token from that budget on.",
            (r"B(1) = q f\!\left(\tfrac1q\right) + (1-q) f(0)", at_one),
            value,
            uses=("root-unique-monotone",),
        )
    yield equal(
        "Total variation: from its closed form.",
        (r"\left.q + \delta\right|_{\delta = 1 - q}", q + (1 - q)),
        1,
        uses=("closed-forms",),
    )
    yield Step(
        "Reverse KL: f is unbounded at 0, so no budget is enough.",
        r"\lim_{t \to 0} (-\log t) = \infty",
        lambda: sp.limit(GENERATORS["reverse KL"], t, 0, "+") == sp.oo,
    )


@claim(
    name="theorem-2-enumerated",
    source="Theorem 2",
    statement="for all distributions h and q on 3 tokens in sixths, q positive, and each token n: "
    "chi-square and total variation of h are at least those of the two-point candidate with the "
    "same h(n)",
    tex=r"D_f(h\|q) \ge D_f(h^{(n)}\|q),\quad h^{(n)}(n) = h(n)",
    false=({"scale": Fraction(9, 10)},),
)
def theorem_2_enumerated(scale: Fraction = Fraction(1)) -> Iterator[Step]:
    def every_case() -> Finding:
        cases = 0
        for h, target in product(distributions(3, 6), repeat=2):
            for n in range(3) if all(target) else ():
                two = candidate(target, n, h[n])
                square = [
                    sum((x - y) ** 2 / y for x, y in zip(law, target, strict=True))
                    for law in (h, two)
                ]
                variation = [total_variation(law, target) for law in (h, two)]
                if scale * square[0] < square[1] or scale * variation[0] < variation[1]:
                    return Finding("fails", f"h {h}, q {target}, token {n}")
                cases += 1
        return Finding("holds", f"{cases} cases")

    yield Step(
        "Build the two-point candidate of every case and compare both divergences as fractions.",
        r"\chi^2(h\|q) \ge \chi^2(h^{(n)}\|q), \quad \mathrm{TV}(h, q) \ge \mathrm{TV}(h^{(n)}, q)",
        every_case,
        "exhaustive",
        uses=("theorem-2-two-points",),
    )


@claim(
    name="divergences-in-code",
    source="Theorem 2, in code",
    statement="the divergences of cactus_theory are those of the generators above, and its optima "
    "are within 1e-9 of the roots of B, at 99 pairs of q and g each",
    tex=r"D_{\text{code}} = B, \qquad g_{\text{code}}(B(g)) = g",
    expected="supported",
    false=({"scale": 2}, {"scale": 1 + 1e-6}),
)
def divergences_in_code(scale: float = 1.0) -> Iterator[Step]:
    shipped = {
        "KL": KL(),
        "chi-square": ChiSquare(),
        "squared Hellinger": SquaredHellinger(),
        "reverse KL": ReverseKL(),
        "Jensen-Shannon": JensenShannon(),
        "total variation": TotalVariation(),
    }
    generators = {**GENERATORS, "total variation": sp.Abs(t - 1) / 2}
    q_, part = np.meshgrid([1e-4, 0.01, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 0.99], np.arange(1, 12))
    g_ = q_ + (1 - q_) * part / 12
    for name, divergence in shipped.items():
        f_ = generators[name]

        def agrees(divergence: Any = divergence, f_: Any = f_) -> Finding:
            number = sp.lambdify(t, f_, "numpy")
            spent = scale * (q_ * number(g_ / q_) + (1 - q_) * number((1 - g_) / (1 - q_)))
            pairs = (np.stack([x, 1 - x], axis=-1) for x in (g_, q_))
            error = np.abs(divergence.between(*pairs) - spent).max()
            missed = np.abs(divergence.optimum(q_, spent).value - g_).max()
            outcome = "holds" if error < 1e-12 and missed < 1e-9 else "fails"
            return Finding(outcome, f"{g_.size} pairs, {error:.0e} and {missed:.0e}")

        yield Step(
            f"{name[0].upper()}{name[1:]}: the code's divergence of the two points, and its "
            "optimum at the budget that g spends.",
            rf"f(t) = {tex_of(f_)}",
            agrees,
            "evidence",
        )
