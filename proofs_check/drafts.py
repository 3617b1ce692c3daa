"""Several independent drafts for one position: what they accept, and the best emitted distribution.

A token counts as accepted if it is one of k tokens drawn independently from p. Every claim is for
any k; the exact enumerations are for two and three drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, combinations, product
from typing import Any

from proofs_check.claims import Finding, Step, claim
from proofs_check.clamp import chi_square, clamp
from proofs_check.rational import Distribution, distributions, overlap, total_variation
from proofs_check.symbolic import at_least, equal, nonnegative, sp

a, b, c = sp.symbols("a b c", positive=True)
DRAFTS = (2, 3)
ZERO, ONE = Fraction(0), Fraction(1)


def sets(size: int, largest: int | None = None) -> list[frozenset[int]]:
    """All sets of tokens, of at most `largest`."""
    most = size if largest is None else largest
    every = chain.from_iterable(combinations(range(size), n) for n in range(most + 1))
    return [frozenset(chosen) for chosen in every]


def mass(law: Distribution, tokens: frozenset[int]) -> Fraction:
    return sum((law[x] for x in tokens), ZERO)


def drawn_sets(draft: Distribution, k: int) -> dict[frozenset[int], Fraction]:
    """The chance of every set of tokens that k independent drafts may form."""
    found: dict[frozenset[int], Fraction] = {}
    for tokens in product(range(len(draft)), repeat=k):
        chance = Fraction(1)
        for x in tokens:
            chance *= draft[x]
        if chance:
            found[frozenset(tokens)] = found.get(frozenset(tokens), ZERO) + chance
    return found


def most_kept(drawn: dict[frozenset[int], Fraction], law: Distribution) -> Fraction:
    """The largest chance that a token of `law` lies in the drawn set: a plan, by augmenting paths.

    Every plan built is a coupling, so its value is reached; nothing is assumed of its bound.
    """
    free = list(law)
    left, plan = dict(drawn), {(group, x): ZERO for group in drawn for x in group}
    while True:
        came: dict[int, tuple[frozenset[int], int | None]] = {}
        waiting: list[tuple[frozenset[int], int | None]] = [(g, None) for g in drawn if left[g]]
        seen = {group for group, _ in waiting}
        for group, entered in waiting:  # grows while it is read
            for x in group - came.keys():
                came[x] = (group, entered)
                others = [g for g in drawn if g not in seen and x in g and plan[g, x]]
                seen.update(others)
                waiting += [(other, x) for other in others]
        end = next((x for x in came if free[x]), None)
        if end is None:
            return sum(plan.values(), ZERO)
        path, x = [], end
        while True:
            group, entered = came[x]
            path.append((group, x, entered))
            if entered is None:
                break
            x = entered
        step = min(free[end], left[path[-1][0]])
        step = min([step, *(plan[g, x] for g, _, x in path if x is not None)])
        for group, x, entered in path:
            plan[group, x] += step
            if entered is not None:
                plan[group, entered] -= step
        free[end] -= step
        left[path[-1][0]] -= step


def best_by_sets(draft: Distribution, law: Distribution, k: int, largest: int | None = None) -> Any:
    """1 - max_H [p(H)^k - law(H)]."""
    return 1 - max(mass(draft, h) ** k - mass(law, h) for h in sets(len(draft), largest))


def worth_one(draft: Distribution, target: Distribution, k: int) -> tuple[Distribution, list[Any]]:
    """q times the slopes of the least concave majorant of (Q, P^k), and the sets of its corners.

    Adjacent steps are pooled while a later one is steeper. Tokens with q = 0 share their mass as p.
    """
    outside = frozenset(
        x for x, (p, q) in enumerate(zip(draft, target, strict=True)) if p and not q
    )
    inside = sorted((x for x, q in enumerate(target) if q), key=lambda x: -draft[x] / target[x])
    before = mass(draft, outside)
    blocks: list[tuple[frozenset[int], Fraction]] = []
    for x in inside:
        tokens, step = frozenset([x]), (before + draft[x]) ** k - before**k
        before += draft[x]
        while blocks and step * mass(target, blocks[-1][0]) > blocks[-1][1] * mass(target, tokens):
            more, height = blocks.pop()
            tokens, step = tokens | more, step + height
        blocks.append((tokens, step))
    law = [
        draft[x] * mass(draft, outside) ** (k - 1) if x in outside else ZERO
        for x in range(len(draft))
    ]
    corners = [outside]
    for tokens, step in blocks:
        for x in tokens:
            law[x] = step * target[x] / mass(target, tokens)
        corners.append(corners[-1] | tokens)
    return tuple(law), corners


@claim(
    name="drafts-acceptance",
    source="Khisti et al. 2024; Hu et al. 2025",
    statement="the largest chance that a token of distribution o is one of k independent drafts is "
    "1 - max_H [p(H)^k - o(H)] over all sets of tokens H",
    tex=r"\max_{\pi} \pi(Y \in \{X_1, \dots, X_k\}) = 1 - \max_H\,[p(H)^k - o(H)]",
    false=({"largest": 1}, {"power": 1}),
)
def drafts_acceptance(largest: int = 3, power: int = 0) -> Iterator[Step]:
    def cut() -> bool:
        groups = [group for group in sets(3) if group]
        return all(
            (y in group) <= (y in h) + (not group <= h)
            for group, h, y in product(groups, sets(3), range(3))
        )

    yield Step(
        "For every set H: a token that is one of the drafts lies in H, unless some draft does not. "
        "All drafts lie in H with chance $p(H)^k$, so no coupling accepts more than "
        "$o(H) + 1 - p(H)^k$. The inequality of indicators, for all cases on 3 tokens.",
        r"1\{Y \in X\} \le 1\{Y \in H\} + 1\{X \not\subseteq H\}",
        cut,
        "exhaustive",
    )

    def reached() -> Finding:
        cases = 0
        for k, (draft, law) in product(DRAFTS, product(distributions(3, 4), repeat=2)):
            bound = best_by_sets(draft, law, power or k, largest)
            if most_kept(drawn_sets(draft, k), law) != bound:
                return Finding("fails", f"k = {k}, draft {draft}, output {law}")
            cases += 1
        return Finding("holds", f"{cases} plans")

    yield Step(
        "Some coupling reaches the smallest of these bounds: the capacities of a bipartite network "
        "from sets of drafts to tokens, whose largest flow is its smallest cut. The couplings, for "
        "all drafts and outputs on 3 tokens in quarters and k = 2, 3, as fractions.",
        r"\max_\pi \pi(Y \in X) = \min_H\,[o(H) + 1 - p(H)^k]",
        reached,
        "exhaustive",
        assumes="in general the theorem of Ford and Fulkerson",
    )


@claim(
    name="drafts-worth-one",
    source="ours, section 12",
    statement="sort the tokens by p/q, and let r be q times the slopes of the least concave "
    "majorant of the points (Q, P^k): a sample of r can always be chosen among k independent "
    "drafts of p, as p(H)^k <= r(H) for every set H, with equality at the corners of the majorant",
    tex=r"p(H)^k \le r(H) \quad \text{for all } H",
    false=({"more": Fraction(1, 10)}, {"power": 1}),
)
def drafts_worth_one(more: Fraction = ZERO, power: int = 0) -> Iterator[Step]:
    def chords() -> bool:
        """Slopes of P^k before and after a corner at a + b: b and c are the tokens' masses."""
        for k in range(1, 7):
            corner = a + b
            before = sp.cancel((corner**k - a**k) / b)
            after = sp.cancel(((corner + c) ** k - corner**k) / c)
            if not nonnegative(sp.expand(after - before)):
                return False
        return True

    def convex() -> bool:
        return all(
            nonnegative(sp.expand((a**k + (a + b) ** k) / 2 - (a + b / 2) ** k))
            for k in range(1, 7)
        )

    yield Step(
        "Let x be the last token of one block and y the first of the next, with P the draft's mass "
        "between them. The majorant lies above the points next to this corner, so $r(x)$ is at "
        "most, and $r(y)$ at least, the step of $P^k$ by that token alone. As $P^k$ is convex, "
        "$r/p$ does not fall across the corner. Checked for k up to 6.",
        r"\frac{r(x)}{p(x)} \le \frac{P^k - (P - p(x))^k}{p(x)} \le "
        r"\frac{(P + p(y))^k - P^k}{p(y)} \le \frac{r(y)}{p(y)}",
        chords,
    )
    yield Step(
        "Inside a block r is proportional to q, so $p/r$ falls in the order of $p/q$ throughout. "
        "$r(H) - p(H)^k$ is a concave function of the pair $(p(H), r(H))$. All such pairs lie in a "
        "convex polygon, so the least value is at a corner of it, where H holds the tokens of "
        "largest $p/r$: it is a start of the order. That the power is convex, for k up to 6.",
        r"\tfrac12 (x^k + y^k) \ge \left(\tfrac{x + y}{2}\right)^k",
        convex,
        assumes="a concave function on a polygon is least at one of its corners",
    )
    yield Step(
        "For such a start r(H) is the height of the majorant, which is at least $p(H)^k$. So no "
        "set rejects (`drafts-acceptance`). For every set, draft and target on 4 tokens in "
        "quarters and on 3 in eighths, k = 2, 3, as fractions.",
        r"r(H) \ge p(H)^k, \qquad r(E) = p(E)^k \text{ at corners } E",
        lambda: _never_rejects(more, power),
        "exhaustive",
        uses=("drafts-acceptance",),
    )


