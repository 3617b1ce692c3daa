"""Drafts of one position drawn without replacement, verifiers in use, and trees of drafts.

What is known of them; the package runs none of it. S is the set of drafted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from proofs_check.claims import Finding, Step, claim
from proofs_check.drafts import DRAFTS, ONE, ZERO, best_by_sets, drawn_sets, mass, most_kept, sets
from proofs_check.rational import Distribution, distributions, overlap
from proofs_check.symbolic import at_least, sp

QUARTER = Fraction(1, 4)


def drawn_apart(draft: Distribution, k: int) -> dict[frozenset[int], Fraction]:
    """The chance of every set of k tokens drawn one after another without replacement."""
    found: dict[frozenset[int], Fraction] = {}

    def draw(group: frozenset[int], chance: Fraction) -> None:
        left = [x for x in range(len(draft)) if x not in group and draft[x]]
        if len(group) == k or not left:
            found[group] = found.get(group, ZERO) + chance
            return
        rest = sum(draft[x] for x in left)
        for x in left:
            draw(group | {x}, chance * draft[x] / rest)

    draw(frozenset(), ONE)
    return found


def within(drawn: dict[frozenset[int], Fraction], tokens: frozenset[int]) -> Fraction:
    """The chance that all drafts lie in a set."""
    return sum((chance for group, chance in drawn.items() if group <= tokens), ZERO)


def best_of(drawn: dict[frozenset[int], Fraction], law: Distribution) -> Fraction:
    """1 - max_H [P(S in H) - law(H)]."""
    return 1 - max(within(drawn, h) - mass(law, h) for h in sets(len(law)))


@claim(
    name="without-replacement-acceptance",
    source="Hu et al. 2025",
    statement="drafts drawn without replacement accept at most 1 - max_H [P(S in H) - o(H)], which "
    "is reached, and at least as much as independent drafts, whatever is emitted",
    tex=r"\mathrm{acc}(o) = 1 - \max_H\,[\mathbb P(S \subseteq H) - o(H)], \qquad "
    r"\mathbb P(S \subseteq H) \le p(H)^k",
    false=({"more": QUARTER}, {"taken": -1}),
)
def without_replacement_acceptance(more: Fraction = ZERO, taken: int = 1) -> Iterator[Step]:
    inside, drawn, outside = sp.symbols("inside drawn outside", positive=True)
    total = inside + drawn + outside  # 1, in parts: of H not drawn yet, of H drawn, outside H
    yield at_least(
        "Independent drafts all lie in H with chance $p(H)^k$. Without replacement, once drafts of "
        "mass m in H are taken, the next lies in H with no larger chance. So P(S in H) is at most "
        "$p(H)^k$, and every bound of `drafts-acceptance` is at least as large.",
        (r"p(H)", (inside + drawn) / total),
        (r"\frac{p(H) - m}{1 - m}", (inside + drawn * (1 - taken)) / (total - drawn * taken)),
    )

    def reached() -> Finding:
        cases = 0
        for k, (draft, law) in product(DRAFTS, product(distributions(3, 4), repeat=2)):
            apart = drawn_apart(draft, k)
            best = best_of(apart, law)
            if most_kept(apart, law) != best or best < best_by_sets(draft, law, k) + more:
                return Finding("fails", f"k = {k}, draft {draft}, output {law}")
            cases += 1
        return Finding("holds", f"{cases} plans")

    yield Step(
        "The bound is reached and no smaller than that of independent drafts: all drafts and "
        "outputs on 3 tokens in quarters, k = 2, 3, as fractions.",
        r"\max_\pi \pi(Y \in S) = \min_H\,[o(H) + 1 - \mathbb P(S \subseteq H)]",
        reached,
        "exhaustive",
        uses=("drafts-acceptance",),
    )


@claim(
    name="without-replacement-sorted",
    source="Hu et al. 2025",
    statement="without replacement too, the best set H holds the tokens of largest p/q: all drafts "
    "and targets on 4 tokens in quarters and on 3 in sixths, k = 2, 3",
    tex=r"\max_H\,[\mathbb P(S \subseteq H) - q(H)] = \max_j\,[\mathbb P(S \subseteq H_j) - "
    r"q(H_j)]",
    false=({"sign": -1},),
)
def without_replacement_sorted(sign: int = 1) -> Iterator[Step]:
    def sorted_best() -> Finding:
        cases = 0
        for size, parts in ((4, 4), (3, 6)):
            for k, (draft, target) in product(
                DRAFTS, product(distributions(size, parts), repeat=2)
            ):
                apart = drawn_apart(draft, k)
                order = sorted(
                    range(size),
                    key=lambda x: -sign * draft[x] / target[x] if target[x] else -sign * 10**9,
                )
                starts = [frozenset(order[:n]) for n in range(size + 1)]
                best = max(within(apart, h) - mass(target, h) for h in starts)
                if 1 - best != best_of(apart, target):
                    return Finding("fails", f"k = {k}, draft {draft}, target {target}")
                cases += 1
        return Finding("holds", f"{cases} pairs")

    yield Step(
        "The maximum over all sets, and over the starts of the order of p/q, as fractions.",
        r"H_j = \{\text{the } j \text{ tokens of largest } p/q\}",
        sorted_best,
        "exhaustive",
    )


def recursive(draft: Distribution, target: Distribution, k: int, *, replace: bool) -> Fraction:
    """What rejection repeated over the drafts accepts: each is judged for the last residual."""
    rest = tuple(max(q - p, ZERO) for p, q in zip(draft, target, strict=True))
    if k == 0 or not sum(rest):
        return ONE if k else ZERO
    after = tuple(x / sum(rest) for x in rest)
    rate = overlap(draft, target)
    for x, (p, q) in enumerate(zip(draft, target, strict=True)):
        if p > q and (replace or p < 1):
            others = draft
            if not replace:
                others = tuple((y != x) * z / (1 - p) for y, z in enumerate(draft))
            rate += (p - q) * recursive(others, after, k - 1, replace=replace)
    return rate


@claim(
    name="recursive-rejection-optimal",
    source="ours, section 12",
    statement="recursive rejection, as SpecInfer verifies several drafts, has the largest "
    "acceptance of all verifiers that emit q",
    tex=r"\mathrm{acc}_{\mathrm{recursive}} = 1 - \max_H\,[\mathbb P(S \subseteq H) - q(H)]",
    expected="refuted",
    false=({"k": 1},),
)
def recursive_rejection_optimal(k: int = 2) -> Iterator[Step]:
    def below(draft: Distribution, target: Distribution, replace: bool) -> Finding:
        drawn = drawn_sets(draft, k) if replace else drawn_apart(draft, k)
        best, found = best_of(drawn, target), recursive(draft, target, k, replace=replace)
        return Finding("holds" if found < best else "fails", f"{found} against {best}")

    yield Step(
        "Two independent drafts of p = (3/4, 1/4), for q = (1/2, 1/2).",
        r"\tfrac{13}{16} < \tfrac{15}{16}",
        lambda: below((3 * QUARTER, QUARTER), (2 * QUARTER, 2 * QUARTER), True),
        "counterexample",
        uses=("drafts-acceptance",),
    )
    yield Step(
        "Two drafts without replacement of p = (1/4, 1/2, 1/4), for q = (1/2, 1/2, 0).",
        r"\tfrac56 < 1",
        lambda: below((QUARTER, 2 * QUARTER, QUARTER), (2 * QUARTER, 2 * QUARTER, ZERO), False),
        "counterexample",
        uses=("without-replacement-acceptance",),
    )


@claim(
    name="tree-by-levels",
    source="ours, section 12",
    statement="a tree of drafts that is verified level by level, each by a coupling of its k "
    "drafts with a distribution, emits the chain of these distributions: two levels of two "
    "drafts, all distributions on 2 tokens in thirds without zeros",
    tex=r"\mathbb P(x_1, x_2) = o_1(x_1)\, o_2(x_2 \mid x_1)",
    false=({"shared": True},),
)
def tree_by_levels(shared: bool = False) -> Iterator[Step]:
    """With `shared` the drafts of the second level are those of the first, drawn once."""

    def chain() -> Finding:
        cases, laws = 0, [x for x in distributions(2, 3) if all(x)]
        for draft, first, second in product(laws, repeat=3):
            joint: dict[tuple[int, int], Fraction] = {}
            for pair in product(range(2), repeat=2):
                chance = draft[pair[0]] * draft[pair[1]]
                for x, given in _coupled(draft, first, frozenset(pair)).items():
                    for other in product(range(2), repeat=2):
                        drawn = frozenset(pair if shared else other)
                        weight = chance * given * draft[other[0]] * draft[other[1]]
                        for y, last in _coupled(draft, second, drawn).items():
                            joint[x, y] = joint.get((x, y), ZERO) + weight * last
            if any(joint[x, y] != first[x] * second[y] for x, y in product(range(2), repeat=2)):
                return Finding("fails", f"draft {draft}, outputs {first}, {second}")
            cases += 1
        return Finding("holds", f"{cases} trees")

    yield Step(
        "The drafts below a token are drawn after it and independently of the choice among its "
        "level, so the coupling of the second level has its own marginal, given the first token.",
        r"\sum_{S} \mathbb P(S)\, \pi(x_1 \mid S) \sum_{S'} \mathbb P(S')\, \pi'(x_2 \mid S') = "
        r"o_1(x_1)\, o_2(x_2)",
        chain,
        "exhaustive",
    )


def _coupled(draft: Distribution, law: Distribution, group: frozenset[int]) -> dict[int, Fraction]:
    """The emitted token given the set of two drafts of 2 tokens: the coupling that keeps most."""
    both = 1 - draft[0] ** 2 - draft[1] ** 2
    low, high = draft[0] ** 2, draft[0] ** 2 + both
    if len(group) == 2:  # takes token 0 as often as it must
        zero = min(max(law[0] - low, ZERO), both) / both
    elif group == {0}:
        zero = min(law[0] / low, ONE)
    else:
        zero = max(law[0] - high, ZERO) / draft[1] ** 2
    return {0: zero, 1: 1 - zero}
