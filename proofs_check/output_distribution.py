"""The law that is emitted at one position, as opposed to the candidates the budget constrains.

Statements hold for any boost g(n) in [q(n), 1] and any vocabulary. The symbolic ones are reduced
to inequalities between a few numbers of one token; `a, b, ...` are slacks >= 0.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np

from cactus_theory import CandidateRule, output_distribution
from cactus_theory.specification import verify
from proofs_check.claims import Finding, claim, conclude
from proofs_check.rational import Law, candidate, emitted, laws, overlap, stretched, total_variation
from proofs_check.symbolic import nonnegative, sp, vanishes

a, b, c, d, u, v = sp.symbols("a b c d u v", positive=True)
SHRUNK = 1 / (1 + a)  # c_n
SHARES = (Fraction(0), Fraction(1, 3), Fraction(1))


@claim(
    name="ordering",
    theorem="ours, section 3",
    statement="for any boosts g in [q, 1]: where p > q, q <= out = min(p, g) <= p; elsewhere "
    "p <= out <= q",
    tex=r"p > q:\ q \le \mathrm{out} = \min(p,g) \le p; \qquad p \le q:\ p \le \mathrm{out} \le q",
    kind="symbolic",
    assumes=("0 < q < 1", "a rejected token n has g(n) < p(n), so p(n) > q(n) and c = c_n <= 1"),
    false=({"shrunk": 1 + a}, {"boost": -b}),
)
def ordering(shrunk: Any = SHRUNK, boost: Any = b) -> Finding:
    q = u
    over = q + c  # p of a token with p > q
    below = q / (1 + c)  # p of a token with p <= q
    weight = sp.symbols("share", positive=True)  # w(n)/Z_n summed over n, at most 1
    share = 1 / (1 + weight)
    drafted = q + boost + d  # p(n) of the rejected token, above g = q + boost
    return conclude(
        "residuals live where p <= q; their weights w(n)/Z_n sum to at most 1",
        ("residual is empty where p > q", nonnegative(over - shrunk * q)),
        ("and at n itself", nonnegative(drafted - (q + boost))),
        ("min(p, g) >= q", nonnegative(q + boost - q) and nonnegative(drafted - q)),
        # Z_n >= W, token by token: p - c q >= [p - g]_+ for tokens with p > q
        ("w(x) <= p - c q, accepted", nonnegative(over - shrunk * q)),
        ("w(x) <= p - c q, rejected", nonnegative((drafted - shrunk * q) - d)),
        # out = p + sum_n w_n/Z_n [c_n q - p]_+ <= p + share (q - p)
        ("recovered <= q - p", nonnegative((q - below) - (shrunk * q - below))),
        ("out <= q where p <= q", nonnegative(q - (below + share * (q - below)))),
    )


def grid(size: int, parts: int) -> Any:
    """All pairs of rational laws, with every choice of boosts from three levels per token."""
    for draft, target in product(laws(size, parts), repeat=2):
        levels = [stretched(target, share) for share in SHARES]
        for choice in product(*zip(*levels, strict=True)):
            yield draft, target, choice


def rest_on_one_token(target: Law, token: int, boosted: Fraction) -> Law:
    """A candidate of another rule, for the false variant: all that is left goes to one token."""
    other = (token + 1) % len(target)
    return tuple(
        {token: boosted, other: 1 - boosted}.get(x, Fraction(0)) for x in range(len(target))
    )


def ordered(draft: Law, target: Law, law: Law) -> bool:
    """Whether every token's emitted probability lies between its draft and target ones."""
    return all(min(p, q) <= o <= max(p, q) for p, q, o in zip(draft, target, law, strict=True))


@claim(
    name="ordering-enumerated",
    theorem="ours, section 3",
    statement="ordering, gain = cost and the price of acceptance on all pairs of laws on 3 tokens "
    "in quarters, each token's boost at one of three levels",
    tex=r"\mathrm{acceptance} - \sum\min(p,q) = \mathrm{TV}(\mathrm{out}, q), \qquad "
    r"\mathrm{acceptance} \le \sum\min(p, \mathrm{out})",
    kind="exhaustive",
    false=({"lopsided": True}, {"price": 2}),
)
def ordering_enumerated(lopsided: bool = False, price: int = 1) -> Finding:
    return _ordering_on(3, 4, lopsided, price)