def _never_rejects(more: Fraction, power: int) -> Finding:
    cases = 0
    for size, parts in ((4, 4), (3, 8)):
        for k, (draft, target) in product(DRAFTS, product(distributions(size, parts), repeat=2)):
            law, corners = worth_one(draft, target, power or k)
            if sum(law) != 1:
                return Finding("fails", f"k = {k}, draft {draft}, target {target}: no distribution")
            short = any(mass(law, h) < (1 + more) * mass(draft, h) ** k for h in sets(size))
            if short or any(mass(law, h) != mass(draft, h) ** k for h in corners):
                return Finding("fails", f"k = {k}, draft {draft}, target {target}")
            cases += 1
    return Finding("holds" if cases > 5000 else "fails", f"{cases} pairs")


@claim(
    name="drafts-frontier",
    source="ours, section 12",
    statement="the clamp of r in the place of p has the least D_f(out||q), for every convex f at "
    "once, of all outputs that k drafts of p reach with its rejection; and its acceptance is that "
    "of emitting q plus TV(out, q), for every k",
    tex=r"\mathrm{out} = \mathrm{clip}(r, bq, aq): \quad \mathrm{acc}_k(o) \ge "
    r"\mathrm{acc}_k(\mathrm{out}) \Rightarrow D_f(o\|q) \ge D_f(\mathrm{out}\|q), \qquad "
    r"\mathrm{acc}_k(\mathrm{out}) = \mathrm{acc}_k(q) + \mathrm{TV}(\mathrm{out}, q)",
    false=({"slack": Fraction(9, 10)}, {"price": Fraction(9, 10)}),
)
def drafts_frontier(slack: Fraction = ONE, price: Fraction = ONE) -> Iterator[Step]:
    yield Step(
        "Let o be another output with at most the clamp's rejection $\\varepsilon$. Sort the "
        "tokens by p/q. out/q falls in that order, and at the ends E of its steps, which are "
        "corners of the majorant, "
        "$\\mathrm{out}(E) = r(E) - \\varepsilon = p(E)^k - \\varepsilon \\le o(E)$. "
        "Each step s of $f'(\\mathrm{out}/q)$ at such an end therefore adds to the sum below what "
        "is not negative: it is a sum by parts, written for three levels.",
        r"\sum f'(\mathrm{out}/q)\,(o - \mathrm{out}) = \sum_E s_E\,[o(E) - \mathrm{out}(E)] \ge 0",
        lambda: _by_parts(),
        assumes="f is convex and differentiable",
        uses=("drafts-acceptance", "drafts-worth-one"),
    )
    new, old = sp.symbols("D_o D_out", positive=True)
    yield at_least(
        "By supporting lines that sum is at most the rise of the divergence, which is therefore "
        "not negative, whichever f it is.",
        (r"D_f(o\|q) - D_f(\mathrm{out}\|q)", new + old - old),
        (r"\sum f'(\mathrm{out}/q)(o - \mathrm{out}) - \text{what convexity adds}", 0),
    )
    yield Step(
        "No output in eighths of no larger rejection is nearer to the target in chi-square or in "
        "total variation, and gain is cost: all drafts and targets on 3 tokens in quarters, "
        "k = 2, 3, b = 0, 1/2, 1, as fractions.",
        r"\mathrm{acc}_k(o) \ge \mathrm{acc}_k(\mathrm{out}) \Rightarrow "
        r"\chi^2(o\|q) \ge \chi^2(\mathrm{out}\|q)",
        lambda: _unbeaten(slack, price),
        "exhaustive",
        uses=("drafts-acceptance", "clamp-optimal"),
    )


