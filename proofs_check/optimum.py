"""The constrained optimum of one candidate: Theorem 2 for every convex generator, and its root.

Names: B(g) = q f(g/q) + (1-q) f((1-g)/(1-q)) is the divergence of the two-point candidate, r = g/q
and c = (1-g)/(1-q) its two ratios. For g >= q, r >= 1 >= c.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from proofs_check.claims import Finding, claim, conclude
from proofs_check.rational import candidate, laws, total_variation
from proofs_check.symbolic import UNCAPPED, nonnegative, sp, vanishes

q, g, t, s, delta = sp.symbols("q g t s delta", positive=True)
alpha = sp.Symbol("alpha", real=True)
f = sp.Function("f")
RATIOS = {sp.Symbol("r", positive=True): g / q, sp.Symbol("c", positive=True): (1 - g) / (1 - q)}
r, c = RATIOS
SHRINK = (1 - g) / (1 - q)
HALF = sp.Rational(1, 2)

GENERATORS = {
    "KL": t * sp.log(t),
    "chi-square": (t - 1) ** 2,
    "squared Hellinger": (sp.sqrt(t) - 1) ** 2,
    "reverse KL": -sp.log(t),
    "Jensen-Shannon": t * sp.log(t) - (1 + t) * sp.log((1 + t) / 2),
    "alpha": (t**alpha - 1 - alpha * (t - 1)) / (alpha * (alpha - 1)),
}


@claim(
    name="theorem-2-two-points",
    theorem="Theorem 2",
    statement="for every convex f and vocabulary, the best candidate shrinks all other tokens by "
    "one factor, so the optimum is the largest g with B(g) <= delta",
    tex=r"D_f(h\|q) \ge q f\!\left(\tfrac{g}{q}\right) + (1-q) f\!\left(\tfrac{1-g}{1-q}\right),"
    r"\quad h(n) = g, \qquad = \text{ for } h(i) = \tfrac{1-g}{1-q}\,q(i)\ (i \ne n)",
    kind="symbolic",
    assumes=("a convex f has a supporting line at every interior point", "0 < q < 1"),
    false=({"factor": (1 - g**2) / (1 - q)}, {"factor": 1}),
)
def theorem_2_two_points(factor: Any = SHRINK) -> Finding:
    others, moved = sp.symbols("sum_q sum_h", positive=True)  # sums over i != n of q(i), h(i)
    sums = {others: 1 - q, moved: 1 - g}
    slope = sp.Symbol("slope", real=True)
    # sum q_i f(h_i/q_i) >= sum q_i [f(c) + slope (h_i/q_i - c)]
    supported = others * f(c) + slope * (moved - c * others)
    q_i = sp.Symbol("q_i", positive=True)
    proportional = q_i * f(c * q_i / q_i)
    return conclude(
        "Jensen by a supporting line; attained when every other ratio is c",
        ("lower bound", vanishes(supported.subs(sums).subs(c, factor) - (1 - q) * f(factor))),
        ("attained", vanishes(proportional - q_i * f(c))),
        ("attained by a law", vanishes((factor * others).subs(sums) - (1 - g))),
    )


@claim(
    name="theorem-2-kkt",
    theorem="Theorem 2",
    statement="the two-point form satisfies the KKT conditions for KL, chi-square, Hellinger, "
    "reverse KL, Jensen-Shannon and every alpha, which suffice as f is convex",
    tex=r"e_n = \mu \nabla_h D_f(h\|q) + \lambda \mathbf 1, \qquad "
    r"\mu = \frac{1}{f'(g/q) - f'(c)} > 0,\quad \lambda = -\mu f'(c)",
    kind="symbolic",
    assumes=("KKT conditions suffice for a convex problem", "alpha is neither 0 nor 1"),
    false=({"extra": t * (1 - t)}, {"extra": t**2}, {"uneven": sp.Rational(11, 10)}),
)
def theorem_2_kkt(extra: Any = None, uneven: Any = 1) -> Finding:
    steps = []
    generators = GENERATORS if extra is None else {**GENERATORS, "extra": extra}
    for name, generator in generators.items():
        slope = sp.diff(generator, t)
        curvature = sp.factor(sp.simplify(sp.diff(slope, t)))
        multiplier = 1 / (slope.subs(t, r) - slope.subs(t, c))
        constant = -multiplier * slope.subs(t, c)
        q_i = sp.Symbol("q_i", positive=True)
        h_i = uneven * c * q_i  # another token at the candidate
        gradient = slope.subs(t, h_i / q_i)
        steps += [
            (f"{name}: f(1) = 0", generator.subs(t, 1) == 0),
            (f"{name}: f'' > 0", bool(curvature.is_positive)),
            (f"{name}: drafted", vanishes(multiplier * slope.subs(t, r) + constant - 1)),
            (f"{name}: others", vanishes(multiplier * gradient + constant)),
        ]
    return conclude(f"{len(generators)} generators; mu > 0 since f' increases and r > c", *steps)


@claim(
    name="root-unique-monotone",
    theorem="Theorem 2",
    statement="for strictly convex f the root g is unique in (q, 1], and grows with delta and q",
    tex=r"\partial_g B = f'(r) - f'(c) > 0,\quad \partial_q B = \varphi(r) - \varphi(c) < 0,\ "
    r"\varphi(t) = f(t) - t f'(t) \ \Rightarrow\ \partial_\delta g > 0,\ \partial_q g > 0",
    kind="symbolic",
    assumes=("f is twice differentiable, f'' > 0", "0 < q < g < 1", "implicit function theorem"),
    false=({"sign": -1},),
)
def root_unique_monotone(sign: int = 1) -> Finding:
    two_points = q * f(g / q) + (1 - q) * f((1 - g) / (1 - q))
    in_g = slope(g / q) - slope((1 - g) / (1 - q))
    phi = f(t) - sign * t * slope(t)
    in_q = phi.subs(t, g / q) - phi.subs(t, (1 - g) / (1 - q))
    a, b = sp.symbols("a b", positive=True)
    ordered = g.subs(g, q + a)
    gap = (ordered / q - (1 - ordered) / (1 - q)).subs(q, 1 / (1 + b))
    return conclude(
        "signs of both derivatives of B, as f' increases and phi' = -t f'' < 0",
        ("derivative in g", sp.expand(sp.diff(two_points, g) - in_g) == 0),
        ("derivative in q", sp.simplify(sp.diff(two_points, q) - in_q) == 0),
        ("phi falls", vanishes(sp.diff(phi, t).doit() + t * sp.diff(f(t), t, 2))),
        ("r > c", nonnegative(gap)),
    )


def slope(at: Any) -> Any:
    """f' at a point, for the generator f that is left undefined."""
    return sp.Subs(sp.Derivative(f(t), t), t, at)


