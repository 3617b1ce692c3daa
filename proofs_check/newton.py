"""How the exact rule's root is approached: Newton's method from a safe start, in exact arithmetic.

Two unknowns, as in `cactus_theory.rules._kl_root`: below the half-way point the gain x = g - q,
with F(x) = KL(q + x || q) convex; above it c = 1 - g, with G(c) = log(1/q) - KL(1-c || q) concave.
Rounding is not modelled here: `newton-in-float64` says what floats do, as evidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb, ctx

from cactus_theory import exact_optimum
from cactus_theory.rules._kl_root import kl_root
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


@claim(
    name="newton-in-float64",
    theorem="ours, the seam",
    statement="OPEN: with rounding, kl_root in float64 is within 16 ulp of the smaller of g, 1 - g "
    "wherever log(1/q) > 1.25 delta; seen on 1,919 pairs certified by balls, q from 1e-300 to "
    "1 - 1e-12, delta from 1e-6 to 20",
    tex=r"|\hat g - g| \le 16u\,\min(g, 1-g),\quad u = 2^{-53}",
    kind="evidence",
    expected="open",
    depends=("newton-steps",),
    false=({"ulps": 0.25}, {"shift": 1e-12}),
)
def newton_in_float64(ulps: float = 16, shift: float = 0.0) -> Finding:
    low = 10.0 ** -np.array([300, 200, 100, 50, 30, 20, 15, 10, 8, 6, 5, 4, 3, 2.5, 2, 1.5, 1])
    targets = np.concatenate([low, np.linspace(0.12, 0.97, 40), 1 - 10.0 ** -np.arange(2, 13)])
    q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
    g, rest, _ = kl_root(q_, delta, xp=np)
    # nearer to log(1/q) = delta, 1 - g is ill-conditioned in delta: see `deficit` in kl_root
    inner = (rest > 0) & (g > q_) & (-np.log(q_) > 1.25 * delta)
    bad = 0
    with ctx.workprec(2200):
        for target, budget, kept, left in zip(
            q_[inner], delta[inner], g[inner], rest[inner], strict=True
        ):
            small = arb(min(float(kept), float(left)))
            root = (1 - arb(float(left)) if left < kept else arb(float(kept))) + small * arb(shift)
            width = small * arb(ulps) * arb(2) ** -53
            below, above = _kl(root - width, target), _kl(root + width, target)
            bad += not below < arb(float(budget)) < above
    count = int(inner.sum())
    return conclude(f"{count} pairs", ("bracketed", bad == 0), ("enough", count == 1919))


@claim(
    name="exact-optimum-feasible",
    theorem="Theorem 2, in code",
    statement="exact_optimum keeps the budget and brackets the root: KL(value) <= delta <= "
    "KL(upper end), by balls, on 1,640 pairs with q from 1e-12 to 0.97, delta from 1e-6 to 20",
    tex=r"\mathrm{KL}(\texttt{value}\|q) \le \delta \le \mathrm{KL}(\texttt{upper}\|q)",
    kind="evidence",
    depends=("newton-steps", "root-unique-monotone"),
    false=({"spent": 1.0 + 1e-12}, {"spent": 1.0 - 1e-12}),
)
def exact_optimum_feasible(spent: float = 1.0) -> Finding:
    targets = np.concatenate([np.geomspace(1e-12, 0.1, 20), np.linspace(0.12, 0.97, 21)])
    q_, delta = (grid.ravel() for grid in np.meshgrid(targets, np.geomspace(1e-6, 20, 40)))
    solved = exact_optimum(q_, delta)
    low, high = solved.bracket
    bad = 0
    with ctx.workprec(256):
        for target, budget, value, end in zip(q_, delta, low, high, strict=True):
            limit = arb(float(budget)) * arb(spent)
            if value == 1:  # certain: within the budget exactly if log(1/q) is
                bad += not -arb(float(target)).log() <= limit
            elif end == 1:
                bad += not _kl(arb(float(value)), target) <= limit
            else:
                below, above = (_kl(arb(float(g)), target) for g in (value, end))
                bad += not below <= limit <= above
    return conclude(f"{len(q_)} pairs", ("kept and bracketed", bad == 0), ("all", len(q_) == 1640))


def _kl(g: arb, target: float) -> arb:
    q_ = arb(float(target))
    return g * (g / q_).log() + (1 - g) * ((1 - g) / (1 - q_)).log()
