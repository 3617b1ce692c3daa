"""The distribution that is emitted at one position, as opposed to the candidates.

Statements hold for any boosted probabilities g(n) in [q(n), 1] and any vocabulary. The symbolic
ones are reduced to inequalities between a few numbers of one token; `a, b, ...` are slacks >= 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np

from cactus_theory import CandidateRule, output_distribution
from cactus_theory.specification import verify
from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import (
    Distribution,
    candidate,
    distributions,
    emitted,
    overlap,
    stretched,
    total_variation,
)
from proofs_check.symbolic import at_least, equal, nonnegative, sp, vanishes

a, b, c, d, p, q, g, h = sp.symbols("a b c d p q g h", positive=True)
SHRUNK = 1 / (1 + a)
SHARES = (Fraction(0), Fraction(1, 3), Fraction(1))


@claim(
    name="ordering",
    source="ours, section 3",
    statement="for any boosted probabilities g in [q, 1]: where p > q, q <= out = min(p, g) <= "
    "p; elsewhere p <= out <= q",
    tex=r"p > q:\ q \le \mathrm{out} = \min(p,g) \le p; \qquad p \le q:\ p \le \mathrm{out} \le q",
    false=({"shrunk": 1 + a}, {"boost": -b}),
)
def ordering(shrunk: Any = SHRUNK, boost: Any = b) -> Iterator[Step]:
    factor, share = sp.symbols("c_n s", positive=True)
    yield at_least(
        "A rejected token n has $g(n) < p(n)$, so n is in S. Its candidate lowers all other tokens "
        "by the factor $c_n$, which is at most 1.",
        1,
        (r"c_n = \frac{1-g}{1-q}", (1 - g) / (1 - q)),
        where={g: 1 / (1 + d) + boost, q: 1 / (1 + d)},
        assumes="$0 < q(n) < 1$",
    )
    yield at_least(
        "Nothing in S is recovered: there $p > q \\ge c_n q = h$, and at n itself $p > g = h$.",
        (r"p - c_n q", p - factor * q),
        0,
        where={p: q + c, factor: shrunk},
    )
    yield Step(
        "So what is emitted in S is what is accepted, min(p, g), which is at least q and at most "
        "p.",
        r"\min(p, g) \ge q \qquad \left(g = q + b,\ p = g + d \ \text{ or }\ p \le g\right)",
        lambda: nonnegative(boost) and nonnegative(boost + d),
    )
    yield at_least(
        "The residual of n has the total $Z_n = \\sum [h^{(n)} - p]_+ = \\sum [p - h^{(n)}]_+$, "
        "and the second sum has one term per token x of S. Each is at least the rejected mass "
        "$w(x) = [p - g]_+$ of that token, as $g \\ge q \\ge c_n q$. So $Z_n \\ge \\sum_x w(x)$, "
        "and the weights $w(n)/Z_n$ of the residuals sum to at most 1.",
        (r"(p - c_n q) - (p - g)", (p - factor * q) - (p - g)),
        0,
        where={g: q + boost, factor: shrunk},
    )
    yield at_least(
        "Off S, n recovers at most $q - p$ times its weight, as $c_n \\le 1$.",
        (r"(q - p) - (c_n q - p)", (q - p) - (factor * q - p)),
        0,
        where={factor: shrunk},
    )
    yield at_least(
        "So off S the emitted probability is p and at most the share s of $q - p$, the sum of "
        "the weights: between p and q.",
        q,
        ("p + s(q - p)", p + share * (q - p)),
        where={share: 1 / (1 + b), p: q / (1 + c)},
    )


def grid(size: int, parts: int) -> Any:
    """All pairs of rational distributions, with each boosted probability at one of three levels."""
    for draft, target in product(distributions(size, parts), repeat=2):
        levels = [stretched(target, share) for share in SHARES]
        for choice in product(*zip(*levels, strict=True)):
            yield draft, target, choice


def rest_on_one_token(target: Distribution, token: int, boosted: Fraction) -> Distribution:
    """A candidate of another rule, for the false variant: all that is left goes to one token."""
    other = (token + 1) % len(target)
    return tuple(
        {token: boosted, other: 1 - boosted}.get(x, Fraction(0)) for x in range(len(target))
    )


def ordered(draft: Distribution, target: Distribution, law: Distribution) -> bool:
    """Whether every token's emitted probability lies between its draft and target ones."""
    return all(min(p, q) <= o <= max(p, q) for p, q, o in zip(draft, target, law, strict=True))