@claim(
    name="equal-price",
    source="ours, section 12",
    statement="over many positions, the largest mean acceptance for a mean D_f(out||q) clamps "
    "every position with the same f'(a) - f'(b); for KL, with the same a/b; for every number of "
    "drafts",
    tex=r"\sum_t D_f(o_t\|q_t) \le \sum_t D_f(\mathrm{out}_t\|q_t) \ \Rightarrow\ "
    r"\sum_t \mathrm{acc}_k(o_t) \le \sum_t \mathrm{acc}_k(\mathrm{out}_t)",
    false=({"dearer": 2}, {"slope": sp.Rational(1, 2)}),
)
def equal_price(dearer: Any = 1, slope: Any = 1) -> Iterator[Step]:
    first, second, less = sp.symbols("s_1 s_2 less", positive=True)
    yield equal(
        "One position. The steps of $f'(\\mathrm{out}/q)$ in the order of p/q are $s_1, s_2, "
        "\\dots$ and sum to $f'(a) - f'(b)$. If o rejects less by e than out, then at the end E of "
        "each step $o(E) - \\mathrm{out}(E) \\ge e$. So the divergence rises by at least "
        "$e\\,(f'(a) - f'(b))$, where e is the acceptance gained. Written for two steps.",
        (r"s_1 e + s_2 e", first * less + second * less),
        (r"(f'(a) - f'(b))\,e", slope * (first + second) * less),
        assumes="f is convex and differentiable",
        uses=("drafts-frontier",),
    )
    price, gained, lost, slack = sp.symbols("price gained lost slack", positive=True)
    spent = (
        price * gained + slack - price * dearer * lost
    )  # rises at one position, falls at another
    yield at_least(
        "Let one position gain acceptance and another lose it, at one price: what the first gains "
        "costs more than what the second saves, unless it gains no more than the other loses. So "
        "where the sum of the divergences has not grown, no acceptance is gained in all.",
        (r"\Delta D_1 + \Delta D_2", spent),
        (
            r"\mathrm{price}\,(\Delta \mathrm{acc}_1 + \Delta \mathrm{acc}_2)",
            price * (gained - lost),
        ),
    )
    level = sp.Symbol("level", positive=True)
    yield equal(
        "For KL, $f'(t) = \\log t + 1$, so that the price is the logarithm of a/b.",
        (r"f'(a) - f'(b)", sp.log(level * a) + 1 - sp.log(a) - 1),
        (r"\log(a/b)", sp.log(level)),
    )


