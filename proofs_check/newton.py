"""How the exact rule's root is approached: Newton's method from a safe start, in exact arithmetic.

Two unknowns, as in `cactus_theory.divergences._kl_root`: below the half-way point the gain
x = g - q, with F(x) = KL(q + x || q) convex; above it c = 1 - g, with
G(c) = log(1/q) - KL(1-c || q) concave.
Rounding is not modelled here: `newton-in-float64` says what floats do, as evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs_check.budget import binary_kl
from proofs_check.claims import Step, claim
from proofs_check.symbolic import at_least, equal, nonnegative, shown, sp, vanishes

q, x, c, a, b, d, e = sp.symbols("q x c a b d e", positive=True)
BELOW_HALF = 1 / (2 + a)
FROM_HALF = (1 + a) / (2 + a)
LOG_2 = sp.log(2)
STEEPEST = 1 / LOG_2  # the largest v/(1-v) / -log(1-v) on [0, 1/2]
GAIN_CURVATURE = 1 / ((q + x) * (1 - q - x))
TAYLOR = "Taylor's formula with integral remainder"


@claim(
    name="newton-monotone",
    source="ours, in code",
    statement="Newton's method for a convex increasing function stays right of the root and "
    "descends from any start on the right; for a concave one its first step lands on the left and "
    "it climbs from there",
    tex=r"F'' \ge 0:\ x_0 \ge r \Rightarrow x_0 \ge x_1 \ge \dots \ge r; \qquad "
    r"G'' \le 0:\ c_1 \le c_2 \le \dots \le c^*",
    false=({"damping": 2}, {"damping": sp.Rational(-1)}),
)
def newton_monotone(damping: Any = 1) -> Iterator[Step]:
    value, slope, gap = sp.symbols("F s D", positive=True)  # F(x), F'(x), x - r
    below = sp.Symbol("t", positive=True)  # how far the tangent lies from the function at the root
    step = damping * value / slope
    yield at_least(
        "A convex function lies above its tangents: at the root the tangent at x has a value "
        "$-t \\le 0$. So with F the value, s the slope and D the distance to the root, "
        "$F = sD - t$: the step F/s does not pass the root.",
        ("D - F/s", (gap - step).subs(value, slope * gap - below)),
        0,
        tex=r"D - \frac Fs = \frac ts \ge 0",
        assumes="a convex function lies above its tangents; $F' > 0$ and $G' > 0$ where evaluated",
    )
    yield at_least("It goes towards the root: to its right F is positive.", ("F/s", step), 0)
    yield at_least(
        "A concave function lies below its tangents, $G = sD + t$: from the right the step passes "
        "the root, and from the left it does not.",
        ("G/s - D", (step - gap).subs(value, slope * gap + below)),
        0,
        tex=r"\frac Gs - D = \frac ts \ge 0",
    )
    f = sp.Function("f")
    newton_map = x - damping * f(x) / f(x).diff(x)
    yield equal(
        "The derivative of Newton's map has one sign on each side of the root: a larger error "
        "before the step gives a larger one after it.",
        (r"\frac{d}{dx}\left[x - \frac{f}{f'}\right]", sp.diff(newton_map, x)),
        (r"\frac{f f''}{f'^2}", f(x) * f(x).diff(x, 2) / f(x).diff(x) ** 2),
    )
    yield equal(
        "The code has two unknowns. Below the half-way point it is the gain $x = g - q$, a root of "
        "$F(x) = \\mathrm{KL}(q+x\\|q) - \\delta$, which is convex.",
        ("F''(x)", sp.diff(binary_kl(q + x, q), x, 2)),
        GAIN_CURVATURE,
    )
    yield equal(
        "Above it, it is $c = 1 - g$, a root of $G(c) = \\delta - \\mathrm{KL}(1-c\\|q)$, which is "
        "concave.",
        ("G''(c)", -sp.diff(binary_kl(1 - c, q), c, 2)),
        -1 / (c * (1 - c)),
    )


@claim(
    name="newton-start",
    source="ours, in code",
    statement="both starts of the gain are right of the root: KL >= x^2/(2q(1-q)) for q >= 1/2 and "
    "KL >= x^2/(2(q+x)) always",
    tex=r"\mathrm{KL}(q+x\|q) \ge \frac{x^2}{2(q+x)}, \qquad "
    r"\mathrm{KL}(q+x\|q) \ge \frac{x^2}{2q(1-q)}\ \ (q \ge \tfrac12)",
    false=({"half": sp.Rational(11, 20)},),
)
def newton_start(half: Any = sp.S.Half) -> Iterator[Step]:
    always, above = half * x**2 / (q + x), half * x**2 / (q * (1 - q))
    inside = {q: 1 / (1 + a), x: (1 - 1 / (1 + a)) / (1 + b)}
    from_half = {q: FROM_HALF, x: (1 - FROM_HALF) / (1 + b)}
    ends = [always.subs(x, 0), sp.diff(always, x).subs(x, 0), sp.diff(above, x).subs(x, 0)]
    yield Step(
        "Both lower bounds agree with KL at x = 0, and so do their slopes: all are 0. So "
        "curvatures may be compared.",
        r"B(x) = \frac{x^2}{2(q+x)}, \quad C(x) = \frac{x^2}{2q(1-q)}, \qquad "
        r"B(0) = B'(0) = C(0) = C'(0) = 0",
        lambda: ends == [0, 0, 0],
        assumes="two functions that agree with their slopes at 0 are ordered as their curvatures",
    )
    yield at_least(
        "The first bound holds for every q.",
        shown(r"\mathrm{KL}''", GAIN_CURVATURE),
        shown("B''(x)", sp.factor(sp.diff(always, x, 2))),
        where=inside,
    )
    yield at_least(
        "The second holds from q = 1/2 on.",
        shown(r"\mathrm{KL}''", GAIN_CURVATURE),
        shown("C''(x)", sp.diff(above, x, 2)),
        where=from_half,
    )
    root = d + sp.sqrt(d * d + 2 * d * q)
    yield equal(
        "The code starts where the bound is delta: for the first one at $x = \\delta + "
        "\\sqrt{\\delta^2 + 2\\delta q}$.",
        (r"x^2 - 2\delta(q + x)", sp.expand(root**2 - 2 * d * (q + root))),
        0,
    )


@claim(
    name="newton-contraction",
    source="ours, in code",
    statement="for the gain the relative error obeys e' <= k e^2 with k = (r/(q+r) + r/(1-q-x)) / "
    "(2 F'(x)) <= 1/(2 log 2) < 0.7214, as long as x <= (1-q)/2",
    tex=r"\varepsilon_{k+1} \le \frac{\frac{r}{q+r} + \frac{r}{1-q-x_k}}{2F'(x_k)}\,"
    r"\varepsilon_k^2 \le \frac{\varepsilon_k^2}{2\log 2}",
    false=({"constant": 1 / sp.log(3)},),
)
def newton_contraction(constant: Any = STEEPEST) -> Iterator[Step]:
    v = sp.Symbol("v", positive=True)  # x/(1-q), at most 1/2
    yield equal(
        "The error after a step is a remainder: at most $\\varepsilon^2/2$ times the largest "
        "$r F''/F'$ between r and x. F'' has two parts, the first largest at r, the second at x.",
        (r"\frac1{q+x} + \frac1{1-q-x}", 1 / (q + x) + 1 / (1 - q - x)),
        ("F''(x)", GAIN_CURVATURE),
        assumes=TAYLOR,
        uses=("newton-monotone",),
    )
    tangent = sp.log(1 + a) - a / (1 + a)
    yield Step(
        "F' has two parts as well, $\\log(1 + x/q)$ and $-\\log(1-v)$ with $v = x/(1-q)$. The "
        "first parts: with $a = r/q \\le x/q$, the quotient is at most 1, and 1 is less than "
        "1/log 2.",
        r"\frac{a}{1+a} \le \log(1+a): \qquad 0 \text{ at } a = 0, \quad "
        rf"\frac{{d}}{{da}} = {sp.latex(sp.factor(sp.diff(tangent, a)))} \ge 0",
        lambda: tangent.subs(a, 0) == 0 and nonnegative(sp.diff(tangent, a)),
        uses=("tangent-of-log",),
    )
    # v/(1-v) <= constant * -log(1-v) on [0, 1/2]: zero at 0, falls then rises, <= 0 at 1/2
    excess = v / (1 - v) + constant * sp.log(1 - v)
    slope = sp.factor(sp.diff(excess, v) * (1 - v) ** 2)
    yield Step(
        "The second parts, for $v \\le 1/2$: the difference is 0 at both ends, and between them it "
        "falls first and rises then, as its derivative times $(1-v)^2$ increases.",
        r"\frac{v}{1-v} \le \frac{-\log(1-v)}{\log 2}",
        lambda: (
            sp.simplify(sp.diff(slope, v) - constant) == 0
            and excess.subs(v, 0) == 0
            and sp.simplify(excess.subs(v, sp.S.Half)) <= 0
        ),
    )


@claim(
    name="newton-contraction-above",
    source="ours, in code",
    statement="for 1 - g, from below the root, the relative error obeys e' <= e^2/(2 (1-e) "
    "(1-c) L(c)) <= e^2/(2 log 2 (1-e)) for c <= (1-q)/2",
    tex=r"\varepsilon_{k+1} \le \frac{\varepsilon_k^2}{2(1-\varepsilon_k)(1-c)L(c)} \le "
    r"\frac{\varepsilon_k^2}{2\log 2\,(1-\varepsilon_k)}, \qquad L(c) = "
    r"\log\frac{(1-c)(1-q)}{cq}",
    false=({"least": sp.log(3)},),
)
def newton_contraction_above(least: Any = LOG_2) -> Iterator[Step]:
    inside = {q: 1 / (1 + a), c: (1 - 1 / (1 + a)) / (1 + b)}
    claimed = sp.log((1 - c) * (1 - q) / (c * q))
    yield equal(
        "The slope of $G(c) = \\delta - \\mathrm{KL}(1-c\\|q)$ is L.",
        ("G'(c)", sp.diff(-binary_kl(1 - c, q), c)),
        ("L(c)", claimed),
        where=inside,
    )
    remainder = (e * c) ** 2 / 2 / ((1 - e) * c * (1 - c))  # times 1/L(c_k) <= 1/L(c)
    yield equal(
        "The error after a step from $c_k = (1 - \\varepsilon) c$ is a remainder, with $|G''| \\le "
        "1/(c_k(1-c))$ between, over $L(c_k) \\ge L(c)$. The formula is relative to the root c, "
        "before the division by L.",
        (r"\frac1c \cdot \frac{(\varepsilon c)^2}{2(1-\varepsilon) c (1-c)}", remainder / c),
        (r"\frac{\varepsilon^2}{2(1-\varepsilon)(1-c)}", e**2 / (2 * (1 - e) * (1 - c))),
        assumes=TAYLOR,
        uses=("newton-monotone",),
    )
    # (1-c) L(c) falls with c, so it is least at c = (1-q)/2: m(q) = (1+q)/2 log((1+q)/q)
    m = (1 + q) / 2 * sp.log((1 + q) / q)
    yield equal(
        "(1-c) L(c) falls with c, both factors being positive and falling, so it is least at "
        "$c = (1-q)/2$.",
        (r"\tfrac{1+q}2 L\!\left(\tfrac{1-q}2\right)", ((1 - c) * claimed).subs(c, (1 - q) / 2)),
        (r"m(q) = \tfrac{1+q}{2} \log\tfrac{1+q}{q}", m),
        where={q: 1 / (1 + a)},
    )
    falls = sp.diff(m, q) - (sp.log(1 + 1 / q) - 1 / q) / 2
    yield Step(
        "m falls with q, by $\\log(1+t) \\le t$ at t = 1/q.",
        r"m'(q) = \tfrac12\left[\log\left(1 + \tfrac1q\right) - \tfrac1q\right]",
        lambda: vanishes(sp.expand_log(sp.simplify(falls), force=True)),
        uses=("tangent-of-log",),
    )
    yield equal("So it is at least m(1).", ("m(1)", m.subs(q, 1)), least)
