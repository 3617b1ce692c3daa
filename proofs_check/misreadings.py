"""What Theorem 3 does not say: three tempting bounds, refuted in exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import arb, ctx

from cactus_theory import Cactus, kl, output_distribution
from proofs_check.balls import PRECISION, ball
from proofs_check.certificates import witness, witness_record
from proofs_check.claims import Finding, claim, conclude
from proofs_check.symbolic import sp, vanishes

delta = sp.Symbol("delta", positive=True)


def binary_kl_ball(h: Fraction, q: Fraction) -> arb:
    """KL between two rational Bernoulli laws, 0 < h < 1, as a ball."""
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


@claim(
    name="delta-bounds-the-output",
    theorem="Theorem 3, misread",
    statement="FALSE: the divergence of the emitted law is at most delta (second-order rule)",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \delta \quad\text{is false: } q \text{ uniform on } "
    r"10^4,\ p \text{ uniform on } 70,\ \delta = 1 \text{ emit } \mathrm{KL} > 4.89",
    kind="counterexample",
    assumes=("KL(h||q) of two points grows with h >= q",),
    depends=("merging-tokens", "root-unique-monotone"),
    false=({"exceeds": Fraction(5)}, {"kept": Fraction(143, 10_000)}),
)
def delta_bounds_the_output(
    exceeds: Fraction = Fraction(489, 100), kept: Fraction = Fraction(142, 10_000)
) -> Finding:
    data = {"vocabulary": 10_000, "drafted": 70, "delta": 1, "kept": kept, "exceeds": exceeds}
    with ctx.workprec(PRECISION):
        certified = uniform_exceeds(**{name: Fraction(value) for name, value in data.items()})
    target = np.full(10_000, 1e-4)
    draft = np.where(np.arange(10_000) < 70, 1 / 70, 0.0)
    emitted = output_distribution(Cactus(1.0), draft=draft, target=target)
    return conclude(
        f"merged to two points the output has KL > {exceeds} nats; the budget is 1",
        ("exact data", certified),
        ("the code emits it", float(kl(emitted, target)) > exceeds),
        certificates=(witness_record("uniform-exceeds", **data),),
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
    theorem="Theorem 3, misread",
    statement="FALSE: some Gamma(delta) that does not depend on the vocabulary bounds the output "
    "and tends to 0 with delta; at delta = 1/1000 TV(out, q) exceeds 0.97 for both rules",
    tex=r"\sup_V \mathrm{TV}(\mathrm{out}, q) \to 0 \text{ as } \delta \to 0 \quad\text{is false: "
    r"it is } 1 \text{ for every } \delta > 0 \ (m = N/\delta \text{ tokens, } q_0 = 2\delta/N^2)",
    kind="counterexample",
    assumes=("a draft with p <= g on its support is emitted as it is", "N/delta is a whole number"),
    depends=("sharp-kl-bound", "tangent-of-log"),
    false=({"distance": Fraction(99, 100)}, {"fewer": 10}),
)
def gamma_free_of_vocabulary(distance: Fraction = Fraction(97, 100), fewer: int = 1) -> Finding:
    delta_, n = Fraction(1, 1000), 80
    data = {
        "delta": delta_,
        "tokens": n / delta_ / fewer,
        "q0": 2 * delta_ / n**2,
        "distance": distance,
    }
    # the same for every delta and N: (1/m)^2 <= delta q0 (1-q0) iff q0 <= 1/2, and TV = 1 - 2/N
    large = sp.Symbol("N", positive=True)
    q0 = 2 * delta / large**2
    slack = delta * q0 * (1 - q0) - (delta / large) ** 2
    return conclude(
        "one exact pair, and the family it belongs to",
        ("exact data", any_budget_any_distance(**{k: Fraction(v) for k, v in data.items()})),
        ("family accepted", vanishes(slack - (delta / large) ** 2 * (1 - 2 * q0))),
        ("family's distance", vanishes(1 - large / delta * q0 - (1 - 2 / large))),
        certificates=(witness_record("any-budget-any-distance", **data),),
    )


@witness("exact-exceeds")
def exact_exceeds(tokens: Fraction, q0: Fraction, delta: Fraction, exceeds: Fraction) -> bool:
    """p uniform on `tokens` tokens of target probability q0 keeps the budget; KL > exceeds."""
    p = 1 / tokens
    kept = 0 < q0 < p and bool(binary_kl_ball(p, q0) <= ball(delta))
    return kept and bool((ball(p) / ball(q0)).log() > ball(exceeds))


@claim(
    name="gamma-linear",
    theorem="Theorem 3, ours",
    statement="FALSE: the exact rule emits at most delta + log V nats: 21 tokens and delta = 1 "
    "emit more than 20.9, where delta + log V is 4.04",
    tex=r"\mathrm{KL}(\mathrm{out}\|q) \le \delta + \log V \text{ is false: } V = 21,\ q_0 = 4 "
    r"\cdot 10^{-11},\ \mathrm{KL}(\tfrac1{20}\|q_0) \le 1,\ \mathrm{KL}(\mathrm{out}\|q) > 20.9",
    kind="counterexample",
    assumes=("a draft with p <= g on its support is emitted as it is",),
    depends=("root-unique-monotone",),
    false=({"exceeds": Fraction(21)}, {"q0": Fraction(3, 10**11)}),
)
def gamma_linear(
    exceeds: Fraction = Fraction(209, 10), q0: Fraction = Fraction(1, 25 * 10**9)
) -> Finding:
    data = {"tokens": Fraction(20), "q0": q0, "delta": Fraction(1), "exceeds": exceeds}
    with ctx.workprec(PRECISION):
        holds = exact_exceeds(**data)
        refutes = bool(ball(exceeds) > 1 + ball(21).log())
    return conclude(
        "one exact pair",
        ("more than delta + log V", refutes),
        ("within the budget, and far", holds),
        certificates=(witness_record("exact-exceeds", **data),),
    )
