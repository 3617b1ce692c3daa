"""The other rules: what they emit, and what typical acceptance optimises."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

from proofs_check.balls import ball
from proofs_check.certificates import witness
from proofs_check.claims import Finding, Step, claim
from proofs_check.misreadings import certified
from proofs_check.rational import candidate, distributions, emitted, stretched
from proofs_check.symbolic import at_least, equal, sp

p, q, a, b, c, h, w = sp.symbols("p q a b c h w", positive=True)


@claim(
    name="typical-acceptance",
    source="Proposition 4",
    statement="under a bound d' on the cross-entropy the largest h(n) is (d' - m)/(-log q(n) - m), "
    "m the least surprisal, capped at 1, reached with all the rest on the likeliest token",
    tex=r"-\sum_i h_i \log q_i \le d' \ \Rightarrow\ h(n) \le "
    r"\frac{d' - m}{-\log q(n) - m},\ m = \min_i(-\log q_i); \quad h = \mathbf 1_n \iff "
    r"-\log q(n) \le d'",
    false=({"excess": 2},),
)
def typical_acceptance(excess: Any = 1) -> Iterator[Step]:
    least, more, other, budget = sp.symbols("m s r d'", positive=True)
    # surprisals: n has m + s, another token m + r
    yield at_least(
        "The cross-entropy is linear in h: it is the mean surprisal under h. Let n have surprisal "
        "m + s. All other tokens have at least m, say m + r, so the mean is at least m + h(n) s.",
        ("h(m + s) + (1 - h)(m + r)", h * (least + more) + (1 - h) * (least + other)),
        least + h * more,
        where={h: 1 / (1 + a)},
        assumes="q(n) is not the largest probability, so $s > 0$; $d' \\ge m$, else nothing is "
        "allowed",
    )
    largest = excess * (budget - least) / more
    yield equal(
        "So $h(n) \\le (d' - m)/s$. With all the rest on the likeliest token, r = 0, and the "
        "budget is spent exactly.",
        (
            r"\left.h(m + s) + (1 - h) m\right|_{h = (d'-m)/s}",
            largest * (least + more) + (1 - largest) * least,
        ),
        budget,
    )
    yield equal(
        "With h(n) = 1 the mean is the surprisal of n: the one-hot candidate is allowed exactly if "
        "that is within d'.",
        (r"\left.m + h s\right|_{h = 1}", (least + h * more).subs(h, 1)),
        least + more,
    )


@claim(
    name="mixture-emits-mixture",
    source="section 6",
    statement="accepting with min(1, h/p) for h = w q + (1-w) p and recovering [q - p]_+ emits h",
    tex=r"[h - p]_+ = w\,[q - p]_+ \ \Rightarrow\ \mathrm{out} = h = wq + (1-w)p",
    false=({"weight": w**2},),
)
def mixture_emits_mixture(weight: Any = w) -> Iterator[Step]:
    yield equal(
        "The residual of the mixture is proportional to that of the target. So both give the same "
        "distribution after a rejection, and with one fixed candidate h is emitted.",
        (r"h - p = \left[wq + (1-w)p\right] - p", w * q + (1 - w) * p - p),
        ("w(q - p)", weight * (q - p)),
        assumes="$0 < w \\le 1$",
        uses=("theorem-1",),
    )


@claim(
    name="lenience-bound",
    source="section 6",
    statement="lenience l emits at most q/l: where p > q, out = min(p, q/l); elsewhere out <= q",
    tex=r"\mathrm{out} \le q / \ell, \qquad p \le q \Rightarrow \mathrm{out} \le q",
    false=({"lenience": 1 + a},),
)
def lenience_bound(lenience: Any = 1 / (1 + a)) -> Iterator[Step]:
    level, share = sp.symbols(r"\ell s", positive=True)
    yield at_least(
        "Where $p > q$ nothing is recovered from $[q - p]_+$, so out = min(p, q/l). The rejected "
        "mass of such a token is at most p - q; the sum of those is the total of the residual.",
        (r"(p - q) - \left(p - \tfrac q\ell\right)", (p - q) - (p - q / level)),
        0,
        where={level: lenience},
        assumes="$0 < \\ell \\le 1$",
    )
    yield at_least(
        "So elsewhere at most the whole residual is recovered: out is p and a share s of q - p, at "
        "most q, which is at most q/l.",
        q,
        ("p + s(q - p)", p + share * (q - p)),
        where={p: q / (1 + b), share: 1 / (1 + c)},
    )
    yield at_least("And q is at most q/l.", q / level, q, where={level: lenience})


@claim(
    name="tolerance-bound",
    source="ours",
    statement="accepting with min(1, q/p + t) and recovering [q - p]_+ (EARS) emits "
    "min(p, q + t p) where p > q and at most q elsewhere, so TV(out, q) <= t",
    tex=r"\mathrm{out} - q \le t p \ (p > q), \quad p \le q \Rightarrow \mathrm{out} \le q "
    r"\ \Rightarrow\ \mathrm{TV}(\mathrm{out}, q) \le t",
    false=({"tolerance": w * (1 + a)}, {"drafted": 1 + b}),
)
def tolerance_bound(tolerance: Any = w, drafted: Any = 1 / (1 + b)) -> Iterator[Step]:
    share, kept = sp.symbols("s P", positive=True)
    yield at_least(
        "Where $p > q$ nothing is recovered from $[q - p]_+$, so out = min(p, q + t p), which is "
        "at most q + t p.",
        ("t p", w * p),
        (r"\mathrm{out} - q", h - q),
        where={h: q + tolerance * p / (1 + c)},
        assumes="$0 \\le t \\le 1$",
    )
    yield at_least(
        "There out is at least q, so the rejected mass p - out is at most p - q. The sum of those "
        "is the total of the residual.",
        ("p - q", p - q),
        (r"p - \mathrm{out}", p - h),
        where={h: q * (1 + c)},
    )
    yield at_least(
        "So elsewhere at most the whole residual is recovered: out is p and a share s of q - p, at "
        "most q.",
        q,
        ("p + s(q - p)", p + share * (q - p)),
        where={p: q / (1 + b), share: 1 / (1 + c)},
    )
    yield at_least(
        "The total variation is the sum of out - q where that is positive, so only where $p > q$. "
        "With P the mass of the draft there, it is at most t P.",
        ("t", w),
        (r"t P", w * kept),
        where={kept: drafted},
    )


@witness("standard-residual-differs")
def standard_residual_differs(share: Fraction, **cells: Fraction) -> bool:
    """Whether [q - p]_+ and [h - p]_+ emit different distributions after the same test."""
    size = len(cells) // 2
    draft = tuple(cells[f"p{i}"] for i in range(size))
    target = tuple(cells[f"q{i}"] for i in range(size))
    boosts = stretched(target, share)
    ours = emitted(draft, target, boosts, candidate)
    other = emitted(draft, target, boosts, lambda target, token, boosted: target)
    return sum(draft) == sum(target) == 1 and ours != other


@claim(
    name="standard-residual",
    source="section 3",
    statement="FALSE: recovering from [q - p]_+ after Cactus's test emits the same distribution as "
    "Cactus",
    tex=r"[q-p]_+ \text{ for } [h-p]_+ \text{ changes it: } p = \tfrac18(5,0,1,2),\ "
    r"q = \tfrac18(1,1,2,4),\ g = q + \tfrac17(1-q)",
    expected="refuted",
    false=({"share": Fraction(0)},),
)
def standard_residual(share: Fraction = Fraction(1, 7)) -> Iterator[Step]:
    draft = (Fraction(5, 8), Fraction(0), Fraction(1, 8), Fraction(1, 4))
    target = (Fraction(1, 8), Fraction(1, 8), Fraction(1, 4), Fraction(1, 2))
    cells = {f"p{i}": x for i, x in enumerate(draft)} | {f"q{i}": x for i, x in enumerate(target)}
    yield Step(
        "Four tokens, of which one can be rejected. Compute both emitted distributions as "
        "fractions: they differ.",
        r"\min(p, g) + \frac{w(n)}{Z_n}[h^{(n)} - p]_+ \ne \min(p, g) + "
        r"\frac{w(n)}{\sum [q-p]_+} [q - p]_+",
        lambda: certified(
            standard_residual_differs, "standard-residual-differs", share=share, **cells
        ),
        "counterexample",
    )


@claim(
    name="boost-beyond-draft",
    source="section 1",
    statement="a boosted probability above max(p(n), q(n)) changes nothing that is emitted: all "
    "pairs of distributions on 3 tokens in quarters, all cut to max(p, q)",
    tex=r"g \to \min(g, \max(p, q)) \text{ leaves } \mathrm{out} \text{ unchanged}",
    false=({"cut": Fraction(9, 10)},),
)
def boost_beyond_draft(cut: Fraction = Fraction(1)) -> Iterator[Step]:
    def unchanged() -> Finding:
        cases = 0
        for draft, target in product(distributions(3, 4), repeat=2):
            for share in (Fraction(1, 3), Fraction(2, 3), Fraction(1)):
                full = stretched(target, share)
                triples = zip(full, draft, target, strict=True)
                cut_off = tuple(max(q, min(g, cut * max(p, q))) for g, p, q in triples)
                if emitted(draft, target, full) != emitted(draft, target, cut_off):
                    return Finding("fails", f"draft {draft}, target {target}, share {share}")
                cases += 1
        return Finding("holds", f"{cases} cases")

    yield Step(
        "Compute what is emitted with and without the cut, as fractions, at three levels.",
        r"\mathrm{out}(g) = \mathrm{out}(\min(g, \max(p, q)))",
        unchanged,
        "exhaustive",
    )


@witness("typical-accepts-anything")
def typical_accepts_anything(drafted: Fraction, epsilon: Fraction, exceeds: Fraction) -> bool:
    """One-hot draft on a token of probability `drafted` just above `epsilon`: out is one-hot."""
    return drafted > epsilon and bool(-ball(drafted).log() > ball(exceeds))


@claim(
    name="typical-no-guarantee",
    source="section 6",
    statement="FALSE: typical acceptance keeps the output within 2 nats of the target: a token "
    "with q(n) just above 0.09 is always emitted, at KL = log(1/q(n)) > 2.4",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) = \log\tfrac{1}{q(n)} > 2.4 \quad (q(n) = .0901,\ "
    r"\varepsilon = .09)",
    expected="refuted",
    false=({"exceeds": Fraction(241, 100)}, {"drafted": Fraction(89, 1000)}),
)
def typical_no_guarantee(
    exceeds: Fraction = Fraction(24, 10), drafted: Fraction = Fraction(901, 10_000)
) -> Iterator[Step]:
    data = {"drafted": drafted, "epsilon": Fraction(9, 100), "exceeds": exceeds}
    yield Step(
        "A token above the threshold epsilon is always accepted, whatever the entropy of the "
        "target. A draft that gives it probability 1 always emits it.",
        r"q(n) > \varepsilon, \qquad \log\frac{1}{q(n)} > 2.4",
        lambda: certified(typical_accepts_anything, "typical-accepts-anything", **data),
        "counterexample",
    )


@claim(
    name="threshold-bound",
    source="ours",
    statement="two thresholds, g = 1 if q >= single, else min(1, q / total), grant at most q/l, "
    "l = min(single, total), so KL(h||q) <= log(1/l)",
    tex=r"g \le q / \ell,\ \ell = \min(\text{single}, \text{total}) \ \Rightarrow\ "
    r"\mathrm{KL}(h\|q) \le \log\tfrac1\ell",
    false=({"least": q * (1 + a)}, {"divisor": b / (1 + a)}),
)
def threshold_bound(least: Any = q / (1 + a), divisor: Any = b * (1 + a)) -> Iterator[Step]:
    level, total, g, most = sp.symbols(r"\ell t g L", positive=True)
    yield at_least(
        "A token granted all has q at least single or at least total, hence at least l.",
        q / level,
        ("g", 1),
        where={level: least},
        assumes="$0 < \\ell \\le 1$",
    )
    yield at_least(
        "Any other token is granted q/total, and total is at least l.",
        q / level,
        ("g", q / total),
        where={total: divisor, level: b},
    )
    yield at_least(
        "So $\\log(g/q) \\le \\log(1/\\ell)$. All other tokens are shrunk, as g is at least q, and "
        "their logarithm is not positive.",
        1,
        ("(1-g)/(1-q)", (1 - g) / (1 - q)),
        where={g: (q + c) / (1 + c)},
        tex=r"1 \ge \frac{1-g}{1-q}",
        assumes="$q < 1$; at q = 1 the candidate is the target",
    )
    yield at_least(
        "With $L = \\log(1/\\ell)$ the divergence is at most its first term, $g \\log(g/q) \\le "
        "g L$, and g is at most 1.",
        most,
        ("g L", g * most),
        where={g: 1 / (1 + c)},
        tex=r"\mathrm{KL}(h\|q) \le g L \le L",
    )
