"""A whole text: the ledger of what each emitted token costs bounds what the text costs.

out_t is the law of the t-th token given everything so far, block position included; the sequence
law forgets the block positions. Enumerated here on two-token chains with drafts of length 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from flint import arb, ctx

from proofs_check.balls import PRECISION, ball
from proofs_check.claims import Finding, claim, conclude
from proofs_check.rational import Law, emitted, stretched, total_variation
from proofs_check.symbolic import nonnegative, sp, vanishes

LENGTH = 3


@claim(
    name="merging-tokens",
    theorem="lemma",
    statement="merging tokens does not raise KL (log-sum inequality)",
    tex=r"a\log\tfrac{a}{b} + c\log\tfrac{c}{d} \ge (a+c)\log\tfrac{a+c}{b+d}",
    kind="symbolic",
    depends=("tangent-of-log",),
    false=({"touches": 2},),
)
def merging_tokens(touches: int = 1) -> Finding:
    a, b, c, d = sp.symbols("a b c d", positive=True)
    mean = (a + c) / (b + d)
    lost = a * sp.log(a / b) + c * sp.log(c / d) - (a + c) * sp.log(mean)
    # each term is -a log(mean b/a) >= -a (mean b/a - 1), by log t <= t - 1
    logs = -a * sp.log(mean * b / a) - c * sp.log(mean * d / c)
    tangents = -a * (mean * b / a - touches) - c * (mean * d / c - touches)
    return conclude(
        "the tangents sum to zero",
        ("as logs", vanishes(lost - logs)),
        ("tangents", vanishes(tangents)),
    )


@claim(
    name="ledger",
    theorem="ours, section 4",
    statement="KL(text emitted || text of the target) <= E sum_t KL(out_t || q_t), for any length, "
    "vocabulary and block structure",
    tex=r"\mathrm{KL}(\mathrm{out}_{1:T}\,\|\,q_{1:T}) \le "
    r"\mathbb E\Big[\sum_{t \le T} \mathrm{KL}(\mathrm{out}_t\|q_t)\Big]",
    kind="symbolic",
    assumes=(
        "q_t depends on the text only, not on the block position",
        "induction over t; sums over tokens are finite",
    ),
    depends=("tangent-of-log",),
    false=({"order": -1},),
)
def ledger(order: int = 1) -> Finding:
    first, after, target, target_after = sp.symbols("P P_next Q Q_next", positive=True)
    joint = first * after * sp.log(first * after / (target * target_after))
    parts = first * after * (sp.log(first / target) + sp.log(after / target_after))
    # forgetting a state s of weight w: out = sum w out_s; log-sum by log t <= t - 1
    w, law, mixed, q = sp.symbols("w out_s out q", positive=True)
    lost = w * law * (sp.log(law / q) - sp.log(mixed / q))  # = -w out_s log(out/out_s)
    tangent = -order * w * law * (mixed / law - 1)  # <= lost; sums to out - sum w out_s = 0
    total, weight = sp.symbols("sum_w_out sum_w", positive=True)
    summed = (total - weight * mixed).subs(total, mixed).subs(weight, 1)
    return conclude(
        "chain rule, then forgetting the block position only lowers KL",
        ("chain rule", vanishes(joint - parts)),
        ("log-sum, one state", vanishes(lost + w * law * sp.log(mixed / law))),
        ("tangent", vanishes(tangent - (w * law - w * mixed))),
        ("tangents sum to 0", vanishes(summed)),
    )


@claim(
    name="ledger-total-variation",
    theorem="ours, section 4",
    statement="TV(text) <= E sum_t TV(out_t, q_t), and TV <= sqrt(KL/2)",
    tex=r"\mathrm{TV}(\mathrm{out}_{1:T}, q_{1:T}) \le \mathbb E\Big[\sum_t "
    r"\mathrm{TV}(\mathrm{out}_t,q_t)\Big], \qquad \mathrm{TV} \le \sqrt{\mathrm{KL}/2}",
    kind="symbolic",
    assumes=("induction over t", "Pinsker for two points, after merging to {p > q} and the rest"),
    depends=("zero-budget", "merging-tokens"),
    false=({"kept": sp.Rational(1, 2)},),
)
def ledger_total_variation(kept: Any = 1) -> Finding:
    a, b, c = sp.symbols("a b c", positive=True)
    steps = []
    # P P' - Q Q' = P (P' - Q') + (P - Q) Q': positive parts are subadditive
    for name, (p, q, p_next, q_next) in {
        "both above": (a + b, a, c + b, c),
        "first above": (a + b, a, c, c + b),
        "then above": (a, a + b, c + b, c),
    }.items():
        left = p * p_next - q * q_next
        right = p * sp.Max(p_next - q_next, 0) * kept + q_next * sp.Max(p - q, 0)
        steps.append((name, nonnegative(sp.expand(right.doit() - left))))
    return conclude("one more token; Pinsker for two points is in zero-budget", *steps)


@dataclass(frozen=True)
class Chain:
    """Draft and target laws of the next token given the last one (None at the start)."""

    draft: tuple[Law, ...]
    target: tuple[Law, ...]
    share: Fraction
    drafted: int

    def laws(self, text: tuple[int, ...]) -> tuple[Law, Law]:
        place = text[-1] + 1 if text else 0
        return self.draft[place], self.target[place]


def chains() -> Iterator[Chain]:
    """All chains with probabilities 1/4 and 3/4, two boosts, blocks of one or two drafts."""
    steep, flat = (Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4))
    for choice in product((steep, flat), repeat=6):
        for share, drafted in product((Fraction(1, 5), Fraction(1)), (1, 2)):
            yield Chain(choice[:3], choice[3:], share, drafted)


def divergence(p: Law, q: Law) -> arb:
    """KL of two rational laws as a ball."""
    terms = [ball(x) * (ball(x) / ball(y)).log() for x, y in zip(p, q, strict=True) if x]
    return sum(terms, arb(0))


@dataclass
class Tally:
    """Law of the text, expected ledgers, and the largest ledger of any path."""

    text: dict[tuple[int, ...], Fraction]
    variation: Fraction
    nats: arb
    most: arb


def enumerate_texts(chain: Chain, limit: Fraction | None = None) -> Tally:
    """Follow every path of tokens and block positions; stop boosting before `limit` is passed.

    A position is a draft that is verified (its token ends the block if it was recovered) or the
    bonus token after a fully accepted block.
    """
    tally = Tally({}, Fraction(0), arb(0), arb(0))

    def follow(text: tuple[int, ...], place: int, chance: Fraction, spent: arb) -> None:
        if len(text) == LENGTH:
            tally.text[text] = tally.text.get(text, Fraction(0)) + chance
            tally.most = tally.most.max(spent)
            return
        draft, target = chain.laws(text)
        if place == chain.drafted:
            for token, p in enumerate(target):
                follow((*text, token), 0, chance * p, spent)
            return
        boosts = stretched(target, chain.share)
        law = emitted(draft, target, boosts)
        cost = divergence(law, target)
        if limit is not None and not spent + cost <= ball(limit):
            boosts, law, cost = target, target, arb(0)
        tally.nats += ball(chance) * cost
        tally.variation += chance * total_variation(law, target)
        for token, p in enumerate(law):
            passed = min(draft[token], boosts[token])
            follow((*text, token), place + 1, chance * passed, spent + cost)
            if p > passed:
                follow((*text, token), 0, chance * (p - passed), spent + cost)

    follow((), 0, Fraction(1), arb(0))
    return tally


def text_law(chain: Chain) -> dict[tuple[int, ...], Fraction]:
    """The target's own law of the text."""
    law = {(): Fraction(1)}
    for _ in range(LENGTH):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(chain.laws(text)[1])
        }
    return law