@claim(
    name="ordering-enumerated",
    source="ours, section 3",
    statement="ordering, gain = cost and the price of acceptance on all pairs of distributions on "
    "3 tokens in quarters, each boosted probability at one of three levels",
    tex=r"\mathrm{acceptance} - \sum\min(p,q) = \mathrm{TV}(\mathrm{out}, q), \qquad "
    r"\mathrm{acceptance} \le \sum\min(p, \mathrm{out})",
    false=({"lopsided": True}, {"price": 2}),
)
def ordering_enumerated(lopsided: bool = False, price: int = 1) -> Iterator[Step]:
    yield _ordering_on(3, 4, lopsided, price)


@claim(
    name="ordering-enumerated-4",
    source="ours, section 3",
    statement="the same on all pairs of distributions on 4 tokens in thirds: several rejected "
    "tokens, several recovered ones",
    tex=r"\mathrm{acceptance} - \sum\min(p,q) = \mathrm{TV}(\mathrm{out}, q) \quad (V = 4)",
    false=({"lopsided": True}, {"price": 2}),
    quick=False,
)
def ordering_enumerated_4(lopsided: bool = False, price: int = 1) -> Iterator[Step]:
    yield _ordering_on(4, 3, lopsided, price)


def _ordering_on(size: int, parts: int, lopsided: bool, price: int) -> Step:
    def every_case() -> Finding:
        cases = 0
        for draft, target, boosts in grid(size, parts):
            law = emitted(draft, target, boosts, rest_on_one_token if lopsided else candidate)
            accepted = overlap(draft, boosts)
            gain, cost = accepted - overlap(draft, target), total_variation(law, target)
            holds = sum(law) == 1 and ordered(draft, target, law) and gain * price == cost
            if not holds or accepted > overlap(draft, law):
                return Finding("fails", f"draft {draft}, target {target}, boosts {boosts}")
            cases += 1
        return Finding("holds", f"{cases} cases")

    return Step(
        "Compute the emitted distribution of every case from its definition, as fractions. It sums "
        "to 1, lies between p and q at every token, and its distance from q is the acceptance "
        "gained.",
        r"\min(p, q) \le \mathrm{out} \le \max(p, q)",
        every_case,
        "exhaustive",
        uses=("ordering", "gain-equals-cost"),
    )


@claim(
    name="output-below-draft",
    source="Theorem 3, second half",
    statement="D_f(out||q) <= D_f(p||q) for every convex f and any boosted probabilities g in "
    "[q, 1]",
    tex=r"D_f(\mathrm{out}\|q) \le D_f(p\|q)",
    false=({"beyond": sp.Rational(11, 10)},),
)
def output_below_draft(beyond: Any = 1) -> Iterator[Step]:
    yield from convex_part(
        beyond / (1 + a),
        r"\frac{\mathrm{out}}{q} = 1 + \lambda\left(\frac pq - 1\right),\ 0 \le \lambda \le 1",
        "By the ordering, out lies between p and q at every token.",
        "ordering",
    )


