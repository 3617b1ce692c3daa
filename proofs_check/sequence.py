"""A whole text: the ledger of what each emitted token costs bounds what the text costs.

out_t is the distribution of the t-th token given everything so far, block position included; that
of the text forgets the block positions. Enumerated here on two-token chains with drafts of length
1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from flint import arb, ctx

from proofs_check.balls import PRECISION, ball
from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import Distribution, emitted, stretched, total_variation
from proofs_check.symbolic import equal, nonnegative, sp, vanishes

LENGTH = 3


@claim(
    name="merging-tokens",
    source="lemma",
    statement="merging tokens does not raise KL (the log-sum inequality)",
    tex=r"a\log\tfrac{a}{b} + c\log\tfrac{c}{d} \ge (a+c)\log\tfrac{a+c}{b+d}",
    false=({"touches": 2},),
)
def merging_tokens(touches: int = 1) -> Iterator[Step]:
    a, b, c, d = sp.symbols("a b c d", positive=True)
    mean = (a + c) / (b + d)
    lost = a * sp.log(a / b) + c * sp.log(c / d) - (a + c) * sp.log(mean)
    logs = -a * sp.log(mean * b / a) - c * sp.log(mean * d / c)
    yield equal(
        "Write what is lost by merging with the ratio M of the merged tokens.",
        (r"a\log\frac ab + c\log\frac cd - (a+c)\log M", lost),
        (r"-a\log\frac{Mb}{a} - c\log\frac{Md}{c}, \qquad M = \frac{a+c}{b+d}", logs),
    )
    yield equal(
        "As $\\log t \\le t - 1$, that is at least the same with tangents, which sum to 0.",
        (
            r"-a\left(\frac{Mb}{a} - 1\right) - c\left(\frac{Md}{c} - 1\right)",
            -a * (mean * b / a - touches) - c * (mean * d / c - touches),
        ),
        0,
        uses=("tangent-of-log",),
    )


@claim(
    name="ledger",
    source="ours, section 4",
    statement="KL(text emitted || text of the target) <= E sum_t KL(out_t || q_t), for any length, "
    "vocabulary and block structure",
    tex=r"\mathrm{KL}(\mathrm{out}_{1:T}\,\|\,q_{1:T}) \le "
    r"\mathbb E\Big[\sum_{t \le T} \mathrm{KL}(\mathrm{out}_t\|q_t)\Big]",
    false=({"order": -1},),
)
def ledger(order: int = 1) -> Iterator[Step]:
    first, after, target, target_after = sp.symbols("P P' Q Q'", positive=True)
    joint = first * after * sp.log(first * after / (target * target_after))
    parts = first * after * (sp.log(first / target) + sp.log(after / target_after))
    yield equal(
        "Chain rule: the term of a text with one more token is that of the text so far, P and Q, "
        "plus that of the token given the text, P' and Q'. So KL of texts is the expected sum of "
        "the KL of each token given the text.",
        (r"P P' \log\frac{P P'}{Q Q'}", joint),
        (r"P P' \left[\log\frac PQ + \log\frac{P'}{Q'}\right]", parts),
        assumes="induction over t; sums over tokens are finite",
    )
    w, law, mixed, q = sp.symbols("w o_s o q", positive=True)
    lost = w * law * (sp.log(law / q) - sp.log(mixed / q))
    yield equal(
        "The block position s is not part of the text. Given the text, the next token has the "
        "distribution $o = \\sum_s w_s o_s$. What the ledger charges beyond KL(o||q) is a sum over "
        "the states.",
        (r"w_s o_s\left[\log\frac{o_s}{q} - \log\frac oq\right]", lost),
        (r"-w_s o_s\log\frac{o}{o_s}", -w * law * sp.log(mixed / law)),
        assumes="q given the text does not depend on the block position",
    )
    yield equal(
        "That is at least this, by the tangent of the logarithm.",
        (r"-w_s o_s\left(\frac{o}{o_s} - 1\right)", -order * w * law * (mixed / law - 1)),
        (r"w_s o_s - w_s o", w * law - w * mixed),
        uses=("tangent-of-log",),
    )
    total, weight = sp.symbols("A W", positive=True)
    yield Step(
        "Summed over the states it is 0, as $\\sum_s w_s = 1$. So forgetting the position only "
        "lowers KL.",
        r"\sum_s w_s o_s - o \sum_s w_s = o - o = 0",
        lambda: vanishes((total - weight * mixed).subs({total: mixed, weight: 1})),
    )


@claim(
    name="ledger-total-variation",
    source="ours, section 4",
    statement="TV(text) <= E sum_t TV(out_t, q_t), and TV <= sqrt(KL/2)",
    tex=r"\mathrm{TV}(\mathrm{out}_{1:T}, q_{1:T}) \le \mathbb E\Big[\sum_t "
    r"\mathrm{TV}(\mathrm{out}_t,q_t)\Big], \qquad \mathrm{TV} \le \sqrt{\mathrm{KL}/2}",
    false=({"kept": sp.Rational(1, 2)}, {"pinsker": 3}),
)
def ledger_total_variation(kept: Any = 1, pinsker: int = 2) -> Iterator[Step]:
    a, b, c, kl = sp.symbols("a b c KL", positive=True)
    cases = ((a + b, a, c + b, c), (a + b, a, c, c + b), (a, a + b, c + b, c))  # P, Q, P', Q'

    def one_more() -> bool:
        return all(
            nonnegative(
                sp.expand(
                    kept * p * sp.Max(p_next - q_next, 0).doit()
                    + q_next * sp.Max(p - q, 0).doit()
                    - (p * p_next - q * q_next)
                )
            )
            for p, q, p_next, q_next in cases
        )

    yield Step(
        "One more token: $P P' - Q Q' = P (P' - Q') + (P - Q) Q'$, and a positive part of a sum is "
        "at most the sum of the positive parts. Checked for P above or below Q and P' above or "
        "below Q'; where both are below, the left side is 0. Sum over texts and tokens: the first "
        "term is the expected TV of the token, the second TV of the text so far.",
        r"[P P' - Q Q']_+ \le P\,[P' - Q']_+ + [P - Q]_+\,Q'",
        one_more,
        assumes="induction over t; forgetting the block position lowers TV, which is convex",
    )
    yield equal(
        "Pinsker: merge the tokens with $p > q$ and the rest. This keeps TV and only lowers KL, "
        "and for two points $\\mathrm{KL} \\ge 2\\,\\mathrm{TV}^2$.",
        (r"2 \left(\sqrt{\mathrm{KL}/2}\right)^2", pinsker * sp.sqrt(kl / 2) ** 2),
        (r"\mathrm{KL}", kl),
        uses=("zero-budget", "merging-tokens"),
    )


@dataclass(frozen=True)
class Chain:
    """Draft and target distributions of the next token given the last one (None at the start)."""

    draft: tuple[Distribution, ...]
    target: tuple[Distribution, ...]
    share: Fraction
    drafted: int

    def pair(self, text: tuple[int, ...]) -> tuple[Distribution, Distribution]:
        place = text[-1] + 1 if text else 0
        return self.draft[place], self.target[place]


def chains() -> Iterator[Chain]:
    """All chains with probabilities 1/4 and 3/4, two boosts, blocks of one or two drafts."""
    steep, flat = (Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4))
    for choice in product((steep, flat), repeat=6):
        for share, drafted in product((Fraction(1, 5), Fraction(1)), (1, 2)):
            yield Chain(choice[:3], choice[3:], share, drafted)


def divergence(p: Distribution, q: Distribution) -> arb:
    """KL of two rational distributions as a ball."""
    terms = [ball(x) * (ball(x) / ball(y)).log() for x, y in zip(p, q, strict=True) if x]
    return sum(terms, arb(0))


@dataclass
class Tally:
    """Distribution of the text, expected ledgers, and the largest ledger of any path."""

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
        draft, target = chain.pair(text)
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


def text_distribution(chain: Chain) -> dict[tuple[int, ...], Fraction]:
    """The target's own distribution of the text."""
    law = {(): Fraction(1)}
    for _ in range(LENGTH):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(chain.pair(text)[1])
        }
    return law