@claim(
    name="ordering-enumerated-4",
    theorem="ours, section 3",
    statement="the same on all pairs of laws on 4 tokens in thirds: several rejected tokens, "
    "several recovered ones",
    tex=r"\mathrm{acceptance} - \sum\min(p,q) = \mathrm{TV}(\mathrm{out}, q) \quad (V = 4)",
    kind="exhaustive",
    false=({"lopsided": True}, {"price": 2}),
    quick=False,
)
def ordering_enumerated_4(lopsided: bool = False, price: int = 1) -> Finding:
    return _ordering_on(4, 3, lopsided, price)


def _ordering_on(size: int, parts: int, lopsided: bool, price: int) -> Finding:
    cases = 0
    for draft, target, boosts in grid(size, parts):
        law = emitted(draft, target, boosts, rest_on_one_token if lopsided else candidate)
        accepted = overlap(draft, boosts)
        gain, cost = accepted - overlap(draft, target), total_variation(law, target)
        steps = (
            ("a law", sum(law) == 1),
            ("ordered", ordered(draft, target, law)),
            ("gain = cost", gain * price == cost),
            ("price of acceptance", accepted <= overlap(draft, law)),
        )
        cases += 1
        if not all(holds for _, holds in steps):
            return conclude("", *steps)
    return Finding("holds", f"{cases} cases")


@claim(
    name="output-below-draft",
    theorem="Theorem 3, second half",
    statement="D_f(out||q) <= D_f(p||q) for every convex f and any boosts g in [q, 1]",
    tex=r"D_f(\mathrm{out}\|q) \le D_f(p\|q)",
    kind="symbolic",
    assumes=("f is convex with f(1) = 0 and supporting slope m at 1",),
    depends=("ordering",),
    false=({"beyond": sp.Rational(11, 10)},),
)
def output_below_draft(beyond: Any = 1) -> Finding:
    part = beyond / (1 + a)  # out/q = 1 + part (p/q - 1) by the ordering, 0 <= part <= 1
    return conclude(
        "token by token, after a tilt by m (t - 1) that sums to zero", *tilted_part(part)
    )


def tilted_part(part: Any) -> tuple[tuple[str, bool], ...]:
    """D_f does not fall from 1 + part (ratio - 1) to ratio, two laws over q, where part <= 1."""
    ratio, m = sp.symbols("ratio m", real=True)
    value = sp.Symbol("tilted", positive=True)  # f(ratio) - m (ratio - 1), never negative
    # convexity between 1 and the ratio: f at the part of the way <= part f(ratio) + (1 - part) f(1)
    above = part * (value + m * (ratio - 1))
    tilted = above - m * part * (ratio - 1)
    total_q, total_law = sp.symbols("sum_q sum_law", positive=True)
    tilt = (m * (total_law - total_q)).subs({total_law: 1, total_q: 1})
    return (
        ("tilt sums to 0", vanishes(tilt)),
        ("tilted f at the part of the way is part of it", vanishes(tilted - part * value)),
        ("so at most it", nonnegative(value - sp.expand(part * value))),
    )


@claim(
    name="kl-over-s",
    theorem="ours, section 3",
    statement="KL(out||q) <= sum over p > q of min(p, g) log(min(p, g)/q)",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \sum_{x \in S} \min(p,g)\log\frac{\min(p,g)}{q}",
    kind="symbolic",
    assumes=("log t <= 0 for 0 < t <= 1",),
    depends=("ordering", "tangent-of-log"),
    false=({"sign": -1},),
)
def kl_over_s(sign: int = 1) -> Finding:
    q, out = a + b, a  # off S, out <= q by the ordering
    dropped = -sign * out * (out / q - 1)  # log t <= t - 1
    return conclude(
        "the terms left out are negative",
        ("off S", nonnegative(dropped)),
    )