def convex_part(part: Any, relation: str, why: str, *uses: str) -> Iterator[Step]:
    """Steps: D_f does not fall from ratio 1 + part (r - 1) to r, where 0 <= part <= 1."""
    ratio, m = sp.symbols("r m", real=True)
    value = sp.Symbol("phi", positive=True)  # f(ratio) - m (ratio - 1), never negative
    total_q, total_law = sp.symbols("Q O", positive=True)
    yield Step(
        "Let m be the slope of a supporting line of f at 1, and $\\varphi(t) = f(t) - m(t-1)$. "
        "It is never negative, it is 0 at 1, and it gives the same divergence, because both "
        "distributions sum to 1.",
        r"\sum q\,m\left(\tfrac{\mathrm{out}}{q} - 1\right) = m\left(\sum \mathrm{out} - \sum q"
        r"\right) = 0",
        lambda: vanishes((m * (total_law - total_q)).subs({total_law: 1, total_q: 1})),
        assumes="f is convex with f(1) = 0",
    )
    # convexity between 1 and the ratio: f at the part of the way <= part f(ratio) + (1 - part) f(1)
    above = part * (value + m * (ratio - 1))
    yield Step(
        f"{why} With r the larger ratio, convexity between 1 and r bounds phi there by the same "
        "part of phi(r).",
        relation + r" \quad\Rightarrow\quad \varphi(1 + \lambda(r-1)) \le \lambda \varphi(r)",
        lambda: vanishes(above - m * part * (ratio - 1) - part * value),
        uses=uses,
    )
    yield Step(
        "As the part is at most 1 and phi is not negative, no token's term is smaller than before. "
        "Sum over the tokens.",
        r"\lambda\varphi(r) \le \varphi(r)",
        lambda: nonnegative(value - sp.expand(part * value)),
    )


@claim(
    name="kl-over-s",
    source="ours, section 3",
    statement="KL(out||q) <= sum over p > q of min(p, g) log(min(p, g)/q)",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \sum_{x \in S} \min(p,g)\log\frac{\min(p,g)}{q}",
    false=({"sign": -1},),
)
def kl_over_s(sign: int = 1) -> Iterator[Step]:
    out = sp.Symbol(r"\mathrm{out}", positive=True)
    yield at_least(
        "In S, out = min(p, g), and these terms are kept. Off S, $\\mathrm{out} \\le q$, and with "
        "$\\log t \\le t - 1$ the term is at most $\\mathrm{out}\\,(\\mathrm{out}/q - 1) \\le 0$: "
        "it may be left out.",
        (r"-\mathrm{out}\left(\tfrac{\mathrm{out}}q - 1\right)", -sign * out * (out / q - 1)),
        0,
        where={q: out + b},
        uses=("ordering", "tangent-of-log"),
    )


@claim(
    name="one-hot-draft",
    source="ours, section 3",
    statement="a draft that gives its token probability 1 emits exactly its candidate h, so there "
    "delta does bound what is emitted",
    tex=r"p = \mathbf 1_n \ \Rightarrow\ \mathrm{out} = h^{(n)}",
    false=({"rejected": 1},),
)
def one_hot_draft(rejected: Any = None) -> Iterator[Step]:
    x = sp.Symbol("q_x", positive=True)  # target probability of another token
    c_, mass = (1 - g) / (1 - q), 1 - g if rejected is None else rejected
    yield Step(
        "The token n is accepted with probability g, which is h(n). The other tokens of the "
        "candidate have total 1-g.",
        r"g + c\,(1 - q) = 1, \qquad c = \frac{1-g}{1-q}",
        lambda: vanishes(g + c_ * (1 - q) - 1),
        assumes="$0 < q(n) < 1$",
    )
    yield equal(
        "After a rejection, of probability 1-g, another token is drawn in proportion to its h: p "
        "is 0 there. So it is emitted with probability h.",
        (r"(1-g)\,\frac{c\,q_x}{c\,(1-q)}", mass * c_ * x / (c_ * (1 - q))),
        (r"c\,q_x", c_ * x),
    )


class Stretch(CandidateRule):
    """g = q + share (1 - q) where q > 0: a rule that stays within the rationals."""

    def __init__(self, share: Any) -> None:
        self.share = share

    def boost(self, target_prob: Any, *, xp: Any = np) -> Any:
        return (target_prob + self.share * (1 - target_prob)) * (target_prob > 0)

    def shrink(self, target_prob: Any, *, xp: Any = np) -> Any:
        return 1 - self.share * (target_prob > 0)