@claim(
    name="ledger-enumerated",
    source="ours, section 4",
    statement="both ledger inequalities on 256 two-token chains with texts of 3 tokens, every path "
    "of acceptances followed; strict for some, because texts forget block positions",
    tex=r"\mathrm{KL}(\mathrm{out}_{1:3}\|q_{1:3}) \le \mathbb E\sum\mathrm{KL},\quad "
    r"\mathrm{TV}(\mathrm{out}_{1:3},q_{1:3}) \le \mathbb E\sum\mathrm{TV}",
    false=({"nats": Fraction(9, 10)}, {"variation": Fraction(1, 2)}),
)
def ledger_enumerated(
    nats: Fraction = Fraction(1), variation: Fraction = Fraction(1)
) -> Iterator[Step]:
    def every_chain() -> Finding:
        count = strict = 0
        tiny = ball(Fraction(1, 10**15))
        with ctx.workprec(PRECISION):
            for chain in chains():
                tally, target = enumerate_texts(chain), text_distribution(chain)
                pair = [tuple(law[text] for text in target) for law in (tally.text, target)]
                emitted_nats = divergence(*pair)
                holds = (
                    sum(tally.text.values()) == 1
                    and bool(emitted_nats <= ball(nats) * tally.nats + tiny)
                    and total_variation(*pair) <= variation * tally.variation
                )
                if not holds:
                    return Finding("fails", f"{chain}")
                count += 1
                strict += bool(emitted_nats + tiny < tally.nats)
        found = f"{count} chains, {strict} of them strict"
        return Finding("holds" if strict > 0 else "fails", found)

    yield Step(
        "Follow every path of tokens and block positions of every chain. Probabilities and TV are "
        "fractions; KL is a ball, allowed 1e-15.",
        r"\mathrm{KL}(\mathrm{out}_{1:3}\|q_{1:3}) \le \mathbb E\sum_t "
        r"\mathrm{KL}(\mathrm{out}_t\|q_t) + 10^{-15}",
        every_chain,
        "exhaustive",
        uses=("ledger", "ledger-total-variation"),
    )


