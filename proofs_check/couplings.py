"""What any verification scheme can accept: couplings of the draft with the law that is emitted.

A scheme draws X from the draft law p and emits Y with law `out`; an accepted token has X = Y.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from typing import Any

from proofs_check.claims import Finding, claim, conclude
from proofs_check.rational import Law, emitted, laws, overlap, stretched, total_variation
from proofs_check.symbolic import nonnegative, sp, vanishes

a, b, c = sp.symbols("a b c", positive=True)
HALF = Fraction(1, 2)


@claim(
    name="theorem-1",
    theorem="Theorem 1",
    statement="with one fixed candidate h the emitted law is h, the acceptance is 1 - TV(p, h), "
    "and no coupling of p and h accepts more",
    tex=r"\min(p,h) + \frac{\sum[p-h]_+}{\sum[h-p]_+}[h-p]_+ = h,\quad "
    r"\mathbb P(X=Y) \le \sum_x \min(p,h) = 1 - \mathrm{TV}(p,h)",
    kind="symbolic",
    assumes=("sum p = sum h = 1, hence sum [p-h]_+ = sum [h-p]_+ = TV",),
    false=({"residual": 2}, {"kept": sp.Rational(9, 10)}),
)
def theorem_1(residual: Any = 1, kept: Any = 1) -> Finding:
    steps = []
    for case, (p, h) in {"p <= h": (a, a + b), "p > h": (a + b, a)}.items():
        both = kept * (a if case == "p <= h" else h)
        more = residual * (h - p if case == "p <= h" else 0)
        variation = sp.Rational(1, 2) * (b if case == "p <= h" else p - h)
        steps += [
            (f"emitted, {case}", vanishes(both + more - h)),
            # |p-h|/2 + min(p,h) = (p+h)/2, which sums to 1
            (f"acceptance, {case}", vanishes(variation + both - (p + h) / 2)),
            # the diagonal of a coupling is below both marginals
            (f"coupling, {case}", nonnegative(p - both) and nonnegative(h - both)),
        ]
    return conclude("one token at a time, p <= h and p > h", *steps)


@claim(
    name="gain-equals-cost",
    theorem="ours, section 3",
    statement="acceptance = that of speculative sampling + TV(out, q), exactly; and no scheme "
    "whatever accepts more than sum min(p, q) + TV(its output, q)",
    tex=r"\sum_x \min(p,g) = \sum_x \min(p,q) + \mathrm{TV}(\mathrm{out},q); \qquad "
    r"\text{any scheme: } \mathrm{acc} \le \sum_x \min(p,q) + \mathrm{TV}(\mathrm{out}',q)",
    kind="symbolic",
    assumes=("an accepted token is both drafted and emitted: accepted mass <= min(p, out)",),
    depends=("ordering",),
    false=({"price": sp.Rational(1, 2)},),
)
def gain_equals_cost(price: Any = 1) -> Finding:
    def positive_part(low: Any, high: Any) -> Any:
        return high - low if nonnegative(high - low) else 0

    steps = []
    ladder = (a, a + b, a + b + c)
    for p, q, out in [(ladder[i], ladder[j], ladder[k]) for i, j, k in _orders()]:
        least = p if nonnegative(out - p) else out
        shared = p if nonnegative(q - p) else q
        bound = shared + price * positive_part(q, out)
        steps.append((f"min(p, out), p={p}, q={q}, out={out}", nonnegative(bound - least)))
    # where p > q, out = min(p, g) >= q; elsewhere g >= q >= p accepts all and out <= q
    over = (a + b) - a
    steps.append(("gain = cost, p > q", vanishes((a + b) - (a + price * over))))
    return conclude("all orders of p, q and out; equality under the ordering", *steps)


def _orders() -> list[tuple[int, int, int]]:
    return [(i, j, k) for i, j, k in product(range(3), repeat=3) if len({i, j, k}) == 3]


def coupling(draft: Law, law: Law) -> dict[tuple[int, int], Fraction]:
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
    theorem="Theorem 1; ours, section 3",
    statement="linear programming, both sides: for all drafts, targets and outputs on 3 tokens in "
    "quarters a coupling accepts sum min(p, out), an event shows that none accepts more, and that "
    "is at most sum min(p, q) + TV(out, q)",
    tex=r"\max_{\pi \in \Pi(p, o)} \pi(X=Y) = \min_A\, [o(A) + p(A^c)] = \sum\min(p,o) "
    r"\le \sum\min(p,q) + \mathrm{TV}(o, q)",
    kind="exhaustive",
    depends=("theorem-1", "gain-equals-cost"),
    false=({"price": Fraction(3, 4)}, {"events": 2}),
)
def schemes_enumerated(price: Fraction = Fraction(1), events: int = 4) -> Finding:
    cases = 0
    tokens = range(3)
    for draft, law in product(laws(3, 4), repeat=2):
        joint = coupling(draft, law)
        rows = tuple(sum(joint.get((x, y), Fraction(0)) for y in tokens) for x in tokens)
        columns = tuple(sum(joint.get((x, y), Fraction(0)) for x in tokens) for y in tokens)
        primal = sum(joint.get((x, x), Fraction(0)) for x in tokens)
        subsets = [set(chosen) for size in range(events) for chosen in combinations(tokens, size)]
        dual = min(
            sum((law[x] if x in chosen else draft[x] for x in tokens), Fraction(0))
            for chosen in subsets
        )
        if rows != draft or columns != law or primal != dual or primal != overlap(draft, law):
            return Finding("fails", f"draft {draft}, output {law}")
        for target in laws(3, 4):
            limit = overlap(draft, target) + price * total_variation(law, target)
            if primal > limit:
                return Finding("fails", f"draft {draft}, target {target}, output {law}")
            cases += 1
    return Finding("holds", f"{cases} triples")


@claim(
    name="sorted-formula",
    theorem="ours, section 3",
    statement="off S, out = p + q A(p/q) - p B(p/q) with A and B sums over the rejected tokens "
    "whose shrink exceeds p/q: all pairs of laws on 3 tokens in quarters, at two boosts",
    tex=r"\mathrm{out} = p + q A(t) - p B(t),\ t = \tfrac pq,\quad A = \sum_{c_n > t} "
    r"\tfrac{w_n c_n}{Z_n},\ B = \sum_{c_n > t} \tfrac{w_n}{Z_n}",
    kind="exhaustive",
    depends=("ordering",),
    false=({"offset": Fraction(1, 3)},),
)
def sorted_formula(offset: Fraction = Fraction(0)) -> Finding:
    cases = 0
    pairs = list(product(laws(3, 4), repeat=2))
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
    return conclude(f"{cases} tokens off S", ("enough cases", cases > 500))
