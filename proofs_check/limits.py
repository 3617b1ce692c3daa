"""Edges: no budget, no temperature, no probability, certainty; and a candidate as one logit.

What the code does at the edges is enumerated with the code itself; the rest is algebra.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cactus_theory import Cactus, CactusExact
from proofs_check.budget import binary_kl, second_order_boost
from proofs_check.claims import Finding, Step, claim
from proofs_check.symbolic import SYMPY, UNCAPPED, at_least, equal, sp, vanishes

q, p, g, a, b, x, delta = sp.symbols("q p g a b x delta", positive=True)


@claim(
    name="zero-budget",
    source="section 7",
    statement="a budget of 0 is speculative sampling: the second-order rule gives g = q, and so "
    "does the exact one, by Pinsker's inequality for two points",
    tex=r"\delta = 0 \Rightarrow g = q; \qquad \mathrm{KL}(g\|q) \ge 2 (g-q)^2",
    false=({"budget": sp.Rational(1, 100)}, {"pinsker": 5}),
)
def zero_budget(budget: Any = 0, pinsker: int = 4) -> Iterator[Step]:
    yield equal(
        "Second-order rule: the code's own formula.",
        (r"g_{\text{code}}(q, 0)", second_order_boost(q, budget, xp=UNCAPPED)),
        q,
    )
    start = binary_kl(g, q).subs(g, q), sp.diff(binary_kl(g, q), g).subs(g, q)
    yield Step(
        "Exact rule: KL of two points is 0 with slope 0 at g = q.",
        r"\mathrm{KL}(q\|q) = 0, \qquad \partial_g \mathrm{KL}(g\|q)|_{g=q} = 0",
        lambda: all(vanishes(value) for value in start),
    )
    yield equal(
        "Its curvature is at least 4, that of $2(g-q)^2$. So it is at least $2(g-q)^2$, and is 0 "
        "for g = q only.",
        (r"\partial_g^2 \mathrm{KL}", sp.diff(binary_kl(g, q), g, 2)),
        pinsker + (1 - 2 * g) ** 2 / (g * (1 - g)),
        assumes="two functions that agree with their slopes at q are ordered as their curvatures",
    )


@claim(
    name="edges-of-the-code",
    source="section 7, in code",
    statement="in the code g(0) = 0, g(1) = 1 and the factor at q = 1 is 1 for both rules at every "
    "budget of a list, and g = q with factor 1 at delta = 0: one-hot targets are matched exactly",
    tex=r"g(0) = 0,\quad g(1) = 1,\quad \delta = 0 \Rightarrow g = q,\ c = 1",
    false=({"certain": 0.5}, {"none": 1e-9}),
)
def edges_of_the_code(certain: float = 1.0, none: float = 0.0) -> Iterator[Step]:
    inner = np.array([0.0, 5e-324, 1e-300, 1e-9, 0.1, 0.5, 0.9, 1 - 2.0**-53, 1.0])
    for rule in (Cactus, CactusExact):

        def edges(rule: Any = rule) -> Finding:
            for budget in (0.0, 1e-12, 0.01, 0.75, 1.0, 10.0, 50.0):
                made, ends = rule(budget), np.array([none, certain])
                if not ((made.boost(ends) == [0, 1]).all() and made.shrink(ends)[1] == 1):
                    return Finding("fails", f"{made}")
            return Finding("holds", "7 budgets")

        def still(rule: Any = rule) -> bool:
            made = rule(0.0)
            return bool((made.boost(inner) == inner).all() and (made.shrink(inner) == 1).all())

        yield Step(
            f"{rule.__name__} at q = 0 and q = 1, seven budgets, floats compared with ==.",
            r"g(0) = 0, \qquad g(1) = 1, \qquad c(1) = 1",
            edges,
            "exhaustive",
        )
        yield Step(
            f"{rule.__name__} with no budget, at nine probabilities from the least float to 1.",
            r"\delta = 0: \quad g(q) = q, \quad c(q) = 1",
            still,
            "exhaustive",
        )


@claim(
    name="zero-temperature",
    source="section 7",
    statement="as the target becomes one-hot both rules become exact matching: g -> 0 as q -> 0, "
    "and g = 1 for q >= 1/(1 + 2 delta) (second order) or q >= exp(-delta) (exact)",
    tex=r"\lim_{q \to 0} g = 0, \qquad g = 1 \text{ for } q \ge \tfrac{1}{1+2\delta} "
    r"\text{ or } q \ge e^{-\delta}",
    false=({"edge": 1 / (1 + delta)},),
)
def zero_temperature(edge: Any = None) -> Iterator[Step]:
    cap = 1 / (1 + 2 * delta) if edge is None else edge
    uncapped = second_order_boost(q, delta, xp=UNCAPPED)
    yield Step(
        "An improbable token gains nothing: second-order rule, the code's own formula.",
        r"\lim_{q \to 0} g_{\text{code}} = 0",
        lambda: sp.limit(uncapped, q, 0, "+") == 0,
    )
    yield Step(
        "Exact rule: its upper bound.",
        r"\lim_{q \to 0} \frac{\delta + \log 2}{\log(1/q)} = 0",
        lambda: sp.limit((delta + sp.log(2)) / sp.log(1 / q), q, 0, "+") == 0,
        uses=("exact-optimum-small-q",),
    )
    yield Step(
        "A probable token is certain: the uncapped formula reaches 1 at $q = 1/(1+2\\delta)$, "
        "stays above it by sharp-kl-bound, and the code gives 1 at q = 1. The exact rule does "
        "from $q = e^{-\\delta}$ on.",
        r"g_{\text{uncapped}}\left(\tfrac{1}{1+2\delta}\right) = 1, \qquad g_{\text{code}}(1) = 1",
        lambda: (
            vanishes(uncapped.subs(q, cap) - 1)
            and second_order_boost(sp.Integer(1), delta, xp=SYMPY) == 1
        ),
        uses=("sharp-kl-bound", "certainty"),
    )


@claim(
    name="one-logit",
    source="ours, section 5",
    statement="adding logit(g) - logit(q) to the logit of n turns softmax = q into the candidate h",
    tex=r"\ell_n \mathrel{+}= \log\tfrac{g}{1-g} - \log\tfrac{q}{1-q} \ \Rightarrow\ "
    r"\mathrm{softmax}(\ell)_n = g,\ \mathrm{softmax}(\ell)_i = \tfrac{1-g}{1-q}\,q_i",
    false=({"shift": g / q},),
)
def one_logit(shift: Any = None) -> Iterator[Step]:
    # e^logit up to a common factor: n has q, another token has x, the others together 1 - q
    factor = g / (1 - g) * (1 - q) / q if shift is None else shift
    total = q * factor + (1 - q)
    yield equal(
        "Adding to the logit multiplies the weight q of n by $F = \\frac{g(1-q)}{(1-g)q}$. The "
        "other weights keep their sum, 1-q. After normalisation n has g.",
        (r"\frac{qF}{qF + 1 - q}", q * factor / total),
        g,
        assumes="$0 < q < 1$ and $0 < g < 1$",
    )
    yield equal(
        "Another token, of probability x, is divided by the same total.",
        (r"\frac{x}{qF + 1 - q}", x / total),
        (r"\frac{1-g}{1-q}\,x", (1 - g) / (1 - q) * x),
    )


@claim(
    name="no-root-needed",
    source="Theorem 2, in code",
    statement="a token with p log(p/q) <= delta is accepted whole by the exact rule: KL(p||q) is "
    "less still, so no root need be found",
    tex=r"p \ge q:\quad \mathrm{KL}(p\|q) \le p \log\tfrac pq",
    false=({"times": 2},),
)
def no_root_needed(times: int = 1) -> Iterator[Step]:
    inside = {p: 1 / (1 + a), q: 1 / (1 + a + b)}
    yield equal(
        "The term of the token exceeds KL of the two points by one logarithm.",
        (r"p\log\frac pq - \mathrm{KL}(p\|q)", times * p * sp.log(p / q) - binary_kl(p, q)),
        (r"(1-p)\log\frac{1-q}{1-p}", (1 - p) * sp.log((1 - q) / (1 - p))),
        where=inside,
        assumes="$0 < q \\le p < 1$",
    )
    yield at_least(
        "It is not negative, as its argument is at least 1. So g = p keeps the budget.",
        (1 - q) / (1 - p),
        1,
        where=inside,
    )
