"""Edges: no budget, no temperature, no probability, certainty; and a candidate as one logit.

What the code does at the edges is enumerated with the code itself; the rest is algebra.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cactus_theory import Cactus, CactusExact
from cactus_theory.rules.cactus import second_order_boost
from proofs_check.budget import binary_kl
from proofs_check.claims import Finding, claim, conclude
from proofs_check.symbolic import SYMPY, UNCAPPED, nonnegative, sp, vanishes

q, g, a, b, x, delta = sp.symbols("q g a b x delta", positive=True)


@claim(
    name="zero-budget",
    theorem="section 7",
    statement="delta = 0 is speculative sampling: the second-order rule gives g = q, and so does "
    "the exact one since KL(g||q) > 0 for g > q",
    tex=r"\delta = 0 \Rightarrow g = q; \qquad \mathrm{KL}(g\|q) \ge \tfrac12 (g-q)^2 \cdot 4 > 0",
    kind="symbolic",
    assumes=("two functions that agree with their slopes at q are ordered as their curvatures",),
    false=({"budget": sp.Rational(1, 100)}, {"pinsker": 5}),
)
def zero_budget(budget: Any = 0, pinsker: int = 4) -> Finding:
    boosted = second_order_boost(q, budget, xp=UNCAPPED)
    curvature = sp.diff(binary_kl(g, q), g, 2)
    square = (1 - 2 * g) ** 2 / (g * (1 - g))
    start = binary_kl(g, q).subs(g, q), sp.diff(binary_kl(g, q), g).subs(g, q)
    return conclude(
        "the code's formula at delta = 0; Pinsker's inequality from the curvature 1/(g(1-g)) >= 4",
        ("second order", vanishes(boosted - q)),
        ("flat at q", all(vanishes(value) for value in start)),
        ("curvature >= 4", vanishes(curvature - pinsker - square)),
    )


@claim(
    name="edges-of-the-code",
    theorem="section 7",
    statement="in the code g(0) = 0, g(1) = 1 and shrink(1) = 1 for both rules at every budget of "
    "a list, and g = q with shrink 1 at delta = 0: one-hot targets are matched exactly",
    tex=r"g(0) = 0,\quad g(1) = 1,\quad \delta = 0 \Rightarrow g = q,\ c = 1",
    kind="exhaustive",
    false=({"certain": 0.5}, {"none": 1e-9}),
)
def edges_of_the_code(certain: float = 1.0, none: float = 0.0) -> Finding:
    steps = []
    inner = np.array([0.0, 5e-324, 1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 2.0**-53, 1.0])
    for rule in (Cactus, CactusExact):
        for delta_ in (0.0, 1e-12, 0.01, 0.75, 1.0, 10.0, 50.0):
            made = rule(delta_)
            edge = made.boost(np.array([none, certain])), made.shrink(np.array([none, certain]))
            steps.append((f"{made}", (edge[0] == [0, 1]).all() and edge[1][1] == 1))
        still = rule(0.0)
        same = (still.boost(inner) == inner).all() and (still.shrink(inner) == 1).all()
        steps.append((f"{still} is the target", bool(same)))
    return conclude("floats compared with ==", *steps)


@claim(
    name="zero-temperature",
    theorem="section 7",
    statement="as the target becomes one-hot both rules become exact matching: g -> 0 as q -> 0, "
    "and g = 1 for q >= 1/(1 + 2 delta) (second order) or q >= exp(-delta) (exact)",
    tex=r"\lim_{q \to 0} g = 0, \qquad g = 1 \text{ for } q \ge \tfrac{1}{1+2\delta} "
    r"\text{ or } q \ge e^{-\delta}",
    kind="symbolic",
    depends=("sharp-kl-bound", "exact-optimum-small-q", "certainty"),
    false=({"edge": 1 / (1 + delta)},),
)
def zero_temperature(edge: Any = None) -> Finding:
    cap = 1 / (1 + 2 * delta) if edge is None else edge
    uncapped = second_order_boost(q, delta, xp=UNCAPPED)
    capped = second_order_boost(sp.Integer(1), delta, xp=SYMPY)
    return conclude(
        "limits of the code's own formula",
        ("q -> 0", sp.limit(uncapped, q, 0, "+") == 0),
        ("q -> 0, exact", sp.limit((delta + sp.log(2)) / sp.log(1 / q), q, 0, "+") == 0),
        ("q = 1", capped == 1),
        ("cap", vanishes(uncapped.subs(q, cap) - 1)),
    )


@claim(
    name="one-logit",
    theorem="ours, section 5",
    statement="adding logit(g) - logit(q) to the logit of n turns softmax = q into the candidate h",
    tex=r"\ell_n \mathrel{+}= \log\tfrac{g}{1-g} - \log\tfrac{q}{1-q} \ \Rightarrow\ "
    r"\mathrm{softmax}(\ell)_n = g,\ \mathrm{softmax}(\ell)_i = \tfrac{1-g}{1-q}\,q_i",
    kind="symbolic",
    assumes=("0 < q < 1, 0 < g < 1",),
    false=({"shift": g / q},),
)
def one_logit(shift: Any = None) -> Finding:
    # e^logit up to a common factor: n has q, another token has x, the others together 1 - q
    factor = g / (1 - g) * (1 - q) / q if shift is None else shift
    total = q * factor + (1 - q)
    return conclude(
        "one weight multiplied, then normalised",
        ("drafted token", vanishes(q * factor / total - g)),
        ("another token", vanishes(x / total - (1 - g) / (1 - q) * x)),
    )


@claim(
    name="no-root-needed",
    theorem="Theorem 2, in code",
    statement="a token with p log(p/q) <= delta is accepted whole by the exact rule: KL(p||q) is "
    "less still, so no root need be found",
    tex=r"p \ge q:\quad \mathrm{KL}(p\|q) \le p \log\tfrac pq",
    kind="symbolic",
    assumes=("0 < q <= p < 1",),
    depends=("tangent-of-log",),
    false=({"times": 2},),
)
def no_root_needed(times: int = 1) -> Finding:
    p = sp.Symbol("p", positive=True)
    rest = times * p * sp.log(p / q) - binary_kl(p, q)
    # (1-p) log((1-q)/(1-p)) >= 0 as its argument is at least 1
    inside = {p: 1 / (1 + a), q: 1 / (1 + a + b)}
    more = ((1 - q) / (1 - p) - 1).subs(inside)
    return conclude(
        "the other term of KL is negative",
        ("difference", vanishes((rest - (1 - p) * sp.log((1 - q) / (1 - p))).subs(inside))),
        ("argument >= 1", nonnegative(sp.cancel(more))),
    )
