"""Raising a boost moves the emitted law away from the target, at every token.

Statements hold for any boosts g(n) in [q(n), 1] and any vocabulary. One boost is raised at a time,
from g to g' >= g, both at most p(n): beyond it nothing changes. As in `output_distribution`,

    out(x) = p(x) + q(x) sum_n w(n) [c_n - t(x)]_+ / Z(c_n)    where t = p/q <= 1,

and only the term of the token raised moves. No derivative is taken, so the points where the set
t < c changes need no care.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from proofs_check.claims import Finding, claim, conclude
from proofs_check.output_distribution import SHARES, rest_on_one_token, tilted_part
from proofs_check.rational import Law, candidate, emitted, laws, stretched
from proofs_check.symbolic import nonnegative, sp

a, b, c, d, u, v = sp.symbols("a b c d u v", positive=True)


@claim(
    name="boosts-monotone",
    theorem="ours, section 3",
    statement="raising the boost of any one token raises the emitted law, or leaves it, where "
    "p > q, and lowers it, or leaves it, elsewhere: away from q at every token",
    tex=r"g \le g' \ \Rightarrow\ \mathrm{out}' \ge \mathrm{out} \ge q \text{ on } S, \quad "
    r"\mathrm{out}' \le \mathrm{out} \le q \text{ off } S",
    kind="symbolic",
    assumes=(
        "0 < q(n) < p(n) for the token raised, g' <= p(n); any other boost changes nothing",
        "p and h are laws, so [h - p]_+ and [p - h]_+ have the same sum",
        "off S, and where g' = p(n), the new term is 0 unless t < c'",
    ),
    depends=("ordering",),
    false=({"normaliser": -d}, {"outside": -d}),
)
def boosts_monotone(normaliser: Any = d, outside: Any = d) -> Finding:
    step, ratio, left = sp.symbols("step t left", positive=True)  # c - c', t < c', and c' - t
    below = sp.Symbol("P", positive=True)  # draft mass where t < c, without n, whose t > 1 >= c
    other = below + outside  # 1 - p(n), which is at least P
    after = sp.Symbol("w_after", positive=True)  # p(n) - g'
    shrunk = left + ratio  # c'
    room = (other + after) / shrunk  # 1 - q(n), as 1 - g' = c' (1 - q(n))
    before = after + step * room  # p(n) - g
    total = before + normaliser  # Z(c) = sum of [p - h]_+, of which n is one term: p(n) - g
    mass = (total + below) / (shrunk + step)  # Q of t < c, by Z(c) = c Q - P
    total_after = total - step * mass  # a lower bound of Z(c')
    q, excess = u, c
    return conclude(
        "term by term: w' [c' - t] Z(c) <= w [c - t] Z(c') where t < c'",
        ("on S, n itself rises", nonnegative((before - after) - step * room)),
        ("on S, nothing is recovered", nonnegative((q + excess) - q / (1 + a))),
        # Z(c') >= Z(c) - (c - c') Q, token by token
        ("t < c'", nonnegative(left - (left + step - step))),
        ("c' <= t < c", nonnegative(0 - (a - (a + b)))),  # c - t = a, c - c' = a + b
        (
            "off S, no term rises",
            nonnegative(before * (left + step) * total_after - after * left * total),
        ),
    )


@claim(
    name="divergence-monotone",
    theorem="ours, section 3",
    statement="every f-divergence D_f(out||q), and the acceptance, is non-decreasing in every "
    "boost, hence in delta for every rule whose boosts do not fall as delta grows",
    tex=r"g \le g' \ \Rightarrow\ D_f(\mathrm{out}\|q) \le D_f(\mathrm{out}'\|q), \quad "
    r"\sum\min(p,g) \le \sum\min(p,g')",
    kind="symbolic",
    assumes=(
        "f is convex with f(1) = 0 and supporting slope m at 1",
        "a token of q = 0 is never accepted: g = 0",
        "boosts are raised one after the other",
    ),
    depends=("boosts-monotone", "output-below-draft", "root-unique-monotone", "corollary-5"),
    false=({"beyond": sp.Rational(11, 10)},),
)
def divergence_monotone(beyond: Any = 1) -> Finding:
    still, moved = b, b + c  # |out - q| and |out' - q|, on the same side of q
    part = beyond * still / moved  # out/q = 1 + part (out'/q - 1)
    return conclude(
        "token by token, as in output-below-draft",
        ("out' is at least as far from q", nonnegative(moved - still)),
        *tilted_part(part),
    )


@claim(
    name="boosts-monotone-enumerated",
    theorem="ours, section 3",
    statement="boosts-monotone on all pairs of laws on 3 tokens in quarters, and on 4 tokens in "
    "thirds: each token's boost at one of three levels, and any one of them raised",
    tex=r"g \le g' \ \Rightarrow\ |\mathrm{out}'(x) - q(x)| \ge |\mathrm{out}(x) - q(x)| "
    r"\text{ on the same side, all } x",
    kind="exhaustive",
    false=({"lopsided": True}, {"levels": tuple(reversed(SHARES))}),
)
def boosts_monotone_enumerated(
    lopsided: bool = False, levels: tuple[Fraction, ...] = SHARES
) -> Finding:
    propose = rest_on_one_token if lopsided else candidate
    cases = 0
    for size, parts in ((3, 4), (4, 3)):
        for draft, target in product(laws(size, parts), repeat=2):
            for law, raised in _raised_once(draft, target, levels, propose):
                if not farther(draft, target, law, raised):
                    return Finding("fails", f"draft {draft}, target {target}")
                cases += 1
    return Finding("holds", f"{cases} raised boosts")


def _raised_once(draft: Law, target: Law, levels: Any, propose: Any) -> Any:
    """Emitted laws before and after one token's boost goes up by a level."""
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


def farther(draft: Law, target: Law, law: Law, raised: Law) -> bool:
    """Whether `raised` is at least as far from the target as `law`, on the draft's side of it."""
    return all(
        (after >= before >= q) if p > q else (after <= before <= q)
        for p, q, before, after in zip(draft, target, law, raised, strict=True)
    )
