"""How the exact rule's root is approached: Newton's method from a safe start, in exact arithmetic.

Two unknowns, as in `cactus_theory.divergences._kl_root`: below the half-way point the gain
x = g - q, with F(x) = KL(q + x || q) convex; above it c = 1 - g, with
G(c) = log(1/q) - KL(1-c || q) concave.
Rounding is not modelled here: `newton-in-float64` says what floats do, as evidence.
"""

from __future__ import annotations

from typing import Any

from proofs_check.budget import binary_kl
from proofs_check.claims import Finding, claim, conclude
from proofs_check.symbolic import nonnegative, sp, vanishes

q, x, c, a, b, d, e = sp.symbols("q x c a b d e", positive=True)
BELOW_HALF = 1 / (2 + a)
FROM_HALF = (1 + a) / (2 + a)
LOG_2 = sp.log(2)
STEEPEST = 1 / LOG_2  # the largest v/(1-v) / -log(1-v) on [0, 1/2]
GAIN_CURVATURE = 1 / ((q + x) * (1 - q - x))


@claim(
    name="newton-monotone",
    theorem="ours, the seam",
    statement="Newton's method for a convex increasing function stays right of the root and "
    "descends from any start on the right; for a concave one its first step lands on the left and "
    "it climbs from there",
    tex=r"F'' \ge 0:\ x_0 \ge r \Rightarrow x_0 \ge x_1 \ge \dots \ge r; \qquad "
    r"G'' \le 0:\ c_1 \le c_2 \le \dots \le c^*",
    kind="symbolic",
    assumes=("a convex function lies above its tangents", "F' > 0 and G' > 0 where evaluated"),
    false=({"damping": 2}, {"damping": sp.Rational(-1)}),
)
def newton_monotone(damping: Any = 1) -> Finding:
    value, slope, gap = sp.symbols("value slope gap", positive=True)  # F(x), F'(x), x - r
    step = damping * value / slope
    # the tangent at x, taken at r: value - slope gap = -below <= 0 = F(r)
    below = sp.Symbol("below", positive=True)
    after = (gap - step).subs(value, slope * gap - below)
    left = (step - gap).subs(value, slope * gap + below)  # concave, from the right: overshoots
    f = sp.Function("f")
    map_slope = sp.diff(x - damping * f(x) / f(x).diff(x), x)
    claimed = f(x) * f(x).diff(x, 2) / f(x).diff(x) ** 2  # one sign on each side of f = 0
    return conclude(
        "from the tangent alone",
        ("convex: not past the root", nonnegative(after)),
        ("convex: descends", nonnegative(step)),
        ("concave: lands on the left", nonnegative(left)),
        ("Newton's map is monotone on either side", vanishes(map_slope - claimed)),
        ("F is convex", vanishes(sp.diff(binary_kl(q + x, q), x, 2) - GAIN_CURVATURE)),
        (
            "G is concave",
            vanishes(-sp.diff(binary_kl(1 - c, q), c, 2) + 1 / (c * (1 - c))),
        ),
    )


@claim(
    name="newton-start",
    theorem="ours, the seam",
    statement="both starts of the gain are right of the root: KL >= x^2/(2q(1-q)) for q >= 1/2 and "
    "KL >= x^2/(2(q+x)) always",
    tex=r"\mathrm{KL}(q+x\|q) \ge \frac{x^2}{2(q+x)}, \qquad "
    r"\mathrm{KL}(q+x\|q) \ge \frac{x^2}{2q(1-q)}\ \ (q \ge \tfrac12)",
    kind="symbolic",
    assumes=("two functions that agree with their slopes at 0 are ordered as their curvatures",),
    false=({"half": sp.Rational(11, 20)},),
)
def newton_start(half: Any = sp.S.Half) -> Finding:
    always, above = half * x**2 / (q + x), half * x**2 / (q * (1 - q))
    curved = GAIN_CURVATURE - sp.diff(always, x, 2)
    flat = GAIN_CURVATURE - sp.diff(above, x, 2)
    inside = {q: 1 / (1 + a), x: (1 - 1 / (1 + a)) / (1 + b)}
    from_half = {q: FROM_HALF, x: (1 - FROM_HALF) / (1 + b)}
    root = d + sp.sqrt(d * d + 2 * d * q)
    ends = [always.subs(x, 0), sp.diff(always, x).subs(x, 0), sp.diff(above, x).subs(x, 0)]
    return conclude(
        "curvatures compared; the starts solve the lower bound for delta",
        ("agree at 0", ends == [0, 0, 0]),
        ("below half", nonnegative(sp.cancel(curved.subs(inside)))),
        ("from half on", nonnegative(sp.cancel(flat.subs(from_half)))),
        ("start below half", vanishes(sp.expand(root**2 - 2 * d * (q + root)))),
    )