@claim(
    name="closed-forms",
    theorem="section 1",
    statement="total variation, chi-square and squared Hellinger budgets have closed-form optima; "
    "under reverse KL certainty is never within the budget",
    tex=r"g_{\mathrm{TV}} = q + \delta,\quad g_{\chi^2} = q + \sqrt{\delta q(1-q)},\quad "
    r"g_{H^2} = \left(\sqrt q\,s + \sqrt{(1-q)(1-s^2)}\right)^2,\ s = 1 - \tfrac{\delta}{2};"
    r"\quad \mathrm{KL}(q\|g) \to \infty \text{ as } g \to 1",
    kind="symbolic",
    assumes=("each below its cap: g <= 1, for Hellinger s >= sqrt(q)", "0 < q < 1"),
    depends=("root-unique-monotone",),
    false=({"angle": 1 - delta}, {"chi": 2 * delta}),
)
def closed_forms(angle: Any = 1 - delta / 2, chi: Any = delta) -> Finding:
    gain = UNCAPPED.sqrt(chi * q * (1 - q))
    variation = HALF * (q * (g / q - 1) + (1 - q) * (1 - (1 - g) / (1 - q)))
    a = sp.Symbol("a", positive=True)  # q = 1/(1+a^2): sqrt(q) and sqrt(1-q) share a root
    root_q, root_rest = 1 / sp.sqrt(1 + a**2), a / sp.sqrt(1 + a**2)
    sine = sp.Symbol("sine", positive=True)
    root_g = root_q * s + root_rest * sine
    root_left = root_rest * s - root_q * sine
    unit = {sine**2: 1 - s**2}
    affinity = sp.expand(root_q * root_g + root_rest * root_left)
    total = sp.expand(sp.expand(root_g**2 + root_left**2).subs(unit))
    reverse = q * sp.log(q / g) + (1 - q) * sp.log((1 - q) / (1 - g))
    return conclude(
        "each closed form put into its own equation",
        ("total variation", vanishes(variation.subs(g, q + delta) - delta)),
        ("chi-square", vanishes(gain**2 / q + gain**2 / (1 - q) - delta)),
        ("Hellinger is a law", vanishes(total - 1)),
        ("Hellinger", vanishes(2 - 2 * affinity.subs(s, angle) - delta)),
        ("reverse KL", sp.limit(reverse.subs(q, HALF), g, 1, "-") == sp.oo),
    )


