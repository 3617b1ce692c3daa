"""The sharp worst case of what is emitted: Gamma_V(delta) of Theorem 3 for KL, for both rules.

m = V - 1 is the most tokens that can have p > q; k <= m is how many do. O and Q are the emitted
and the target mass of those tokens. The pairs that attain the bound are in `growth`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import brentq

from cactus_theory import Cactus, CactusExact, binary_kl, kl, output_distribution, total_variation
from proofs_check import budget
from proofs_check.claims import Finding, Step, claim
from proofs_check.symbolic import at_least, equal, nonnegative, sp, vanishes

q, o, a, b, k, m, x, delta = sp.symbols("q o a b k m x delta", positive=True)
Q, total = sp.symbols("Q O", positive=True)
HALF = sp.Rational(1, 2)


@claim(
    name="gamma-second-sharp",
    source="Theorem 3, ours",
    statement="the second-order rule's sharp worst case in closed form: over all pairs of "
    "distributions on V tokens KL(out||q) is at most log(A + sqrt(A^2 - 1 - 2 delta)), "
    "A = 1 + delta (V-1), and chi2(out||q) at most exp of it less 1; both are attained",
    tex=r"\Gamma_V(\delta) = \max_{p,q} \mathrm{KL}(\mathrm{out}\|q) = "
    r"\log\!\left(A + \sqrt{A^2 - 1 - 2\delta}\right),\quad A = 1 + \delta(V-1),"
    r"\qquad \max_{p,q} \chi^2(\mathrm{out}\|q) = e^{\Gamma_V(\delta)} - 1",
    false=({"slope": m - 1}, {"least": 1}),
)
def gamma_second_sharp(slope: Any = m, least: int = 2) -> Iterator[Step]:
    top = 1 + delta * slope
    value = top + sp.sqrt(top**2 - 1 - 2 * delta)
    summed = 1 + total + 2 * delta * k - (1 + 2 * delta) * Q
    bow = sp.sqrt(Q * (k - Q))
    meet = (1 - Q) ** 2 - 2 * delta * Q * (k - Q)
    yield equal(
        "KL is at most the logarithm of $\\sum \\mathrm{out}^2/q$, which is $1 + \\chi^2$. Of a "
        "token of S, with o its emitted probability, the rule bounds the last term: "
        "$(o-q)^2/q \\le 2\\delta(1-q)$. A token off S adds at most o.",
        o**2 / q,
        2 * o - q + (o - q) ** 2 / q,
        assumes="$V \\ge 2$ and $\\delta > 0$",
        uses=("gamma-second-upper", "ordering"),
    )
    yield equal(
        "Sum over the k tokens of S, of target mass Q and emitted mass O, and over the others, of "
        "emitted mass $1 - O$. Call the result F(O, Q): it grows with O and falls with Q.",
        (
            r"\left[2O - Q + 2\delta(k - Q)\right] + (1 - O)",
            (2 * total - Q + 2 * delta * (k - Q)) + (1 - total),
        ),
        (r"F = 1 + O + 2\delta k - (1 + 2\delta)Q", summed),
    )
    bent = sp.diff(bow, Q, 2) + k**2 / (4 * (Q * (k - Q)) ** sp.Rational(3, 2))
    yield Step(
        "Two constraints bound O: $O \\le 1$, and O is at most what the rule grants. As "
        "$\\sqrt{q(1-q)}$ is concave, the k tokens are granted most when equal: "
        "$O \\le R(Q) = Q + \\sqrt{2\\delta}\\sqrt{Q(k-Q)}$, which is concave too.",
        r"\frac{d^2}{dQ^2} \sqrt{Q(k-Q)} = -\frac{k^2}{4 (Q(k-Q))^{3/2}} < 0",
        lambda: vanishes(bent),
        assumes="Jensen's inequality for a concave function",
    )
    yield Step(
        "Both constraints meet where R(Q) = 1, that is $(1-Q)^2 = 2\\delta Q(k-Q)$. For k = m the "
        "solution is $Q_0 = 1/X$, where $X = A + \\sqrt{A^2 - 1 - 2\\delta}$.",
        r"\left(1 - \tfrac1X\right)^2 - 2\delta\,\tfrac1X\left(m - \tfrac1X\right) = 0",
        lambda: sp.simplify(sp.expand(meet.subs(k, m).subs(Q, 1 / value) * value**2)) == 0,
    )
    yield equal(
        "There F is 1/Q, which is X for k = m.",
        (r"F(1, Q)\,Q - 1", sp.expand(summed.subs(total, 1) * Q - 1)),
        (r"2\delta Q(k-Q) - (1-Q)^2", sp.expand(-meet)),
    )
    yield at_least(
        "To the right of the meeting point O = 1, and F falls with Q.",
        (r"-\partial_Q F(1, Q)", -sp.diff(summed.subs(total, 1), Q)),
        0,
    )
    slope_there = delta * (k - 2 * Q) / (sp.sqrt(2 * delta) * bow)
    yield equal(
        "To the left of it O = R(Q), of which this is the slope.",
        (r"R'(Q) - 1", sp.diff(Q + sp.sqrt(2 * delta) * bow, Q) - 1),
        slope_there,
    )
    yield at_least(
        "At the meeting point $\\sqrt{2\\delta Q(k-Q)} = 1 - Q$, so the slope of F(R(Q), Q) "
        "there is as below. It is not negative if $k \\ge 2$. As F(R(Q), Q) is concave, it lies "
        "below its tangent there, so to the left it is at most F at the meeting point.",
        (r"1 + \delta\frac{k - 2Q}{1 - Q}", 1 + delta * (k - 2 * Q) / (1 - Q)),
        1 + 2 * delta,
        where={k: least + a, Q: 1 / (1 + b)},
    )
    single = 2 * delta * (1 + 2 * delta) - (sp.sqrt(2 * delta) / 2) ** 2
    square_part = sp.expand((1 + 2 * delta) ** 2 - 1 - 2 * delta - 2 * delta * (1 + 2 * delta))
    yield Step(
        "If k = 1 < m, F is at most $1 + 2\\delta + \\sqrt{2\\delta}/2$, as "
        "$\\sqrt{q(1-q)} \\le 1/2$. That is less than X for m = 2, which is "
        "$1 + 2\\delta + \\sqrt{2\\delta(1+2\\delta)}$.",
        r"2\delta(1 + 2\delta) \ge \left(\tfrac12\sqrt{2\delta}\right)^2",
        lambda: square_part == 0 and nonnegative(sp.expand(single)),
    )
    yield equal(
        "If m = 1, X is $1 + 2\\delta$: the sharp bound of a single candidate, which is attained.",
        (r"\left.X\right|_{m = 1}", value.subs(m, 1)),
        1 + 2 * delta,
        uses=("sharp-kl-bound",),
    )
    yield Step(
        "X grows with m, so k = m is the worst, and the pair of gamma-second-attained emits it: "
        "there $\\mathrm{KL} = \\log(1/(m q_0))$ with $m q_0 = Q_0$, and chi-square is "
        "$1/Q_0 - 1$. X also grows with delta, from 1 at delta = 0.",
        r"\partial_m A \ge 0, \qquad A^2 - 1 - 2\delta = 2\delta(m - 1) + \delta^2 m^2, "
        r"\qquad X|_{\delta=0} = 1",
        lambda: (
            nonnegative(sp.diff(top, m))
            and nonnegative(sp.expand(((1 + delta * m) ** 2 - 1 - 2 * delta).subs(m, 1 + a)))
            and value.subs(delta, 0) == 1
        ),
        uses=("gamma-second-attained",),
    )


def kernel_e(t: Any) -> Any:
    """E(t) = ((1+t) log(1+t) - t)/t^2, which falls with t from E(0) = 1/2."""
    return ((1 + t) * sp.log(1 + t) - t) / t**2


@claim(
    name="gamma-exact-sharp",
    source="Theorem 3, ours",
    statement="the exact rule's sharp worst case: the maximum of KL(out||q) over all pairs of "
    "distributions on V tokens is log(1/(m q0)), where m = V-1 and KL(1/m||q0) = delta, q0 < 1/m",
    tex=r"\Gamma_V(\delta) = \max_{p,q} \mathrm{KL}(\mathrm{out}\|q) = \log\frac{1}{m q_0},\quad "
    r"\mathrm{KL}(\tfrac1m\|q_0) = \delta,\ m = V - 1; \qquad V = 2:\ \Gamma = \delta",
    false=({"most": sp.Rational(3, 5)}, {"share": 2}),
)
def gamma_exact_sharp(most: Any = HALF, share: Any = 1) -> Iterator[Step]:
    inside = {o: 1 / (1 + a), q: 1 / (1 + a + b)}  # 0 < q < o < 1
    psi = (1 - o) * sp.log((1 - q) / (1 - o))
    odds = sp.log(o * (1 - q) / (q * (1 - o)))
    yield Step(
        "KL is at most $\\sum_S o\\log(o/q)$, and each term is at most $\\delta + \\psi(o, q)$. "
        "The function psi is jointly concave and 0 at (0, 0). So $k\\,\\psi(O/k, Q/k)$ bounds "
        "the sum over the k tokens of S, of masses O and Q, and does not fall as k grows.",
        r"\psi(o, q) = (1-o)\log\frac{1-q}{1-o}, \qquad \det \nabla^2\psi = 0, \quad "
        r"\partial_o^2 \psi \le 0, \quad \partial_q^2 \psi \le 0",
        lambda: semidefinite(sp.hessian(-psi, (o, q)), inside) and psi.subs({o: 0, q: 0}) == 0,
        assumes="$V \\ge 2$ and $\\delta > 0$; Jensen's inequality. For V = 2, S is one token and "
        "KL(out||q) is that of two points, at most delta",
        uses=("gamma-exact-upper",),
    )
    yield Step(
        "In the same way $o \\log(o/q)$ is convex, hence KL of two points, which is that less "
        "psi: S may be taken uniform, $o = O/k$ and $q = Q/k$, and still keeps the budget, more "
        "easily with more tokens.",
        r"\det \nabla^2 \left[o \log\tfrac oq\right] = 0, \qquad \text{diagonal} \ge 0",
        lambda: semidefinite(sp.hessian(o * sp.log(o / q), (o, q)), inside),
    )
    u = sp.log((1 - q) / (1 - o))
    yield Step(
        "The function psi grows with o up to 1/2, where $\\log\\frac{1-q}{1-o} \\le \\log 2 < "
        "1$. So for $k \\ge 2$ the emitted o is as large as it may be: g(q), or 1/k if that is "
        "less.",
        r"\partial_o \psi = 1 - \log\frac{1-q}{1-o}",
        lambda: vanishes((sp.diff(psi, o) - (1 - u)).subs(inside)) and bool(sp.log(2) < 1),
    )
    yield at_least(
        "It falls with q: where o = 1/k is fixed, a smaller q is worse.",
        (r"-\partial_q \psi", -sp.diff(psi, q)),
        0,
        where=inside,
    )
    root_slope = (o - q) / (q * (1 - q)) / odds  # dg/dq along KL(g||q) = delta
    two_points = budget.binary_kl(o, q)
    implicit = -sp.diff(two_points, q) / sp.diff(two_points, o)
    yield equal(
        "Where o = g(q) on the other hand, o moves with q along $\\mathrm{KL}(o\\|q) = \\delta$ by "
        "this slope.",
        (r"o' = -\frac{\partial_q \mathrm{KL}}{\partial_o \mathrm{KL}}", implicit),
        (r"\frac{o - q}{q(1-q)\,\Lambda},\quad \Lambda = \log\frac{o(1-q)}{q(1-o)}", root_slope),
        where=inside,
        uses=("root-unique-monotone",),
    )
    # with q = o (1-x): o x^2 [(1-o) E(-x) - o^2/(1-o) E(o x/(1-o))], and E(-x) >= 1/2 >= E(.)
    x_ = 1 / (1 + b)
    along = (sp.diff(psi, q) + sp.diff(psi, o) * root_slope) * q * (1 - q) * odds
    kernels = (1 - o) * kernel_e(-x_) - share * o**2 / (1 - o) * kernel_e(o * x_ / (1 - o))
    claimed = along - o * x_**2 * kernels
    top = {o: 1 / (1 + a), q: (1 - x_) / (1 + a)}
    yield Step(
        "Along the budget the slope of psi has the sign of a difference of two values of "
        "$E(t) = ((1+t)\\log(1+t) - t)/t^2$, which falls with t from E(0) = 1/2. Here "
        "$q = o(1-x)$.",
        r"\frac{d\psi}{dq}\,q(1-q)\Lambda = o x^2\left[(1-o)\,E(-x) - "
        r"\frac{o^2}{1-o}\,E\!\left(\frac{o x}{1-o}\right)\right]",
        lambda: vanishes(claimed.subs(top)),
        uses=("newton-kernels",),
    )
    least = (1 - o) / 2 - o**2 / (1 - o) / 2
    yield at_least(
        "As $E(-x) \\ge 1/2 \\ge E(\\cdot)$, the bracket is not negative up to $o = 1/2$: psi "
        "grows with q. So the worst q is where both cases meet, g(q) = 1/k; k = m is the worst, "
        "and the bound is $m\\delta + m\\psi(1/m, q_0) = \\log(1/(m q_0))$, which is attained.",
        (r"\frac{1-o}{2} - \frac{o^2}{2(1-o)}", least),
        0,
        where={o: most / (1 + a)},
        uses=("gamma-exact-attained",),
    )
    ratio = q * (1 - o) / (o * (1 - q))
    yield equal(
        "If k = 1 < m and $g(q) \\le 1/2$, the same slope makes $g(q) = 1/2$ the worst. If "
        "$g(q) > 1/2$, the term is at most log(g/q), and g/q falls with q: for $o = g(q)$, "
        "$o' \\le o/q$ says $\\Lambda \\ge \\frac{o-q}{o(1-q)}$, which is $\\log t \\le t - 1$ at "
        "$t = e^{-\\Lambda}$. So the worst is again g = 1/2, at most log(1/(2q)), the bound for "
        "k = 2.",
        (r"1 - e^{-\Lambda} = 1 - \frac{q(1-o)}{o(1-q)}", 1 - ratio),
        (r"\frac{o - q}{o(1-q)}", (o - q) / (o * (1 - q))),
        uses=("tangent-of-log",),
    )


def semidefinite(hessian: Any, inside: dict[Any, Any]) -> bool:
    """Whether a 2 x 2 Hessian has determinant 0 and a nonnegative diagonal."""
    matrix = hessian.subs(inside)
    return vanishes(matrix.det()) and nonnegative(matrix[0, 0]) and nonnegative(matrix[1, 1])


@claim(
    name="distance-sharp",
    source="Theorem 3, ours",
    statement="for V >= 3 the same pairs are worst in total variation: the maximum of TV(out, q) "
    "is 1 - exp(-Gamma_V(delta)), for both rules",
    tex=r"\max_{p,q} \mathrm{TV}(\mathrm{out}, q) = 1 - e^{-\Gamma_V(\delta)} \quad (V \ge 3)",
    false=({"least": 1}, {"far": sp.Rational(11, 10)}),
)
def distance_sharp(least: int = 2, far: Any = 1) -> Iterator[Step]:
    yield at_least(
        "TV = O - Q is at most $1 - Q$, which falls with Q, and at most what the rule grants to m "
        "equal tokens of total Q. For the second-order rule that is "
        "$\\sqrt{2\\delta Q(m - Q)}$, which grows with Q up to 1 and with the number of tokens.",
        (r"\frac{d}{dQ}\,Q(m - Q)", sp.diff(Q * (m - Q), Q)),
        0,
        where={m: least + a, Q: 1 / (1 + b)},
        uses=("gamma-second-sharp",),
    )
    odds = sp.log(o * (1 - q) / (q * (1 - o)))
    lead = (o - q) / (q * (1 - q)) - odds  # sign of dg/dq - 1; 0 at o = q
    small = 1 / (2 + a)
    yield equal(
        "For the exact rule it is $m\\,[g(Q/m) - Q/m]$, which grows with the number of tokens, "
        "as g is concave: KL of two points is jointly convex. It grows with Q if $g'(q) \\ge 1$, "
        "that is, if $L(g) = \\frac{g-q}{q(1-q)} - \\Lambda \\ge 0$. At g = q it is 0.",
        ("L(q)", lead.subs(o, q)),
        0,
        uses=("gamma-exact-sharp",),
    )
    yield at_least(
        "And L grows with g up to $1 - q$.",
        (r"\partial_g L", sp.diff(lead, o)),
        0,
        where={q: small, o: small + far * (1 - 2 * small) / (1 + b)},
    )
    yield at_least(
        "This covers all $g \\le 1/2$. So the largest distance is where both bounds meet, at the "
        "worst pair of KL, of $Q_0 = m q_0 = e^{-\\Gamma}$: it is $1 - Q_0$.",
        1 - q,
        HALF,
        where={q: small},
    )


def worst_second(size: int, delta: float) -> float:
    """The closed form of gamma-second-sharp."""
    top = 1 + delta * (size - 1)
    return float(np.log(top + np.sqrt(top * top - 1 - 2 * delta)))


def worst_exact(size: int, delta: float) -> float:
    """The value of gamma-exact-sharp, by bisection in log q0."""
    if size == 2:
        return delta
    even = 1 / (size - 1)

    def excess(log_q: float) -> float:
        return float(binary_kl(even, np.exp(log_q))) - delta

    return float(np.log(even) - brentq(excess, -700, np.log(even) - 1e-9))


@claim(
    name="gamma-searched",
    source="Theorem 3, in code",
    statement="the code stays below both sharp worst cases on 1,920 random pairs of 2 to 6 "
    "tokens at four budgets, and comes within 1e-6 of them on the extremal pair",
    tex=r"\mathrm{KL}(\mathrm{out}_{\text{code}}\|q) \le \Gamma_V(\delta) + 10^{-9}",
    expected="supported",
    false=({"scale": 0.999}, {"scale": 1.001}),
)
def gamma_searched(scale: float = 1.0) -> Iterator[Step]:
    budgets = (0.01, 0.2, 1.0, 3.0)
    for rule, worst, name in (
        (Cactus, worst_second, "gamma-second-sharp"),
        (CactusExact, worst_exact, "gamma-exact-sharp"),
    ):

        def below(rule: Any = rule, worst: Any = worst) -> Finding:
            random, pairs = np.random.default_rng(20261130), 0
            for size in (2, 3, 4, 6):
                for budget_ in budgets:
                    value = scale * worst(size, budget_)
                    spread = random.choice([1.0, 4.0, 10.0], size=(2, 60, 1))
                    weights = np.exp(spread * random.normal(size=(2, 60, size)))
                    draft, target = weights / weights.sum(-1, keepdims=True)
                    out = output_distribution(rule(budget_), draft=draft, target=target)
                    far = total_variation(out, target).max()
                    near = size == 2 or far <= 1 - np.exp(-value) + 1e-9
                    if kl(out, target).max() > value + 1e-9 or not near:
                        return Finding("fails", f"{size} tokens, delta {budget_}")
                    pairs += 60
            return Finding("holds", f"{pairs} pairs")

        def reached(rule: Any = rule, worst: Any = worst) -> bool:
            gaps = []
            for size in (2, 3, 4, 6):
                for budget_ in budgets:
                    rare = np.exp(-worst(size, budget_)) * (1 + 1e-9) / (size - 1)
                    target = np.append(np.full(size - 1, rare), 1 - (size - 1) * rare)
                    draft = np.append(np.full(size - 1, 1 / (size - 1)), 0.0)
                    out = output_distribution(rule(budget_), draft=draft, target=target)
                    gaps.append(float(kl(out, target)) - scale * worst(size, budget_))
            return max(map(abs, gaps)) < 1e-6

        yield Step(
            f"Random pairs under {rule.__name__}: neither KL nor the distance exceeds its bound.",
            r"\mathrm{KL} \le \Gamma_V(\delta), \qquad \mathrm{TV} \le 1 - e^{-\Gamma_V(\delta)} \ "
            r"(V \ge 3)",
            below,
            "evidence",
            uses=(name, "distance-sharp"),
        )
        yield Step(
            "The extremal pair reaches it.",
            r"|\mathrm{KL} - \Gamma_V(\delta)| < 10^{-6}",
            reached,
            "evidence",
        )
