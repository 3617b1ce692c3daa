"""Raising a boost moves the emitted distribution away from the target, at every token.

Statements hold for any boosts g(n) in [q(n), 1] and any vocabulary. One boost is raised at a time,
from g to g' >= g, both at most p(n): beyond it nothing changes. As in `output_distribution`,

    out(x) = p(x) + q(x) sum_n w(n) [c_n - t(x)]_+ / Z(c_n)    where t = p/q <= 1,

and only the term of the token raised moves. No derivative is taken, so the points where the set
t < c changes need no care.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

from proofs_check.claims import Finding, Step, claim
from proofs_check.output_distribution import SHARES, convex_part, rest_on_one_token
from proofs_check.rational import Distribution, candidate, distributions, emitted, stretched
from proofs_check.symbolic import at_least, nonnegative, sp

a, b, c, d, q = sp.symbols("a b c d q", positive=True)


@claim(
    name="boosts-monotone",
    source="ours, section 3",
    statement="raising the boosted probability of any one token raises the emitted distribution, "
    "or leaves it, where p > q, and lowers it, or leaves it, elsewhere: away from q at every "
    "token",
    tex=r"g \le g' \ \Rightarrow\ \mathrm{out}' \ge \mathrm{out} \ge q \text{ on } S, \quad "
    r"\mathrm{out}' \le \mathrm{out} \le q \text{ off } S",
    false=({"normaliser": -d}, {"outside": -d}),
)
def boosts_monotone(normaliser: Any = d, outside: Any = d) -> Iterator[Step]:
    step, ratio, left = sp.symbols("step t left", positive=True)  # c - c', t < c', and c' - t
    below = sp.Symbol("P", positive=True)  # draft mass where t < c, without n, whose t > 1 >= c
    other = below + outside  # 1 - p(n), which is at least P
    after = sp.Symbol("w_after", positive=True)  # w' = p(n) - g'
    room = (other + after) / (left + ratio)  # 1 - q(n), as 1 - g' = c' (1 - q(n))
    before = after + step * room  # w = p(n) - g
    total = before + normaliser  # Z(c) = sum of [p - h]_+, of which n is one term: p(n) - g
    mass = (total + below) / (left + ratio + step)  # Q of t < c, by Z(c) = c Q - P
    total_after = total - step * mass  # a lower bound of Z(c')
    old, new = sp.symbols("c c'", positive=True)
    yield at_least(
        "In S what is emitted is min(p, g): it grows at n, by $g' - g$ as long as $g' \\le p(n)$, "
        "and is unchanged elsewhere. Let $c \\ge c'$ be the factors of the candidate before and "
        "after.",
        (r"g' - g = (c - c')(1 - q)", (1 - new * (1 - q)) - (1 - old * (1 - q))),
        0,
        where={old: new + b, q: 1 / (1 + a)},
        assumes="$0 < q(n) < p(n)$ for the token raised, $g' \\le p(n)$: any other one changes "
        "nothing",
        uses=("ordering",),
    )
    yield Step(
        "Off S, with $t = p/q$, only the term $w [c - t]_+ / Z(c)$ of n moves, $w = p(n) - g$. "
        "Its normaliser $Z(c) = \\sum [h - p]_+$ is bounded token by token. Where $t < c'$ the "
        "positive parts differ by $c - c'$; where $c' \\le t < c$ by less. With Q the target mass "
        "of $t < c$ this sums to the second inequality.",
        r"[c' - t]_+ \ge [c - t]_+ - (c - c') \quad\Rightarrow\quad Z(c') \ge Z(c) - (c - c')\,Q",
        lambda: (
            nonnegative(left - (left + step - step)) and nonnegative(0 - (a - (a + b)))
        ),  # in the second case c - t = a and c - c' = a + b
        assumes="p and h sum to 1, so $[h - p]_+$ and $[p - h]_+$ have the same sum",
    )
    yield Step(
        "The new term is 0 unless $t < c'$. There it is at most the old one: cross-multiply, put "
        "in the bound of Z(c'), and expand. This uses $Z(c) = cQ - P$, with P the draft mass of "
        "$t < c$, which is at most 1 - p(n); $Z(c) \\ge w$, of which n is one term; and "
        "$1 - g' = c'(1 - q(n))$. So nothing off S rises.",
        r"w\,(c - t)\left[Z(c) - (c - c')Q\right] \ge w'\,(c' - t)\,Z(c)",
        lambda: nonnegative(before * (left + step) * total_after - after * left * total),
    )


@claim(
    name="divergence-monotone",
    source="ours, section 3",
    statement="every f-divergence D_f(out||q), and the acceptance, is non-decreasing in every "
    "boosted probability, hence in delta for every rule where these do not fall as delta grows",
    tex=r"g \le g' \ \Rightarrow\ D_f(\mathrm{out}\|q) \le D_f(\mathrm{out}'\|q), \quad "
    r"\sum\min(p,g) \le \sum\min(p,g')",
    false=({"beyond": sp.Rational(11, 10)},),
)
def divergence_monotone(beyond: Any = 1) -> Iterator[Step]:
    still, moved = b, b + c  # |out - q| and |out' - q|, on the same side of q
    yield at_least(
        "Raise them one after the other; the acceptance $\\min(p, g)$ of a token grows with "
        "g. Each time, out' is at least as far from q as out, on the same side.",
        (r"|\mathrm{out}' - q|", moved),
        (r"|\mathrm{out} - q|", still),
        assumes="a token of q = 0 is never accepted: g = 0",
        uses=("boosts-monotone", "root-unique-monotone", "corollary-5"),
    )
    yield from convex_part(
        beyond * still / moved,
        r"\frac{\mathrm{out}}{q} = 1 + \lambda\left(\frac{\mathrm{out}'}q - 1\right),\ "
        r"\lambda = \frac{|\mathrm{out} - q|}{|\mathrm{out}' - q|}",
        "So out lies between q and out' at every token.",
    )


@claim(
    name="boosts-monotone-enumerated",
    source="ours, section 3",
    statement="the same on all pairs of distributions on 3 tokens in quarters, and on 4 "
    "tokens in thirds: each boosted probability at one of three levels, and any one of them raised",
    tex=r"g \le g' \ \Rightarrow\ |\mathrm{out}'(x) - q(x)| \ge |\mathrm{out}(x) - q(x)| "
    r"\text{ on the same side, all } x",
    false=({"lopsided": True}, {"levels": tuple(reversed(SHARES))}),
    quick=False,
)
def boosts_monotone_enumerated(
    lopsided: bool = False, levels: tuple[Fraction, ...] = SHARES
) -> Iterator[Step]:
    propose = rest_on_one_token if lopsided else candidate
    for size, parts in ((3, 4), (4, 3)):

        def every_case(size: int = size, parts: int = parts) -> Finding:
            cases = 0
            for draft, target in product(distributions(size, parts), repeat=2):
                for law, raised in _raised_once(draft, target, levels, propose):
                    if not farther(draft, target, law, raised):
                        return Finding("fails", f"draft {draft}, target {target}")
                    cases += 1
            return Finding("holds", f"{cases} raised boosts")

        yield Step(
            f"All pairs on {size} tokens whose probabilities are multiples of 1/{parts}.",
            rf"|\mathrm{{out}}' - q| \ge |\mathrm{{out}} - q| \quad (V = {size})",
            every_case,
            "exhaustive",
            uses=("boosts-monotone",),
        )


def _raised_once(draft: Distribution, target: Distribution, levels: Any, propose: Any) -> Any:
    """Emitted distributions before and after one token's boost goes up by a level."""
    boosts = [stretched(target, share) for share in levels]
    size = len(target)
    known = {
        choice: emitted(draft, target, [boosts[at][x] for x, at in enumerate(choice)], propose)
        for choice in product(range(len(levels)), repeat=size)
    }
    for choice, law in known.items():
        for x in range(size):
            after = (*choice[:x], choice[x] + 1, *choice[x + 1 :])
            if after in known:
                yield law, known[after]


def farther(
    draft: Distribution, target: Distribution, law: Distribution, raised: Distribution
) -> bool:
    """Whether `raised` is at least as far from the target as `law`, on the draft's side of it."""
    return all(
        (after >= before >= q) if p > q else (after <= before <= q)
        for p, q, before, after in zip(draft, target, law, raised, strict=True)
    )