def _by_parts() -> bool:
    """Levels f' of 3 steps, and moves of o whose partial sums are g_1, g_2 >= 0 and 0 in all."""
    low, first, second, one, two = sp.symbols("f first second g_1 g_2", positive=True)
    levels = (low + first + second, low + first, low)
    moves = (one, two - one, -two)
    total = sp.expand(sum(x * y for x, y in zip(levels, moves, strict=True)))
    return nonnegative(total) and total == sp.expand(second * one + first * two)


def _unbeaten(slack: Fraction, price: Fraction) -> Finding:
    cases, rivals = 0, list(distributions(3, 8))
    for k, (draft, target) in product(DRAFTS, product(distributions(3, 4), repeat=2)):
        law, _ = worth_one(draft, target, k)
        allowed = [o for o in rivals if all(y or not x for x, y in zip(o, target, strict=True))]
        known = [
            (best_by_sets(draft, o, k), chi_square(o, target), total_variation(o, target))
            for o in allowed
        ]
        plain = best_by_sets(draft, target, k)
        for low in (ZERO, Fraction(1, 2), Fraction(1)):
            best = clamp(law, target, low)
            if best is None:
                continue
            rate, far = best_by_sets(draft, best, k), total_variation(best, target)
            if rate != overlap(law, best) or rate != plain + price * far:
                return Finding(
                    "fails", f"k = {k}, draft {draft}, target {target}: gain is not cost"
                )
            near = chi_square(best, target)
            if any(r >= rate and (slack * chi < near or slack * tv < far) for r, chi, tv in known):
                return Finding("fails", f"k = {k}, draft {draft}, target {target}, b = {low}")
            cases += 1
    return Finding("holds" if cases > 400 else "fails", f"{cases} clamps")
