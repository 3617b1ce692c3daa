"""What Theorem 3 does not say: three tempting bounds, refuted in exact rationals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from cactus_theory import Cactus, kl, output_distribution
from proofs_check.balls import PRECISION, ball
from proofs_check.certificates import witness, witness_record
from proofs_check.claims import Finding, Step, claim
from proofs_check.symbolic import equal, sp

delta = sp.Symbol("delta", positive=True)


def binary_kl_ball(h: Fraction, q: Fraction) -> arb:
    """KL between two rational Bernoulli distributions, 0 < h < 1, as a ball."""
    h_, q_ = ball(h), ball(q)
    return h_ * (h_ / q_).log() + (1 - h_) * ((1 - h_) / (1 - q_)).log()


def second_order_accepts(kept: Fraction, q: Fraction, delta: Fraction) -> bool:
    """kept <= q + sqrt(2 delta q (1-q)), decided without the square root."""
    return kept <= q or (kept - q) ** 2 <= 2 * delta * q * (1 - q)


@witness("uniform-exceeds")
def uniform_exceeds(
    vocabulary: Fraction, drafted: Fraction, delta: Fraction, kept: Fraction, exceeds: Fraction
) -> bool:
    """Uniform q on `vocabulary`, uniform p on `drafted` tokens that keep at least `kept` each."""
    q = 1 / vocabulary
    within = second_order_accepts(kept, q, delta) and q < kept <= 1 / drafted
    return within and bool(binary_kl_ball(drafted * kept, drafted * q) > ball(exceeds))


def certified(predicate: Callable[..., bool], name: str, **data: Fraction) -> Finding:
    """Whether the predicate holds of the data in ball arithmetic, with its certificate."""
    with ctx.workprec(PRECISION):
        holds = predicate(**data)
    return Finding("holds" if holds else "fails", "", (witness_record(name, **data),))


@claim(
    name="delta-bounds-the-output",
    source="Theorem 3, misread",
    statement="FALSE: the divergence of the emitted distribution is at most delta (second-order "
    "rule)",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \delta \quad\text{is false: } q \text{ uniform on } "
    r"10^4,\ p \text{ uniform on } 70,\ \delta = 1 \text{ emit } \mathrm{KL} > 4.89",
    expected="refuted",
    false=({"exceeds": Fraction(5)}, {"kept": Fraction(143, 10_000)}),
)
def delta_bounds_the_output(
    exceeds: Fraction = Fraction(489, 100), kept: Fraction = Fraction(142, 10_000)
) -> Iterator[Step]:
    data = {
        "vocabulary": Fraction(10_000),
        "drafted": Fraction(70),
        "delta": Fraction(1),
        "kept": kept,
        "exceeds": exceeds,
    }
    yield Step(
        "Take q uniform on 10,000 tokens and p uniform on 70 of them. At budget 1 the rule boosts "
        f"each of the 70 to at least {float(kept)}, so together they are emitted with at least 70 "
        "times that probability. Merge the tokens into these 70 and the rest: merging only "
        "lowers KL, and KL of the two points grows with the first. It exceeds the budget nearly "
        "five times.",
        r"\mathrm{KL}(\mathrm{out}\|q) \ge \mathrm{KL}\!\left(70 \cdot .0142\,\big\|\,"
        r"\tfrac{70}{10^4}\right) > 4.89",
        lambda: certified(uniform_exceeds, "uniform-exceeds", **data),
        "counterexample",
        uses=("merging-tokens", "root-unique-monotone"),
    )

    def code_emits_it() -> bool:
        target = np.full(10_000, 1e-4)
        draft = np.where(np.arange(10_000) < 70, 1 / 70, 0.0)
        emitted = output_distribution(Cactus(1.0), draft=draft, target=target)
        return float(kl(emitted, target)) > exceeds

    yield Step(
        "The code emits it as well.",
        r"\mathrm{KL}(\mathrm{out}_{\text{code}}\|q) > 4.89",
        code_emits_it,
        "evidence",
    )


@witness("any-budget-any-distance")
def any_budget_any_distance(
    delta: Fraction, tokens: Fraction, q0: Fraction, distance: Fraction
) -> bool:
    """p uniform on `tokens` tokens of target probability q0: both rules accept, TV > distance."""
    p = 1 / tokens
    # chi2(1/m || q0) <= delta gives KL <= log(1 + chi2) <= delta: also the exact rule accepts
    accepted = 0 < q0 < p and (p - q0) ** 2 <= delta * q0 * (1 - q0)
    return accepted and tokens.denominator == 1 and 1 - tokens * q0 > distance


@claim(
    name="gamma-free-of-vocabulary",
    source="Theorem 3, misread",
    statement="FALSE: some Gamma(delta) that does not depend on the vocabulary bounds the output "
    "and tends to 0 with delta; at delta = 1/1000 TV(out, q) exceeds 0.97 for both rules",
    tex=r"\sup_V \mathrm{TV}(\mathrm{out}, q) \to 0 \text{ as } \delta \to 0 \quad\text{is false: "
    r"it is } 1 \text{ for every } \delta > 0 \ (m = N/\delta \text{ tokens, } q_0 = 2\delta/N^2)",
    expected="refuted",
    false=({"distance": Fraction(99, 100)}, {"fewer": 10}),
)
def gamma_free_of_vocabulary(
    distance: Fraction = Fraction(97, 100), fewer: int = 1
) -> Iterator[Step]:
    delta_, n = Fraction(1, 1000), 80
    data = {
        "delta": delta_,
        "tokens": n / delta_ / fewer,
        "q0": 2 * delta_ / n**2,
        "distance": distance,
    }
    yield Step(
        "Take p uniform on m = 80,000 tokens to which q gives $q_0 = 1/3200000$ each, at delta = "
        "1/1000. The chi-square divergence of the candidate that raises one of them to 1/m is at "
        "most delta, so its KL is too: both rules accept every draft. So p itself is emitted, and "
        "its distance from q is $1 - m q_0$.",
        r"\left(\tfrac1m - q_0\right)^2 \le \delta q_0(1-q_0), \qquad 1 - m q_0 > .97",
        lambda: certified(any_budget_any_distance, "any-budget-any-distance", **data),
        "counterexample",
        assumes="a draft with $p \\le g$ on its support is emitted unchanged",
        uses=("sharp-kl-bound", "tangent-of-log"),
    )
    large = sp.Symbol("N", positive=True)
    q0 = 2 * delta / large**2
    yield equal(
        "The same holds for every delta, with $m = N/\\delta$ and $q_0 = 2\\delta/N^2$: the budget "
        "is kept if $q_0 \\le 1/2$, by this identity and $(1/m - q_0)^2 \\le 1/m^2$.",
        (r"\delta q_0 (1 - q_0) - \frac{1}{m^2}", delta * q0 * (1 - q0) - (delta / large) ** 2),
        (r"\frac{1}{m^2} (1 - 2 q_0)", (delta / large) ** 2 * (1 - 2 * q0)),
        assumes="$N/\\delta$ is a whole number",
    )
    yield equal(
        "And the distance tends to 1 as N grows.",
        (r"1 - m q_0", 1 - large / delta * q0),
        1 - 2 / large,
    )


@witness("exact-exceeds")
def exact_exceeds(tokens: Fraction, q0: Fraction, delta: Fraction, exceeds: Fraction) -> bool:
    """p uniform on `tokens` tokens of target probability q0 keeps the budget; KL > exceeds."""
    p = 1 / tokens
    kept = 0 < q0 < p and bool(binary_kl_ball(p, q0) <= ball(delta))
    return kept and bool((ball(p) / ball(q0)).log() > ball(exceeds))


@claim(
    name="gamma-linear",
    source="Theorem 3, ours",
    statement="FALSE: the exact rule emits at most delta + log V nats: 21 tokens and delta = 1 "
    "emit more than 20.9, where delta + log V is 4.04",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \delta + \log V \text{ is false: } V = 21,\ q_0 = 4 "
    r"\cdot 10^{-11},\ \mathrm{KL}(\tfrac1{20}\|q_0) \le 1,\ \mathrm{KL}(\mathrm{out}\|q) > 20.9",
    expected="refuted",
    false=({"exceeds": Fraction(21)}, {"q0": Fraction(3, 10**11)}),
)
def gamma_linear(
    exceeds: Fraction = Fraction(209, 10), q0: Fraction = Fraction(1, 25 * 10**9)
) -> Iterator[Step]:
    data = {"tokens": Fraction(20), "q0": q0, "delta": Fraction(1), "exceeds": exceeds}
    yield Step(
        "Take p uniform on 20 tokens to which q gives $q_0$ each. Raising one of them to 1/20 "
        "keeps the budget of 1 nat, so all drafts are accepted and p is emitted.",
        r"\mathrm{KL}(\tfrac1{20}\|q_0) \le 1, \qquad \mathrm{KL}(p\|q) = \log\frac{1}{20 q_0} > "
        r"20.9",
        lambda: certified(exact_exceeds, "exact-exceeds", **data),
        "counterexample",
        assumes="a draft with $p \\le g$ on its support is emitted unchanged",
        uses=("root-unique-monotone",),
    )

    def larger() -> bool:
        with ctx.workprec(PRECISION):
            return bool(ball(exceeds) > 1 + ball(21).log())

    yield Step("That is more than the bound.", r"20.9 > 1 + \log 21", larger, "interval")
