"""The best any scheme can do within a divergence of its output: the clamp, by supporting lines.

A scheme accepts at most sum min(p, out) (`gain-equals-cost`), so the best one maximises that over
output distributions `out` with D_f(out||q) <= eps.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from cactus_theory import Cactus, kl, output_distribution
from proofs_check.claims import Finding, Step, claim
from proofs_check.rational import Distribution, distributions, overlap
from proofs_check.symbolic import at_least, equal, nonnegative, sp

q, p, o, a, b, c, d, mu = sp.symbols("q p o a b c d mu", positive=True)


@claim(
    name="clamp-optimal",
    source="section 3",
    statement="among all output distributions of no larger divergence, out = clip(p, bq, aq) with "
    "b <= 1 <= a has the largest sum min(p, out): the same family for every strictly convex f",
    tex=r"D_f(o\|q) \le D_f(\mathrm{out}\|q) \ \Rightarrow\ \sum\min(p, o) \le "
    r"\sum\min(p, \mathrm{out}), \qquad \mathrm{out} = \mathrm{clip}(p, bq, aq)",
    false=({"slope_b": 2}, {"slope_a": sp.Rational(1, 2)}),
)
def clamp_optimal(slope_a: Any = 1, slope_b: Any = 1) -> Iterator[Step]:
    low, rise, part = sp.symbols("f_b rise part", positive=True)  # f'(b), f'(a) - f'(b)
    middle = low + rise / (1 + part)  # f'(p/q) for b < p/q < a, as f' increases
    lam, mult = -low / rise, 1 / rise
    between = lam + mult * middle
    yield equal(
        "Let $\\mu = 1/(f'(a) - f'(b))$ and $\\lambda = -\\mu f'(b)$, and give every token the "
        "slope $s = \\lambda + \\mu f'(\\mathrm{out}/q)$. It is 1 where out = aq < p.",
        (r"\lambda + \mu f'(a)", lam + mult * (low + rise) * slope_a),
        1,
        assumes="f is convex and differentiable, and $f'(a) > f'(b)$",
    )
    yield equal(
        "It is 0 where out = bq > p.", (r"\lambda + \mu f'(b)", lam + mult * low * slope_b), 0
    )
    yield Step(
        "It is between 0 and 1 where out = p, as f' increases.",
        r"0 \le \lambda + \mu f'(p/q) \le 1 \qquad (b \le p/q \le a)",
        lambda: nonnegative(between) and nonnegative(1 - between),
    )

    def gained(top: Any, here: Any, other: Any) -> Any:
        return _least(top, other) - _least(top, here)

    share = 1 / (1 + sp.Symbol("s", positive=True))
    cases = (
        (a + b, a, (a + b) / (1 + c), 1),  # out < p, o < p
        (a, a + b, a + c, 0),  # out > p, o > p
        (a + b, a + b, a, share),  # out = p, o below
        (a, a, a + b, share),  # out = p, o above
    )
    yield Step(
        "Such a slope lies above the concave function min(p, .): moving from out to any o gains at "
        "most s times the move. Checked for out < p, out > p and out = p, o on either side of p.",
        r"\min(p, o) - \min(p, \mathrm{out}) \le s\,(o - \mathrm{out})",
        lambda: all(
            nonnegative(sp.expand(s * (other - here) - gained(top, here, other)))
            for top, here, other, s in cases
        ),
    )
    new, slack = sp.symbols("D_o slack", positive=True)
    yield at_least(
        "Sum over the tokens. The lambda parts cancel, as both distributions sum to 1. By "
        "convexity $\\sum f'(\\mathrm{out}/q)(o - \\mathrm{out}) \\le D_f(o\\|q) - "
        "D_f(\\mathrm{out}\\|q)$, which is at most 0: nothing is gained.",
        0,
        (r"\mu\,[D_f(o\|q) - D_f(\mathrm{out}\|q)]", mult * (new - (new + slack))),
        uses=("gain-equals-cost",),
    )


def _least(x: Any, y: Any) -> Any:
    return x if nonnegative(y - x) else y


def clamp(draft: Distribution, target: Distribution, low: Fraction) -> Distribution | None:
    """clip(p, low q, a q) with the a >= 1 that makes it sum to 1, or None where there is none."""
    kept = [max(x, low * y) for x, y in zip(draft, target, strict=True)]
    excess = sum(kept) - 1
    # lower the tokens with p > q to a q: find a on the pieces between their ratios
    ratios = sorted({x / y for x, y in zip(draft, target, strict=True) if x > y > 0})
    for top in [Fraction(1), *ratios]:
        above = [
            (x, y) for x, y in zip(draft, target, strict=True) if y == 0 < x or (y and x / y > top)
        ]
        mass = sum(y for _, y in above)
        level = (sum(x for x, _ in above) - excess) / mass if mass else Fraction(1)
        law = tuple(
            min(x, level * y) if x > y else z for x, y, z in zip(draft, target, kept, strict=True)
        )
        if level >= 1 and sum(law) == 1:
            return law
    return None


def chi_square(law: Distribution, target: Distribution) -> Fraction:
    """Chi-square divergence; `law` lives on the support of `target`."""
    pairs = zip(law, target, strict=True)
    return sum(((x - y) ** 2 / y for x, y in pairs if y), Fraction(0))


@claim(
    name="clamp-enumerated",
    source="section 3",
    statement="no output distribution in twelfths beats a clamp of no smaller chi-square "
    "divergence: all drafts and targets on 3 tokens in quarters, b = 0, 1/4, 1/2, 3/4",
    tex=r"\chi^2(o\|q) \le \chi^2(\mathrm{clamp}\|q) \Rightarrow \sum\min(p,o) \le "
    r"\sum\min(p,\mathrm{clamp})",
    false=({"slack": Fraction(11, 10)},),
)
def clamp_enumerated(slack: Fraction = Fraction(1)) -> Iterator[Step]:
    def unbeaten() -> Finding:
        cases, rivals = 0, list(distributions(3, 12))
        for draft, target in product(distributions(3, 4), repeat=2):
            known = [
                (chi_square(o, target), overlap(draft, o))
                for o in rivals
                if all(y or not x for x, y in zip(o, target, strict=True))
            ]
            for low in (Fraction(k, 4) for k in range(4)):
                best = clamp(draft, target, low)
                if best is None:
                    continue
                spent, accepted = chi_square(best, target), overlap(draft, best)
                if any(cost <= slack * spent and gain > accepted for cost, gain in known):
                    return Finding("fails", f"draft {draft}, target {target}, b = {low}")
                cases += 1
        found = f"{cases} clamps, {len(rivals)} rivals each"
        return Finding("holds" if cases > 200 else "fails", found)

    yield Step(
        "Compare every clamp with every rival, as fractions.",
        r"\chi^2(o\|q) > \chi^2(\mathrm{clamp}\|q) \quad\text{or}\quad \sum\min(p, o) \le "
        r"\sum\min(p, \mathrm{clamp})",
        unbeaten,
        "exhaustive",
        uses=("clamp-optimal",),
    )


@claim(
    name="one-level-recovery",
    source="ours, section 3",
    statement="with Cactus's acceptance, recovering from [bq - p]_+ with one b has the least D_f "
    "of all ways to recover, at the same acceptance and total variation",
    tex=r"\mathrm{out}|_S = \min(p,g),\ \mathrm{out} \ge p \text{ off } S:\quad "
    r"D_f \text{ is least at } \mathrm{out} = \max(p, bq)",
    false=({"active": -1},),
)
def one_level_recovery(active: int = 1) -> Iterator[Step]:
    slope, rise, raised = sp.symbols("f_b rise raised", positive=True)
    at_draft = active * raised  # o - p >= 0, where out = p > bq
    difference = (
        slope * -at_draft + (slope + rise) * at_draft
    )  # the moves at out = bq sum to the rest
    yield at_least(
        "Let o be another way to recover. Off S, o is at least p, and both give S the same mass, "
        "so the differences o - out off S sum to 0. By supporting lines the divergence rises by "
        "at least $f'(b)$ times the differences where out = bq, and a larger slope $f'(b) + r$ "
        "times those where out = p > bq, which are not negative. The common slope cancels.",
        (r"D_f(o\|q) - D_f(\mathrm{out}\|q) \ge r \sum_{\mathrm{out} = p} (o - p)", difference),
        0,
        assumes="f is convex and differentiable",
        uses=("ordering",),
    )
    level = sp.Symbol("b", positive=True)
    yield at_least(
        "The one level is allowed: $\\max(p, bq) \\ge p$, and it is at most q as $p \\le q$ and "
        "$b \\le 1$.",
        (r"q - bq", q - q * level),
        0,
        where={level: 1 / (1 + a)},
    )


@claim(
    name="one-level-saving",
    source="ours, section 3",
    statement="one level never costs more, and saves little: on 400 random pairs of 200 tokens "
    "1 to 2 % of the mean KL(out||q) at delta = 0.1, less than 0.2 % at delta = 1",
    tex=r"1 - \frac{\sum\mathrm{KL}(\max(p, bq)\|q)}{\sum\mathrm{KL}(\mathrm{out}\|q)} \in "
    r"(.01, .02)\ (\delta = .1),\quad (0, .002)\ (\delta = 1)",
    expected="supported",
    false=({"small": 1.0, "large": 0.1}, {"small": 0.2}),
)
def one_level_saving(small: float = 0.1, large: float = 1.0) -> Iterator[Step]:
    for delta, low, high in ((small, 0.01, 0.02), (large, 0.0, 0.002)):

        def saves(delta: float = delta, low: float = low, high: float = high) -> Finding:
            draft, target = _random_pairs(400, 200)
            law = output_distribution(Cactus(delta), draft=draft, target=target)
            level = np.where(draft > target, law, _fill(draft, target, law))
            costs = kl(law, target), kl(level / level.sum(-1, keepdims=True), target)
            saved = 1 - costs[1].sum() / costs[0].sum()
            worse = float((costs[1] - costs[0]).max())
            holds = worse < 1e-12 and low < saved < high
            return Finding("holds" if holds else "fails", f"{100 * saved:.2f} % less KL")

        yield Step(
            f"Compare both ways to recover at delta = {delta}: never more KL, less in the mean.",
            rf"{low} < 1 - \frac{{\sum\mathrm{{KL}}(\max(p, bq)\|q)}}{{\sum\mathrm{{KL}}"
            rf"(\mathrm{{out}}\|q)}} < {high}",
            saves,
            "evidence",
            uses=("one-level-recovery",),
        )


@claim(
    name="clamp-against-cactus",
    source="section 3",
    statement="at the KL(out||q) that Cactus spends on a pair, the clamp accepts never less, and "
    "0.5 to 3 points more in the mean: 100 random pairs of 100 tokens, delta = 0.1",
    tex=r"0.005 < \mathbb E\left[\mathrm{acc}_{\mathrm{clamp}} - "
    r"\mathrm{acc}_{\mathrm{Cactus}}\right] < 0.03",
    expected="supported",
    false=({"least": 0.03}, {"spent": 0.8}),
)
def clamp_against_cactus(least: float = 0.005, spent: float = 1.0) -> Iterator[Step]:
    def gains() -> Finding:
        draft, target = _random_pairs(100, 100)
        law = output_distribution(Cactus(0.1), draft=draft, target=target)
        budget = spent * kl(law, target)[:, None]
        low, high = np.zeros((100, 1)), np.ones((100, 1))  # b: the lower, the more is spent
        for _ in range(40):
            b = (low + high) / 2
            over = kl(_clamped(draft, target, b), target)[:, None] > budget
            low, high = np.where(over, b, low), np.where(over, high, b)
        best = _clamped(draft, target, high)
        gain = (np.minimum(draft, best) - np.minimum(draft, law)).sum(-1)
        holds = (gain > -1e-6).all() and least < float(gain.mean()) < 0.03
        found = f"{100 * gain.mean():.2f} points more, at least {100 * gain.min():.3f}"
        return Finding("holds" if holds else "fails", found)

    yield Step(
        "Find the clamp that spends what Cactus does, pair by pair, and compare the acceptance.",
        r"\mathrm{acc}_{\mathrm{clamp}} \ge \mathrm{acc}_{\mathrm{Cactus}}",
        gains,
        "evidence",
        uses=("clamp-optimal",),
    )


def _random_pairs(rows: int, size: int) -> tuple[Any, Any]:
    """Drafts that resemble their targets, from a fixed seed."""
    random = np.random.default_rng(20261130)
    logits = random.normal(size=(rows, size)) * 3
    target = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    noisy = np.exp(0.8 * logits + random.normal(size=logits.shape))
    return noisy / noisy.sum(-1, keepdims=True), target


def _clamped(draft: Any, target: Any, b: Any) -> Any:
    """clip(p, bq, aq) with the a >= 1 that makes it sum to 1, by bisection in log a."""
    low, high = np.zeros_like(b), np.full_like(b, 60.0)
    for _ in range(60):
        middle = (low + high) / 2
        above = np.clip(draft, b * target, np.exp(middle) * target).sum(-1, keepdims=True) > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    law = np.clip(draft, b * target, np.exp(high) * target)
    return law / law.sum(-1, keepdims=True)


def _fill(draft: Any, target: Any, law: Any) -> Any:
    """max(p, bq) off S with the mass that `law` has there, b by bisection."""
    below = draft <= target
    mass = np.where(below, law, 0).sum(-1, keepdims=True)
    low, high = np.zeros_like(mass), np.ones_like(mass)
    for _ in range(60):
        middle = (low + high) / 2
        filled = np.where(below, np.maximum(draft, middle * target), 0).sum(-1, keepdims=True)
        low, high = np.where(filled < mass, middle, low), np.where(filled < mass, high, middle)
    return np.maximum(draft, high * target)
