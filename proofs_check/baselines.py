"""The other rules: what they emit, and what typical acceptance optimises."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from flint import ctx

from proofs_check.balls import PRECISION, ball
from proofs_check.certificates import witness, witness_record
from proofs_check.claims import Finding, claim, conclude
from proofs_check.rational import candidate, emitted, laws, stretched
from proofs_check.symbolic import nonnegative, sp, vanishes

p, q, a, b, c, h, w = sp.symbols("p q a b c h w", positive=True)


@claim(
    name="typical-acceptance",
    theorem="Proposition 4",
    statement="under a bound d' on the cross-entropy the largest h(n) is (d' - m)/(-log q(n) - m), "
    "m the least surprisal, capped at 1, reached with all the rest on the likeliest token",
    tex=r"-\sum_i h_i \log q_i \le d' \ \Rightarrow\ h(n) \le "
    r"\frac{d' - m}{-\log q(n) - m},\ m = \min_i(-\log q_i); \quad h = \mathbf 1_n \iff "
    r"-\log q(n) \le d'",
    kind="symbolic",
    assumes=("q(n) is not the largest probability; d' >= m, else nothing is allowed",),
    false=({"excess": 2},),
)
def typical_acceptance(excess: Any = 1) -> Finding:
    least, more, other, budget = sp.symbols("m more other budget", positive=True)
    surprisal = least + more  # of n; another token has m + other
    rest = sp.Symbol("rest", positive=True)  # 1 - h(n)
    # cross-entropy >= h(n) (m + more) + (1 - h(n)) m = m + h(n) more, with sum h = 1
    spent = (1 - rest) * surprisal + rest * (least + other)
    floor = least + (1 - rest) * more
    largest = excess * (budget - least) / more
    collapsed = largest * surprisal + (1 - largest) * least
    one_hot = (least + (1 - rest) * more).subs(rest, 0)
    return conclude(
        "linear in h: an extreme point, with at most two tokens left",
        ("lower bound", nonnegative(sp.expand(spent - floor))),
        ("attained by two tokens", vanishes(collapsed - budget)),
        ("one-hot when allowed", vanishes(one_hot - surprisal)),
    )


@claim(
    name="mixture-emits-mixture",
    theorem="section 6",
    statement="accepting with min(1, h/p) for h = w q + (1-w) p and recovering [q - p]_+ emits h",
    tex=r"[h - p]_+ = w\,[q - p]_+ \ \Rightarrow\ \mathrm{out} = h = wq + (1-w)p",
    kind="symbolic",
    assumes=("0 < w <= 1",),
    depends=("theorem-1",),
    false=({"weight": w**2},),
)
def mixture_emits_mixture(weight: Any = w) -> Finding:
    mixed = w * q + (1 - w) * p
    return conclude(
        "the two residuals are proportional, so Theorem 1 applies",
        ("residuals", vanishes((mixed - p) - weight * (q - p))),
    )


@claim(
    name="lenience-bound",
    theorem="section 6",
    statement="lenience l emits at most q/l: where p > q, out = min(p, q/l); elsewhere out <= q",
    tex=r"\mathrm{out} \le q / \ell, \qquad p \le q \Rightarrow \mathrm{out} \le q",
    kind="symbolic",
    assumes=("0 < l <= 1; the rejected mass sum [p - q/l]_+ is at most sum [p - q]_+",),
    false=({"lenience": 1 + a},),
)
def lenience_bound(lenience: Any = 1 / (1 + a)) -> Finding:
    raised = q / lenience
    below = q / (1 + b)  # p where p <= q
    share = 1 / (1 + c)  # rejected mass over sum [q - p]_+
    return conclude(
        "token by token",
        ("rejected mass", nonnegative((q + b) - q - ((q + b) - raised))),
        ("recovered", nonnegative(q - (below + share * (q - below)))),
        ("q <= q/l", nonnegative(raised - q)),
    )


@witness("standard-residual-differs")
def standard_residual_differs(share: Fraction, **cells: Fraction) -> bool:
    """Whether [q - p]_+ and [h - p]_+ emit different laws after the same acceptance test."""
    size = len(cells) // 2
    draft = tuple(cells[f"p{i}"] for i in range(size))
    target = tuple(cells[f"q{i}"] for i in range(size))
    boosts = stretched(target, share)
    ours = emitted(draft, target, boosts, candidate)
    other = emitted(draft, target, boosts, lambda target, token, boosted: target)
    return sum(draft) == sum(target) == 1 and ours != other


@claim(
    name="standard-residual",
    theorem="section 3",
    statement="FALSE: recovering from [q - p]_+ after Cactus's test emits the same law as Cactus",
    tex=r"[q-p]_+ \text{ for } [h-p]_+ \text{ changes the law: } p = \tfrac18(5,0,1,2),\ "
    r"q = \tfrac18(1,1,2,4),\ g = q + \tfrac17(1-q)",
    kind="counterexample",
    false=({"share": Fraction(0)},),
)
def standard_residual(share: Fraction = Fraction(1, 7)) -> Finding:
    draft = (Fraction(5, 8), Fraction(0), Fraction(1, 8), Fraction(1, 4))
    target = (Fraction(1, 8), Fraction(1, 8), Fraction(1, 4), Fraction(1, 2))
    cells = {f"p{i}": x for i, x in enumerate(draft)} | {f"q{i}": x for i, x in enumerate(target)}
    return conclude(
        "four tokens, one boosted",
        ("the laws differ", standard_residual_differs(share, **cells)),
        certificates=(witness_record("standard-residual-differs", share=share, **cells),),
    )


@claim(
    name="boost-beyond-draft",
    theorem="section 1",
    statement="a boost above max(p(n), q(n)) changes nothing that is emitted: all pairs of laws on "
    "3 tokens in quarters, every token's boost cut to max(p, q)",
    tex=r"g \to \min(g, \max(p, q)) \text{ leaves } \mathrm{out} \text{ unchanged}",
    kind="exhaustive",
    false=({"cut": Fraction(9, 10)},),
)
def boost_beyond_draft(cut: Fraction = Fraction(1)) -> Finding:
    cases = 0
    shares = (Fraction(1, 3), Fraction(2, 3), Fraction(1))
    for draft, target in product(laws(3, 4), repeat=2):
        for share in shares:
            full = stretched(target, share)
            triples = zip(full, draft, target, strict=True)
            cut_off = tuple(max(q, min(g, cut * max(p, q))) for g, p, q in triples)
            if emitted(draft, target, full) != emitted(draft, target, cut_off):
                return Finding("fails", f"draft {draft}, target {target}, share {share}")
            cases += 1
    return Finding("holds", f"{cases} cases")


@witness("typical-accepts-anything")
def typical_accepts_anything(drafted: Fraction, epsilon: Fraction, exceeds: Fraction) -> bool:
    """One-hot draft on a token of probability `drafted` just above `epsilon`: out is one-hot."""
    return drafted > epsilon and bool(-ball(drafted).log() > ball(exceeds))


@claim(
    name="typical-no-guarantee",
    theorem="section 6",
    statement="FALSE: typical acceptance keeps the output within 2 nats of the target: a token "
    "with q(n) just above 0.09 is emitted surely, at KL = log(1/q(n)) > 2.4",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) = \log\tfrac{1}{q(n)} > 2.4 \quad (q(n) = .0901,\ "
    r"\varepsilon = .09)",
    kind="counterexample",
    false=({"exceeds": Fraction(241, 100)}, {"drafted": Fraction(89, 1000)}),
)
def typical_no_guarantee(
    exceeds: Fraction = Fraction(24, 10), drafted: Fraction = Fraction(901, 10_000)
) -> Finding:
    data = {"drafted": drafted, "epsilon": Fraction(9, 100), "exceeds": exceeds}
    with ctx.workprec(PRECISION):
        holds = typical_accepts_anything(**data)
    return conclude(
        "above epsilon the entropy is not looked at",
        ("accepted, and far", holds),
        certificates=(witness_record("typical-accepts-anything", **data),),
    )