@claim(
    name="ledger-enumerated",
    theorem="ours, section 4",
    statement="both ledger inequalities on 256 two-token chains with texts of 3 tokens, every path "
    "of acceptances followed; strict for some, because texts forget block positions",
    tex=r"\mathrm{KL}(\mathrm{out}_{1:3}\|q_{1:3}) \le \mathbb E\sum\mathrm{KL},\quad "
    r"\mathrm{TV}(\mathrm{out}_{1:3},q_{1:3}) \le \mathbb E\sum\mathrm{TV}",
    kind="exhaustive",
    depends=("ledger", "ledger-total-variation"),
    false=({"nats": Fraction(9, 10)}, {"variation": Fraction(1, 2)}),
)
def ledger_enumerated(nats: Fraction = Fraction(1), variation: Fraction = Fraction(1)) -> Finding:
    count, strict = 0, 0
    tiny = ball(Fraction(1, 10**15))
    with ctx.workprec(PRECISION):
        for chain in chains():
            tally, target = enumerate_texts(chain), text_law(chain)
            laws_ = [tuple(law[text] for text in target) for law in (tally.text, target)]
            emitted_nats = divergence(*laws_)
            steps = (
                ("a law", sum(tally.text.values()) == 1),
                ("KL", bool(emitted_nats <= ball(nats) * tally.nats + tiny)),
                ("TV", total_variation(laws_[0], laws_[1]) <= variation * tally.variation),
            )
            if not all(holds for _, holds in steps):
                return conclude("", *steps)
            count += 1
            strict += bool(emitted_nats + tiny < tally.nats)
    return conclude(f"{count} chains, {strict} of them strict", ("strict", strict > 0))


@claim(
    name="budget-stop",
    theorem="ours, section 4",
    statement="a decoder that stops boosting before its ledger would pass B has KL(text) <= B: all "
    "256 chains, B = 1/20 and 1/5, every path",
    tex=r"\text{stop at } B \ \Rightarrow\ \mathrm{KL}(\mathrm{out}_{1:T}\|q_{1:T}) \le B",
    kind="exhaustive",
    depends=("ledger",),
    false=({"stops": False}, {"claimed": Fraction(1, 10)}),
)
def budget_stop(stops: bool = True, claimed: Fraction = Fraction(1)) -> Finding:
    count, boosted = 0, 0
    with ctx.workprec(PRECISION):
        for chain, limit in product(chains(), (Fraction(1, 20), Fraction(1, 5))):
            tally, target = enumerate_texts(chain, limit if stops else None), text_law(chain)
            pair = [tuple(law[text] for text in target) for law in (tally.text, target)]
            nats = divergence(*pair)
            steps = (
                ("every path within B", bool(tally.most <= ball(claimed * limit))),
                ("text within B", bool(nats <= ball(claimed * limit))),
            )
            if not all(holds for _, holds in steps):
                return conclude("", *steps)
            count += 1
            boosted += bool(tally.nats > 0)
    return conclude(f"{count} cases, {boosted} of them boosted", ("not vacuous", boosted > 50))