@claim(
    name="one-hot-draft",
    theorem="ours, section 3",
    statement="a one-hot draft emits exactly its candidate h, so there delta does bound the output",
    tex=r"p = \mathbf 1_n \ \Rightarrow\ \mathrm{out} = h^{(n)}",
    kind="symbolic",
    assumes=("0 < q(n) < 1",),
    false=({"rejected": 1},),
)
def one_hot_draft(rejected: Any = None) -> Finding:
    q, x = sp.symbols("q x", positive=True)  # x: target probability of another token
    g = sp.Symbol("g", positive=True)
    shrink = (1 - g) / (1 - q)
    mass = 1 - g if rejected is None else rejected
    residual_total = shrink * (1 - q)  # sum of [h - p]_+ over the others
    return conclude(
        "accepted with g, else recovered from h without n",
        ("other tokens", vanishes(mass * shrink * x / residual_total - shrink * x)),
        ("total", vanishes(g + residual_total - 1)),
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
    name="specification-law",
    theorem="specification",
    statement="the verifier of cactus_theory, enumerated over its uniforms, emits exactly the law "
    "of the formula, on all pairs of laws on 3 tokens in quarters",
    tex=r"\mathbb P(\text{verify emits } x) = p(x)\,a(x) + \sum_n w(n)\,r_n(x)",
    kind="exhaustive",
    false=({"asked": Fraction(1, 4)},),
)
def specification_law(asked: Fraction = Fraction(1, 3)) -> Finding:
    cases = 0
    for share in (Fraction(0), Fraction(1, 3)):
        for draft, target in product(laws(3, 4), repeat=2):
            formula = emitted(draft, target, stretched(target, asked if share else share))
            if enumerated(Stretch(share), draft, target) != formula:
                return Finding("fails", f"draft {draft}, target {target}, share {share}")
            cases += 1
    return Finding("holds", f"{cases} laws, equal as rationals")


def enumerated(rule: CandidateRule, draft: Law, target: Law) -> Law:
    """The law of the first token `verify` emits, by the cells on which it is constant."""
    law = [Fraction(0)] * len(draft)
    laws_ = np.array([draft], dtype=object), np.array([target, target], dtype=object)
    for token, p in enumerate(draft):
        g = rule.boost(target[token])
        if p == 0:
            continue
        passes = min(g / p, Fraction(1))
        h = [rule.shrink(target[token]) * t - s for s, t in zip(draft, target, strict=True)]
        weights = [max(w, Fraction(0)) if x != token else Fraction(0) for x, w in enumerate(h)]
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
                    draft=laws_[0],
                    target=laws_[1],
                    accept_uniforms=[(low + high) / 2],
                    recover_uniform=(start + end) / 2 / edges[-1],
                )
                law[block[0]] += p * (high - low) * (end - start) / edges[-1]
    return tuple(law)


@claim(
    name="code-output-law",
    theorem="section 3",
    statement="the sorted O(V log V) output law of cactus_theory agrees with the definition within "
    "1e-15 on all pairs of laws on 3 tokens in quarters, at two boosts",
    tex=r"\max_x |\mathrm{out}_{\text{code}}(x) - \mathrm{out}(x)| \le 10^{-15}",
    kind="evidence",
    false=({"tolerance": 0.0}, {"share": 0.5}),
)
def code_output_law(tolerance: float = 1e-15, share: float = 1 / 3) -> Finding:
    worst = 0.0
    for draft, target in product(laws(3, 4), repeat=2):
        for exact, used in ((Fraction(1, 3), share), (Fraction(1), 1.0)):
            law = emitted(draft, target, stretched(target, exact))
            got = output_distribution(
                Stretch(used),
                draft=np.array(draft, dtype=float),
                target=np.array(target, dtype=float),
            )
            worst = max(worst, float(np.abs(got - np.array(law, dtype=float)).max()))
    return conclude(f"largest difference {worst:.1e}", ("within tolerance", worst <= tolerance))
