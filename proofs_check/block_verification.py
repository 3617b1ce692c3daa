"""Block verification of an ordered rule: out in the place of the target.

Here s is the chance that the drafts so far survive, and r the ratio out/p of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from flint import arb, ctx

from proofs_check.balls import PRECISION, ball
from proofs_check.claims import Finding, Step, claim
from proofs_check.paths import (
    LENGTH,
    VERIFIERS,
    Text,
    as_a_block,
    chance_of,
    column,
    position,
    some_chains,
    texts,
)
from proofs_check.rational import distributions, emitted, overlap, stretched
from proofs_check.sequence import Chain, divergence
from proofs_check.symbolic import at_least, equal, nonnegative, sp

s, t, r, a, b, c = sp.symbols("s t r a b c", positive=True)


@claim(
    name="ordered-is-lossless",
    source="ours, section 9",
    statement="an ordered rule accepts with min(p, out): it is standard verification with its own "
    "emitted distribution in the place of the target, the maximal coupling of p and out",
    tex=r"m = \min(p, \mathrm{out}), \qquad \mathbb P(\text{accept}) = "
    r"\sum_x \min(p, \mathrm{out})",
    false=({"lowered": 1}, {"granted": Fraction(9, 10)}),
)
def ordered_is_lossless(lowered: int = 0, granted: Fraction = Fraction(1)) -> Iterator[Step]:
    yield Step(
        "Where $p > q$, nothing is recovered: $\\mathrm{out} = m \\le p$, so m is the smaller.",
        r"p = m + a,\ \mathrm{out} = m \ \Rightarrow\ \min(p, \mathrm{out}) = m",
        lambda: sp.Min(t + a, t + lowered * 2 * a) == t,
        uses=("ordering",),
    )
    yield Step(
        "Elsewhere every draft is accepted: $m = p \\le \\mathrm{out}$.",
        r"m = p,\ \mathrm{out} = p + a \ \Rightarrow\ \min(p, \mathrm{out}) = m",
        lambda: sp.Min(t, t + a) == t,
        uses=("ordering",),
    )

    def every_pair() -> Finding:
        pairs = list(product(distributions(3, 4), repeat=2))
        for (p, q), share in product(pairs, (Fraction(0), Fraction(1, 5), Fraction(1))):
            g = stretched(q, share)
            out = emitted(p, q, g)
            if overlap(p, out) != overlap(p, tuple(granted * x for x in g)):
                return Finding("fails", f"draft {p}, target {q}, share {share}")
        return Finding("holds", f"{3 * len(pairs)} cases")

    yield Step(
        "So acceptance is the overlap of p and out, which no coupling exceeds. All pairs of "
        "distributions on 3 tokens in quarters, at three levels of g.",
        r"\sum_x \min(p, g) = \sum_x \min(p, \mathrm{out})",
        every_pair,
        "exhaustive",
        uses=("theorem-1",),
    )


@claim(
    name="block-survival",
    source="Sun et al. 2024; ours, section 9",
    statement="block verification keeps at least i drafts with chance s_i = min(s_(i-1) r_i, 1) "
    "given the drafts, which is never below that of verification token by token: for every i, on "
    "every draft, whatever the two distributions are",
    tex=r"\mathbb P(\tau \ge i \mid x_1 \dots x_i) = s_i \ge \prod_{j \le i} \min(r_j, 1)",
    false=({"room": 2}, {"cap": 2}),
)
def block_survival(room: int = 1, cap: int = 1) -> Iterator[Step]:
    missing = sp.Symbol("S", positive=True)
    yield Step(
        "What of s out exceeds p and what does not make up s out; summed over the tokens, with S "
        "for the excess, the rest is s - S. Both cases.",
        r"\sum_x \min(s\,\mathrm{out}, p) = s - S, \qquad S = \sum_x [s\,\mathrm{out} - p]_+",
        lambda: all(
            sp.Min(scaled, p) + over == scaled
            for scaled, p, over in ((a, a + b, sp.S.Zero), (a + b, a, b))
        ),
        assumes="out sums to 1",
    )
    h = missing / (missing + room * (1 - s))
    yield equal(
        "Induction from the last draft down. At least i drafts are kept if the i-th test passes, "
        "with chance h, or if it fails and at least i + 1 are kept, the chance of which is by "
        "induction the mean of $\\min(s r, 1)$ under p, that is s - S.",
        (r"h + (1 - h)(s - S), \quad h = \frac{S}{S + 1 - s}", h + (1 - h) * (s - missing)),
        (r"s", s),
        assumes="the uniforms of the tests are independent; S + 1 - s > 0, or all of this is 1",
    )
    yield at_least(
        "Never fewer. Let s be at least t, the chance token by token, and r the next ratio. If "
        "$r \\le 1$ both are multiplied by r, and $s r \\le 1$.",
        (r"s\,r", s * r),
        (r"t\,r", t * r),
        where={s: t + a},
    )
    yield Step(
        "If $r > 1$, t stays, and the new s is the smaller of $s r \\ge s \\ge t$ and $1 \\ge t$.",
        r"\min(s r, 1) \ge t \qquad (s = t + a,\ r = 1 + b,\ 1 = t + c)",
        lambda: nonnegative(((t + a) * (1 + b)).expand() - t) and nonnegative((t + c) - cap * t),
    )


@claim(
    name="block-emits-out",
    source="Sun et al. 2024; ours, section 9",
    statement="under block verification of an ordered rule, given that at least i drafts are kept "
    "and which, the next token has the distribution out: ledgers, weights and budgets hold as they "
    "are, and the joint distribution of a block is that of token verification",
    tex=r"\mathbb P(x_{i+1} = y \mid \tau \ge i,\ x_1 \dots x_i) = \mathrm{out}_{i+1}(y)",
    false=({"rows": "target"}, {"forgets": True}),
)
def block_emits_out(rows: str = "out", forgets: bool = False) -> Iterator[Step]:
    yield Step(
        "Given drafts $x_1 \\dots x_i$, which survive with chance s, y follows if it is drafted "
        "and survives, $p \\min(s\\,\\mathrm{out}/p, 1)$, or if exactly i are kept and it is "
        "recovered, $S \\cdot [s\\,\\mathrm{out} - p]_+ / S$. Both cases.",
        r"\min(s\,\mathrm{out}(y), p(y)) + [s\,\mathrm{out}(y) - p(y)]_+ = s\,\mathrm{out}(y)",
        lambda: all(
            sp.Min(scaled, p) + sp.Max(scaled - p, 0) == scaled
            for scaled, p in ((a, a + b), (a + b, a))
        ),
        assumes="$\\mathbb P(\\tau = i) = s - (s - S) = S$ given the drafts",
        uses=("block-survival",),
    )

    def every_chain() -> Finding:
        gained = 0
        for chain in some_chains():
            k = 3
            lengths = {}
            for name, verifier in VERIFIERS.items():
                joint, kept_so_far = _one_block(chain, k, verifier, forgets)
                lengths[name] = kept_so_far
                for text, chance in joint.items():
                    *first, last = (position(chain, text[:i]) for i in range(k + 1))
                    wanted = last.target[text[k]]
                    for at, x in zip(first, text, strict=False):
                        wanted *= getattr(at, rows)[x]
                    if chance != wanted:
                        return Finding("fails", f"{chain}, {name}, block {text}")
            if lengths["block"] < lengths["token"]:
                return Finding("fails", f"{chain}: {lengths}")
            gained += lengths["block"] > lengths["token"]
        return Finding("holds" if gained else "fails", f"{gained} chains with more tokens")

    yield Step(
        "The definition, followed draft by draft on two-token chains with k = 3; what a block did "
        "not emit is drawn from out, and from q after it. The joint distribution is the product of "
        "rows, and the expected tokens are never fewer.",
        r"\mathbb P(x_1 \dots x_k, y) = \prod_{i \le k} \mathrm{out}_i(x_i)\; q(y)",
        every_chain,
        "exhaustive",
    )


def _one_block(
    chain: Chain, k: int, verifier: Callable[..., Any], forgets: bool
) -> tuple[dict[Text, Fraction], Fraction]:
    """Joint distribution of k + 1 tokens, and the expected number of drafts kept."""
    joint: dict[Text, Fraction] = {}
    expected = Fraction(0)
    for drafts in product(range(2), repeat=k):
        block = [position(chain, drafts[:i]) for i in range(k + 1)]
        drawn = chance_of(block, drafts)
        for kept, after in verifier(block, drafts):
            expected += drawn * sum(after) * kept
            if forgets and kept < k:  # recovers from out itself
                after = [sum(after) * o for o in block[kept].out]
            for rest in product(range(2), repeat=k - kept + 1):
                text = drafts[:kept] + rest
                chance = drawn * after[rest[0]]
                for i in range(kept + 1, k + 1):
                    at = position(chain, text[:i])
                    chance *= (at.target if i == k else at.out)[text[i]]
                joint[text] = joint.get(text, Fraction(0)) + chance
    return joint, expected


@claim(
    name="block-budget",
    source="ours, section 9",
    statement="a budget holds under block verification: where the rule at a position is chosen by "
    "the ledger of the tokens before it, KL(text) <= E[ledger] <= B",
    tex=r"\mathrm{KL}(\text{text} \,\|\, q) \le \mathbb E[\text{ledger}] \le B",
    false=({"stops": False}, {"claimed": Fraction(1, 10)}),
)
def block_budget(stops: bool = True, claimed: Fraction = Fraction(1)) -> Iterator[Step]:
    def every_path() -> Finding:
        boosted = 0
        with ctx.workprec(PRECISION):
            for chain, limit in product(some_chains(), (Fraction(1, 20), Fraction(1, 5))):
                found = _budgeted(chain, ball(limit) if stops else None)
                bound, nats = ball(claimed * limit), arb(0)
                chances = dict.fromkeys(texts(), Fraction(0))
                for (text, _), (chance, spent) in found.items():
                    chances[text] += chance
                    nats += ball(chance) * spent
                    if not spent <= bound:
                        return Finding("fails", f"{chain}, B = {limit}: a ledger of {spent}")
                target = [
                    prod(column(chain, text, "target"), start=Fraction(1)) for text in texts()
                ]
                true = divergence(tuple(chances.values()), tuple(target))
                if not (true <= nats + ball(Fraction(1, 10**15)) and true <= bound):
                    return Finding("fails", f"{chain}, B = {limit}")
                boosted += bool(true > ball(limit / 50))
        return Finding("holds" if boosted > 10 else "fails", f"{boosted} cases boosted")

    yield Step(
        "By block-emits-out the conditions of the ledger hold, out being that of the rule chosen "
        "at each position. Every path of two-token chains, texts of 4 tokens: its ledger stays "
        "within B, and so does KL of the text.",
        r"\max_{\text{paths}} \sum_t \mathrm{KL}(\mathrm{out}_t\|q_t) \le B, \qquad "
        r"\mathrm{KL}(\text{text}\|q) \le \mathbb E \sum_t \mathrm{KL}(\mathrm{out}_t\|q_t)",
        every_path,
        "exhaustive",
        uses=("ledger", "block-emits-out"),
    )


def _budgeted(chain: Chain, limit: arb | None) -> dict[Any, tuple[Fraction, arb]]:
    """Chance and ledger of every path that stops boosting before `limit` is passed."""
    done: dict[Any, tuple[Fraction, arb]] = {}
    under_way: dict[Any, tuple[Fraction, arb]] = {((), ()): (Fraction(1), arb(0))}
    while under_way:
        (text, lossy), (chance, spent) = under_way.popitem()
        count = min(chain.drafted, LENGTH - len(text) - 1)
        for drafts in product(range(2), repeat=count):
            block, charges, total, stopped = [], [], spent, False
            for i in range(count + 1):
                at = position(chain, text + drafts[:i])
                cost = divergence(at.out, at.target)
                stopped = stopped or i == count or not (limit is None or total + cost <= limit)
                if stopped:
                    at, cost = position(chain, text + drafts[:i], lossy=False), arb(0)
                total += cost
                block.append(at)
                charges.append((not stopped, total))
            drawn = chance * chance_of(block, drafts)
            for kept, after in as_a_block(block, drafts):
                for last, weight in enumerate(after):
                    if not weight:
                        continue
                    flags = (*lossy, *(flag for flag, _ in charges[: kept + 1]))
                    state = (*text, *drafts[:kept], last), flags
                    place = done if len(state[0]) == LENGTH else under_way
                    known = place.get(state, (Fraction(0), arb(0)))[0]
                    place[state] = known + drawn * weight, charges[kept][1]
    return done