@claim(
    name="specification-distribution",
    source="specification",
    statement="the verifier of cactus_theory, enumerated over its uniforms, emits exactly the "
    "distribution of the formula, on all pairs of distributions on 3 tokens in quarters",
    tex=r"\mathbb P(\text{verify emits } x) = p(x)\,a(x) + \sum_n w(n)\,r_n(x)",
    false=({"asked": Fraction(1, 4)},),
)
def specification_distribution(asked: Fraction = Fraction(1, 3)) -> Iterator[Step]:
    for share, used in ((Fraction(0), Fraction(0)), (Fraction(1, 3), asked)):

        def agrees(share: Fraction = share, used: Fraction = used) -> Finding:
            pairs = list(product(distributions(3, 4), repeat=2))
            for draft, target in pairs:
                formula = emitted(draft, target, stretched(target, used))
                if enumerated(Stretch(share), draft, target) != formula:
                    return Finding("fails", f"draft {draft}, target {target}, share {share}")
            return Finding("holds", f"{len(pairs)} distributions, equal as rationals")

        yield Step(
            "The verifier's outcome is constant on cells of its two uniforms. Run it once in every "
            "cell, weigh by the cell's size, and compare with the definition "
            "as fractions, for " + (f"$g = q + {share}\\,(1 - q)$." if share else "$g = q$."),
            r"a = \min(1, g/p),\quad w = [p - g]_+,\quad r_n \propto [h^{(n)} - p]_+",
            agrees,
            "exhaustive",
        )


def enumerated(rule: CandidateRule, draft: Distribution, target: Distribution) -> Distribution:
    """Distribution of the first token `verify` emits, by the cells on which it is constant."""
    law = [Fraction(0)] * len(draft)
    rows = np.array([draft], dtype=object), np.array([target, target], dtype=object)
    for token, p in enumerate(draft):
        g = rule.boost(target[token])
        if p == 0:
            continue
        passes = min(g / p, Fraction(1))
        rest = [rule.shrink(target[token]) * t - s for s, t in zip(draft, target, strict=True)]
        weights = [max(w, Fraction(0)) if x != token else Fraction(0) for x, w in enumerate(rest)]
        edges = [Fraction(0)]
        for weight in weights if sum(weights) else target:
            edges.append(edges[-1] + weight)
        for low, high in ((Fraction(0), passes), (passes, Fraction(1))):
            if low == high:
                continue
            for start, end in pairwise(edges):
                if start == end:
                    continue
                block, _ = verify(
                    rule,
                    [token],
                    draft=rows[0],
                    target=rows[1],
                    accept_uniforms=[(low + high) / 2],
                    recover_uniform=(start + end) / 2 / edges[-1],
                )
                law[block[0]] += p * (high - low) * (end - start) / edges[-1]
    return tuple(law)


@claim(
    name="code-output-distribution",
    source="section 3, in code",
    statement="the sorted O(V log V) output distribution of cactus_theory agrees with the "
    "definition within 1e-15 on all pairs of distributions on 3 tokens in quarters, at two "
    "levels of g",
    tex=r"\max_x |\mathrm{out}_{\text{code}}(x) - \mathrm{out}(x)| \le 10^{-15}",
    expected="supported",
    false=({"tolerance": 0.0}, {"share": 0.5}),
)
def code_output_distribution(tolerance: float = 1e-15, share: float = 1 / 3) -> Iterator[Step]:
    def agrees() -> Finding:
        worst = 0.0
        for draft, target in product(distributions(3, 4), repeat=2):
            for exact, used in ((Fraction(1, 3), share), (Fraction(1), 1.0)):
                law = emitted(draft, target, stretched(target, exact))
                got = output_distribution(
                    Stretch(used),
                    draft=np.array(draft, dtype=float),
                    target=np.array(target, dtype=float),
                )
                worst = max(worst, float(np.abs(got - np.array(law, dtype=float)).max()))
        return Finding(
            "holds" if worst <= tolerance else "fails", f"largest difference {worst:.1e}"
        )

    yield Step(
        "Compare the code in float64 with the definition in fractions.",
        r"|\mathrm{out}_{\text{code}} - \mathrm{out}| \le 10^{-15}",
        agrees,
        "evidence",
        uses=("sorted-formula",),
    )