@claim(
    name="budget-stop",
    source="ours, section 4",
    statement="a decoder that stops boosting before its ledger would pass B has KL(text) <= B: all "
    "256 chains, B = 1/20 and 1/5, every path",
    tex=r"\text{stop at } B \ \Rightarrow\ \mathrm{KL}(\mathrm{out}_{1:T}\|q_{1:T}) \le B",
    false=({"stops": False}, {"claimed": Fraction(1, 10)}),
)
def budget_stop(stops: bool = True, claimed: Fraction = Fraction(1)) -> Iterator[Step]:
    def every_path() -> Finding:
        count = boosted = 0
        with ctx.workprec(PRECISION):
            for chain, limit in product(chains(), (Fraction(1, 20), Fraction(1, 5))):
                tally = enumerate_texts(chain, limit if stops else None)
                target, bound = text_distribution(chain), ball(claimed * limit)
                pair = [tuple(law[text] for text in target) for law in (tally.text, target)]
                if not (bool(tally.most <= bound) and bool(divergence(*pair) <= bound)):
                    return Finding("fails", f"{chain}, B = {limit}")
                count += 1
                boosted += bool(tally.nats > 0)
        found = f"{count} cases, {boosted} of them boosted"
        return Finding("holds" if boosted > 50 else "fails", found)

    yield Step(
        "Each path's ledger stays within B, so its expectation does, and it bounds KL of the text. "
        "Both are seen in every case.",
        r"\max_{\text{paths}} \sum_t \mathrm{KL}(\mathrm{out}_t\|q_t) \le B, \qquad "
        r"\mathrm{KL}(\mathrm{out}_{1:3}\|q_{1:3}) \le B",
        every_path,
        "exhaustive",
        uses=("ledger",),
    )
