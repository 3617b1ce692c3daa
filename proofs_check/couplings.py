"""What any verification scheme can accept: couplings of the draft with what is emitted.

A scheme draws X from the draft distribution p and emits Y of distribution `out`; an accepted token
has X = Y.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations, product
from typing import Any

from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import (
    Distribution,
    distributions,
    emitted,
    overlap,
    stretched,
    total_variation,
)
from proofs_check.symbolic import equal, nonnegative, sp, vanishes

a, b, c = sp.symbols("a b c", positive=True)
HALF = Fraction(1, 2)


@claim(
    name="theorem-1",
    source="Theorem 1",
    statement="with one fixed candidate h the emitted distribution is h, the acceptance is "
    "1 - TV(p, h), and no coupling of p and h accepts more",
    tex=r"\min(p,h) + \frac{\sum[p-h]_+}{\sum[h-p]_+}[h-p]_+ = h,\quad "
    r"\mathbb P(X=Y) \le \sum_x \min(p,h) = 1 - \mathrm{TV}(p,h)",
    false=({"residual": 2}, {"kept": sp.Rational(9, 10)}),
)
def theorem_1(residual: Any = 1, kept: Any = 1) -> Iterator[Step]:
    # p, h, min(p, h), [h - p]_+, |p - h| in both cases
    cases = ((a, a + b, a, b, b), (a + b, a, a, sp.S.Zero, b))
    yield Step(
        "What is accepted of a token, min(p, h), and what is recovered make up h, in both cases "
        "$p \\le h$ and $p > h$. The two sums cancel: p and h both sum to 1.",
        r"\min(p, h) + [h - p]_+ = h",
        lambda: all(vanishes(kept * m + residual * r - h) for _, h, m, r, _ in cases),
        assumes="$\\sum p = \\sum h = 1$, hence $\\sum [p-h]_+ = \\sum [h-p]_+ = \\mathrm{TV}$",
    )
    yield Step(
        "Add half the distance to the minimum, token by token; the right side sums to 1.",
        r"\min(p, h) + \tfrac12 |p - h| = \tfrac12 (p + h)",
        lambda: all(vanishes(kept * m + d / 2 - (p + h) / 2) for p, h, m, _, d in cases),
    )
    yield Step(
        "No coupling accepts more: the probability that both tokens are x is at most each of "
        "their own probabilities of x.",
        r"\mathbb P(X = Y = x) \le \min(p, h), \quad \min(p, h) \le p, \quad \min(p, h) \le h",
        lambda: all(nonnegative(p - m) and nonnegative(h - m) for p, h, m, _, _ in cases),
    )


@claim(
    name="gain-equals-cost",
    source="ours, section 3",
    statement="the acceptance is exactly that of speculative sampling plus TV(out, q), and no "
    "scheme accepts more than sum min(p, q) + TV(its output, q)",
    tex=r"\sum_x \min(p,g) = \sum_x \min(p,q) + \mathrm{TV}(\mathrm{out},q); \qquad "
    r"\text{any scheme: } \mathrm{acc} \le \sum_x \min(p,q) + \mathrm{TV}(\mathrm{out}',q)",
    false=({"price": sp.Rational(1, 2)},),
)
def gain_equals_cost(price: Any = 1) -> Iterator[Step]:
    ladder = (a, a + b, a + b + c)

    def positive_part(difference: Any) -> Any:
        return difference if nonnegative(difference) else 0

    def least(x: Any, y: Any) -> Any:
        return x if nonnegative(y - x) else y

    def every_order() -> bool:
        return all(
            nonnegative(least(p, q) + price * positive_part(out - q) - least(p, out))
            for p, q, out in permutations(ladder)
        )

    yield Step(
        "Any scheme: an accepted token is both drafted and emitted, so the accepted mass of a "
        "token is at most min(p, out'). In each of the six orders of p, q and out' that is bounded "
        "as follows. The last term sums to the total variation.",
        r"\min(p, \mathrm{out}') \le \min(p, q) + [\mathrm{out}' - q]_+",
        every_order,
    )
    over = (a + b) - a  # out - q, where p > q
    yield equal(
        "A rule that boosts, where $p > q$: all that is accepted is emitted, "
        "$\\mathrm{out} = \\min(p, g) \\ge q$, so the bound is attained.",
        (r"\min(p,g)", a + b),
        (r"\min(p, q) + [\mathrm{out} - q]_+", a + price * over),
        uses=("ordering",),
        tex=r"\min(p, g) = q + (\mathrm{out} - q) = \min(p, q) + [\mathrm{out} - q]_+",
    )
    yield Step(
        "Where $p \\le q$ every draft is accepted, as $g \\ge q \\ge p$, and "
        "$\\mathrm{out} \\le q$ adds nothing to the distance. Sum over the tokens.",
        r"\min(p, g) = p = \min(p, q), \qquad [\mathrm{out} - q]_+ = 0",
        lambda: least(a, a + b + c) == least(a, a + b) and positive_part(a - (a + b)) == 0,
        uses=("ordering",),
    )


def coupling(draft: Distribution, law: Distribution) -> dict[tuple[int, int], Fraction]:
    """The coupling of Theorem 1: keep min(p, out), and pair what is left in proportion."""
    joint = {(x, x): min(s, t) for x, (s, t) in enumerate(zip(draft, law, strict=True))}
    missing = total_variation(draft, law)
    for x, y in product(range(len(draft)), repeat=2):
        over, under = max(draft[x] - law[x], 0), max(law[y] - draft[y], 0)
        if over and under:
            joint[x, y] = joint.get((x, y), Fraction(0)) + over * under / missing
    return joint


@claim(
    name="schemes-enumerated",
    source="Theorem 1; ours, section 3",
    statement="linear programming, both sides: for all drafts, targets and outputs on 3 tokens in "
    "quarters a coupling accepts sum min(p, out), an event shows that none accepts more, and that "
    "is at most sum min(p, q) + TV(out, q)",
    tex=r"\max_{\pi \in \Pi(p, o)} \pi(X=Y) = \min_A\, [o(A) + p(A^c)] = \sum\min(p,o) "
    r"\le \sum\min(p,q) + \mathrm{TV}(o, q)",
    false=({"price": Fraction(3, 4)}, {"events": 2}),
)
def schemes_enumerated(price: Fraction = Fraction(1), events: int = 4) -> Iterator[Step]:
    tokens = range(3)
    pairs = list(product(distributions(3, 4), repeat=2))
    subsets = [set(chosen) for size in range(events) for chosen in combinations(tokens, size)]

    def primal() -> Finding:
        for draft, law in pairs:
            joint = coupling(draft, law)
            rows = tuple(sum(joint.get((x, y), Fraction(0)) for y in tokens) for x in tokens)
            columns = tuple(sum(joint.get((x, y), Fraction(0)) for x in tokens) for y in tokens)
            same = sum(joint.get((x, x), Fraction(0)) for x in tokens)
            if (rows, columns, same) != (draft, law, overlap(draft, law)):
                return Finding("fails", f"draft {draft}, output {law}")
        return Finding("holds", f"{len(pairs)} pairs")

    def dual() -> Finding:
        for draft, law in pairs:
            bounds = (sum((law if x in A else draft)[x] for x in tokens) for A in subsets)
            if min(bounds) != overlap(draft, law):
                return Finding("fails", f"draft {draft}, output {law}")
        return Finding("holds")

    def priced() -> Finding:
        for (draft, law), target in product(pairs, distributions(3, 4)):
            limit = overlap(draft, target) + price * total_variation(law, target)
            if overlap(draft, law) > limit:
                return Finding("fails", f"draft {draft}, target {target}, output {law}")
        return Finding("holds", f"{len(pairs) * 15} triples")

    yield Step(
        "The coupling of Theorem 1 has the right marginals and accepts sum min(p, out).",
        r"\pi \in \Pi(p, o), \qquad \pi(X = Y) = \sum \min(p, o)",
        primal,
        "exhaustive",
        uses=("theorem-1",),
    )
    yield Step(
        "For every event A, $\\mathbb P(X = Y) \\le o(A) + p(A^c)$. The best event gives the same "
        "number, so no coupling accepts more.",
        r"\min_A\, [o(A) + p(A^c)] = \sum \min(p, o)",
        dual,
        "exhaustive",
    )
    yield Step(
        "That number is at most the acceptance of speculative sampling plus the distance.",
        r"\sum \min(p, o) \le \sum \min(p, q) + \mathrm{TV}(o, q)",
        priced,
        "exhaustive",
        uses=("gain-equals-cost",),
    )


@claim(
    name="sorted-formula",
    source="ours, section 3",
    statement="off S, out = p + q A(p/q) - p B(p/q) with A and B sums over the rejected tokens "
    "whose factor c exceeds p/q: all pairs of distributions on 3 tokens in quarters, at two "
    "levels of g",
    tex=r"\mathrm{out} = p + q A(t) - p B(t),\ t = \tfrac pq,\quad A = \sum_{c_n > t} "
    r"\tfrac{w_n c_n}{Z_n},\ B = \sum_{c_n > t} \tfrac{w_n}{Z_n}",
    false=({"offset": Fraction(1, 3)},),
)
def sorted_formula(offset: Fraction = Fraction(0)) -> Iterator[Step]:
    t, q, weight = sp.symbols("t q w", positive=True)
    p = q * t
    yield equal(
        "Off S, a rejected token n adds $\\frac{w_n}{Z_n}[c_n q - p]_+$, which is 0 unless "
        "$c_n > t$. There it is linear in q and p, so all tokens share the sums of the "
        "coefficients. Here $w_n = [p(n) - g(n)]_+$ and $Z_n = \\sum [h^{(n)} - p]_+$.",
        (r"\frac{w_n}{Z_n} (c_n q - p)", weight * (c * q - p)),
        (r"q\,\frac{w_n c_n}{Z_n} - p\,\frac{w_n}{Z_n}", q * weight * c - p * weight),
        uses=("ordering",),
    )
    yield Step(
        "The formula agrees with the definition, as fractions.",
        r"p + q A(t) - p B(t) = p + \sum_n \frac{w_n}{Z_n} [c_n q - p]_+",
        lambda: _sorted_agrees(offset),
        "exhaustive",
    )


def _sorted_agrees(offset: Fraction) -> Finding:
    cases = 0
    pairs = list(product(distributions(3, 4), repeat=2))
    for share, (draft, target) in product((Fraction(1, 3), HALF), pairs):
        law = emitted(draft, target, stretched(target, share))
        for x in range(3):
            if draft[x] > target[x] or not target[x]:
                continue
            up = down = Fraction(0)
            for n, g in enumerate(stretched(target, share)):
                weight, shrink = max(draft[n] - g, Fraction(0)), 1 - share * (target[n] > 0)
                if weight and shrink > draft[x] / target[x] + offset:
                    h = [shrink * y if i != n else g for i, y in enumerate(target)]
                    normal = total_variation(draft, tuple(h))
                    up, down = up + weight * shrink / normal, down + weight / normal
            if law[x] != draft[x] + target[x] * up - draft[x] * down:
                return Finding("fails", f"draft {draft}, target {target}, token {x}")
            cases += 1
    return Finding("holds" if cases > 500 else "fails", f"{cases} tokens off S")