@claim(
    name="exact-optimum-small-q",
    theorem="ours, section 2",
    statement="the exact optimum lies between delta/log(1/q) and (delta + log 2)/log(1/q) for "
    "q <= exp(-delta), while the second-order one is q + sqrt(2 delta q (1-q))",
    tex=r"\frac{\delta}{\log(1/q)} \le g_{\mathrm{KL}} \le \frac{\delta + \log 2}{\log(1/q)}, "
    r"\qquad g_{\mathrm{KL}} \log\tfrac1q \to \delta \text{ as } q \to 0",
    kind="symbolic",
    assumes=("entropy of two points is at most log 2", "log(1/(1-q)) >= 0", "g >= q"),
    depends=("root-unique-monotone",),
    false=({"lower": 2}, {"lower": sp.Rational(11, 10)}),
)
def exact_optimum_small_q(lower: Any = 1) -> Finding:
    length = sp.Symbol("L", positive=True)  # log(1/q)
    entropy = -g * sp.log(g) - (1 - g) * sp.log(1 - g)
    kl = g * sp.log(g / q) + (1 - g) * sp.log((1 - g) / (1 - q))
    split = g * sp.log(1 / q) - entropy + (1 - g) * sp.log(1 / (1 - q))
    a, b = sp.symbols("a b", positive=True)
    inside = {g: 1 / (1 + a), q: 1 / (1 + b)}
    # At g = lower * delta/L the first term is lower * delta; the rest, with q <= g, is at most
    # -entropy + (1-g) log(1/(1-g)) = g log g <= 0.
    rest = -entropy + (1 - g) * sp.log(1 / (1 - g))
    first = (g * length).subs(g, lower * delta / length)
    return conclude(
        "KL(g||q) = g log(1/q) - entropy(g) + (1-g) log(1/(1-q)), bounded on both sides",
        ("split", vanishes((kl - split).subs(inside))),
        ("rest is g log g", vanishes((rest - g * sp.log(g)).subs(inside))),
        ("lower end within budget", nonnegative(delta - first)),
        ("upper end over budget", vanishes(entropy.subs(g, HALF) - sp.log(2))),
        ("entropy peaks at 1/2", vanishes(sp.diff(entropy, g, 2) + 1 / (g * (1 - g)))),
    )


@claim(
    name="certainty",
    theorem="Theorem 2",
    statement="the budget at which g = 1: log(1/q) for KL, (1-q)/q for chi-square, 2 - 2 sqrt(q) "
    "for Hellinger, 1 - q for total variation, none for reverse KL",
    tex=r"g = 1 \iff \delta \ge \log\tfrac1q\ (\mathrm{KL}),\ \tfrac{1-q}{q}\ (\chi^2),\ "
    r"2 - 2\sqrt q\ (H^2),\ 1 - q\ (\mathrm{TV}),\ \infty\ (\text{reverse KL})",
    kind="symbolic",
    assumes=("B(g) grows with g",),
    depends=("root-unique-monotone", "closed-forms"),
    false=({"kl_at_one": -2 * sp.log(q)},),
)
def certainty(kl_at_one: Any = None) -> Finding:
    wanted = {
        "KL": -sp.log(q) if kl_at_one is None else kl_at_one,
        "chi-square": (1 - q) / q,
        "squared Hellinger": 2 - 2 * sp.sqrt(q),
    }
    steps = []
    for name, value in wanted.items():
        generator = GENERATORS[name]
        at_one = q * generator.subs(t, 1 / q) + (1 - q) * sp.limit(generator, t, 0, "+")
        steps.append((name, vanishes(at_one - value)))
    return conclude(
        "f(0) taken as the limit; total variation from its closed form q + delta = 1",
        *steps,
        ("reverse KL", sp.limit(GENERATORS["reverse KL"], t, 0, "+") == sp.oo),
    )


@claim(
    name="theorem-2-enumerated",
    theorem="Theorem 2",
    statement="for all laws h and q on 3 tokens in sixths and each token n: chi-square and total "
    "variation of h are at least those of the two-point candidate with the same h(n)",
    tex=r"D_f(h\|q) \ge D_f(h^{(n)}\|q),\quad h^{(n)}(n) = h(n)",
    kind="exhaustive",
    depends=("theorem-2-two-points",),
    false=({"scale": Fraction(9, 10)},),
)
def theorem_2_enumerated(scale: Fraction = Fraction(1)) -> Finding:
    cases = 0
    for h, target in product(laws(3, 6), repeat=2):
        if not all(target):
            continue
        for n in range(3):
            two = candidate(target, n, h[n])
            square = [
                sum((x - y) ** 2 / y for x, y in zip(law, target, strict=True)) for law in (h, two)
            ]
            variation = [total_variation(law, target) for law in (h, two)]
            if scale * square[0] < square[1] or scale * variation[0] < variation[1]:
                return Finding("fails", f"h {h}, q {target}, token {n}")
            cases += 1
    return Finding("holds", f"{cases} cases")