@claim(
    name="newton-contraction",
    theorem="ours, the seam",
    statement="for the gain the relative error obeys e' <= k e^2 with k = (r/(q+r) + r/(1-q-x)) / "
    "(2 F'(x)) <= 1/(2 log 2) < 0.7214, as long as x <= (1-q)/2",
    tex=r"\varepsilon_{k+1} \le \frac{\frac{r}{q+r} + \frac{r}{1-q-x_k}}{2F'(x_k)}\,"
    r"\varepsilon_k^2 \le \frac{\varepsilon_k^2}{2\log 2}",
    kind="symbolic",
    assumes=("Taylor's formula with integral remainder", "r <= x, so a/(1+a) <= log(1 + x/q)"),
    depends=("newton-monotone", "tangent-of-log"),
    false=({"constant": 1 / sp.log(3)},),
)
def newton_contraction(constant: Any = STEEPEST) -> Finding:
    v = sp.Symbol("v", positive=True)  # x/(1-q), at most 1/2
    split = 1 / (q + x) + 1 / (1 - q - x)
    # v/(1-v) <= constant * -log(1-v) on [0, 1/2]: zero at 0, falls then rises, <= 0 at 1/2
    excess = v / (1 - v) + constant * sp.log(1 - v)
    slope = sp.factor(sp.diff(excess, v) * (1 - v) ** 2)
    tangent = sp.log(1 + a) - a / (1 + a)
    return conclude(
        "remainder <= e^2/2 times the largest r F'', whose two parts are compared with those of F'",
        ("two parts", vanishes(split - GAIN_CURVATURE)),
        ("slope is increasing in v", sp.simplify(sp.diff(slope, v) - constant) == 0),
        ("at 0", excess.subs(v, 0) == 0),
        ("at 1/2", sp.simplify(excess.subs(v, sp.S.Half)) <= 0),
        ("log(1+a) >= a/(1+a)", tangent.subs(a, 0) == 0 and nonnegative(sp.diff(tangent, a))),
    )


@claim(
    name="newton-contraction-above",
    theorem="ours, the seam",
    statement="for 1 - g, from below the root, the relative error obeys e' <= e^2/(2 (1-e) "
    "(1-c) L(c)) <= e^2/(2 log 2 (1-e)) for c <= (1-q)/2",
    tex=r"\varepsilon_{k+1} \le \frac{\varepsilon_k^2}{2(1-\varepsilon_k)(1-c)L(c)} \le "
    r"\frac{\varepsilon_k^2}{2\log 2\,(1-\varepsilon_k)}, \qquad L(c) = "
    r"\log\frac{(1-c)(1-q)}{cq}",
    kind="symbolic",
    assumes=("Taylor's formula with integral remainder", "1/(t(1-t)) <= 1/(c_k(1-c)) between"),
    depends=("newton-monotone", "tangent-of-log"),
    false=({"least": sp.log(3)},),
)
def newton_contraction_above(least: Any = LOG_2) -> Finding:
    slope = sp.diff(-binary_kl(1 - c, q), c)
    inside = {q: 1 / (1 + a), c: (1 - 1 / (1 + a)) / (1 + b)}
    claimed = sp.log((1 - c) * (1 - q) / (c * q))
    # (1-c) L(c) falls with c, so it is least at c = (1-q)/2: m(q) = (1+q)/2 log((1+q)/q)
    at_half = ((1 - c) * claimed).subs(c, (1 - q) / 2)
    m = (1 + q) / 2 * sp.log((1 + q) / q)
    falls = sp.diff(m, q) - (sp.log(1 + 1 / q) - 1 / q) / 2  # log(1 + t) <= t
    error = e * c
    remainder = error**2 / 2 / ((1 - e) * c * (1 - c))  # times 1/L(c_k) <= 1/L(c)
    return conclude(
        "(1-c) L(c) >= m(q) >= m(1) = log 2",
        ("slope", vanishes((slope - claimed).subs(inside))),
        ("at the half-way point", vanishes((at_half - m).subs(q, 1 / (1 + a)))),
        ("m falls", vanishes(sp.expand_log(sp.simplify(falls), force=True))),
        ("m(1)", sp.simplify(m.subs(q, 1) - least) == 0),
        ("relative error", vanishes(remainder / c - e**2 / (2 * (1 - e) * (1 - c)))),
    )
