"""The two levels of a clipped law, against their definition: balance, budget and maximality."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import Clamp, emission, output_distribution
from cactus_theory.divergences import (
    KL,
    Alpha,
    ChiSquare,
    JensenShannon,
    ReverseKL,
    SquaredHellinger,
    TotalVariation,
)
from cactus_theory.rules import _clip
from cactus_theory.testing import pairs

DIVERGENCES = [
    KL(),
    ReverseKL(),
    JensenShannon(),
    ChiSquare(),
    TotalVariation(),
    SquaredHellinger(),
    Alpha(-1.0),
    Alpha(3.0),
]
BUDGETS = st.sampled_from([1e-6, 1e-3, 0.05, 0.3, 2.0])


def clipped(p, q, a, b):
    return np.clip(p, _clip.times(b, q), np.where(q > 0, _clip.times(a, q), 0.0))


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@given(pair=pairs(max_size=9), epsilon=BUDGETS)
@settings(max_examples=60)
def test_the_levels_balance_keep_the_budget_and_could_not_be_higher(divergence, pair, epsilon):
    p, q = pair
    a, b = _clip.levels(divergence, epsilon, p, q)
    if a == math.inf:
        assert divergence.between(p, q) <= epsilon * (1 + 1e-12)
        return
    assert 0 <= b <= _clip.SCALE <= a
    law = clipped(p, q, a, b)
    # nine roundings of masses below 1
    assert law.sum() == pytest.approx(1, abs=1e-14)
    law /= law.sum()
    # the law's own rounding, 1e-16, at a slope of some hundreds where it is steep
    assert divergence.between(law, q) <= epsilon * (1 + 1e-9) + 1e-13
    lost = np.maximum(p - np.where(q > 0, _clip.times(a, q), 0.0), 0.0)
    if (p[q == 0] == 0).all() and lost.sum() > 1e-9:  # else all it could gain is rounding
        assert costs_more(divergence, epsilon, p, q, a * (1 + 1e-6))


def costs_more(divergence, epsilon, p, q, a):
    """Of a higher level, with its b by bisection of the definition."""
    lost = np.maximum(p - _clip.times(a, q), 0.0).sum()
    low, high = 0.0, _clip.SCALE
    for _ in range(60):
        b = (low + high) / 2
        low, high = (b, high) if np.maximum(_clip.times(b, q) - p, 0.0).sum() < lost else (low, b)
    law = clipped(p, q, a, high)
    return divergence.between(law / law.sum(), q) > epsilon * (1 - 1e-9)


def laws(size, *, noise, spread):
    rng = np.random.default_rng(5)
    logits = spread * rng.standard_normal(size)
    weights = np.exp([logits + noise * rng.standard_normal(size), logits])
    return weights / weights.sum(axis=1, keepdims=True)


# ratios within one cell; as a model's; and beyond the middle cells, 2**-32 to 2**32, on both sides
@pytest.mark.parametrize(("noise", "spread"), [(0.01, 3.0), (1.0, 3.0), (20.0, 1.0)])
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_the_levels_of_many_tokens_spend_the_budget(divergence, noise, spread):
    p, q = laws(40_000, noise=noise, spread=spread)
    epsilon = min(0.3 * divergence.between(p, q), 0.4)
    law = output_distribution(Clamp(epsilon, divergence), draft=p, target=q)
    # 40,000 terms of rounding 1e-16, of which sums keep a root
    assert divergence.between(law, q) == pytest.approx(epsilon, rel=1e-12)


def test_few_tokens_are_sorted(monkeypatch):
    p, q = laws(40_000, noise=1.0, spread=3.0)
    sizes, argsort = [], np.argsort
    monkeypatch.setattr(np, "argsort", lambda keys: sizes.append(keys.size) or argsort(keys))
    _clip.levels(KL(), 0.05, p, q)
    assert len(sizes) == 2
    # a cell is a sixteenth of an octave, of some four that the ratios fill
    assert 0 < sum(sizes) < p.size / 16


@pytest.mark.parametrize("divergence", [ReverseKL(), Alpha(-1.0)], ids=str)
@pytest.mark.parametrize("epsilon", [2.0, 10.0, 20.0, 1e5, 1e100])
def test_a_budget_that_is_spent_in_the_last_bits_of_a_level_is_kept(divergence, epsilon):
    # inf at the draft itself, so that the largest level is a few ulp below the one that cuts
    # nothing: bracketing secants once came no nearer in a hundred evaluations.
    for share in np.arange(1, 100) / 100:
        p, q = np.array([0.0, 0.25, 0.75]), np.array([share / 2, (1 - share) / 2, 0.5])
        law = output_distribution(Clamp(epsilon, divergence), draft=p, target=q)
        assert divergence.between(law, q) <= epsilon * (1 + 1e-14)  # of three terms


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_tokens_that_the_target_excludes_are_lost_and_empty_ones_matter_not(divergence):
    # q = 0; p = q = 0
    p, q = np.array([0.2, 0.0, 0.7, 0.1]), np.array([0.0, 0.0, 0.3, 0.7])
    law = output_distribution(Clamp(0.05, divergence), draft=p, target=q)
    assert law[0] == law[1] == 0
    assert divergence.between(law, q) <= 0.05 * (1 + 1e-12)


@pytest.mark.parametrize("q", [5e-324, 1e-320, 1e-310, 1e-300])
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_a_token_of_the_smallest_probability_has_its_level(divergence, q):
    # Levels were once cut at 2**1023, and the first rule below emitted [1, 9e-13].
    epsilon, target = 0.1, np.array([1.0, q])
    law = output_distribution(Clamp(epsilon, divergence), draft=[0.0, 1.0], target=target)
    # Two tokens: the clamp gives the second the exact optimum of the budget.
    best = divergence.optimum(q, epsilon).value
    # Levels are right to 1e-15 of their logarithm, here up to 745; chi-square's, and those of
    # alpha = 3, are below a rounding of the first.
    assert law[1] == pytest.approx(best, rel=2e-12, abs=2.0**-52)
    assert divergence.between(law, target) <= epsilon * (1 + 1e-12) or law[1] <= 2.0**-52


def test_total_variation_lets_a_token_of_next_to_nothing_have_the_budget():
    law = output_distribution(Clamp(0.1, TotalVariation()), draft=[0, 1.0], target=[1, 1e-320])
    assert law == pytest.approx([0.9, 0.1], rel=1e-12)


@pytest.mark.parametrize("divergence", [ReverseKL(), Alpha(-1.0), Alpha(-3.0)], ids=str)
@pytest.mark.parametrize("q0", [1e-15, 1e-16, 5e-17, 1e-17, 1e-20, 1e-100, 1e-300, 1e-320])
@pytest.mark.parametrize("epsilon", [1e-10, 1e-3, 0.1, 3.0])
def test_a_token_that_the_draft_excludes_is_emitted_however_improbable(divergence, q0, epsilon):
    # Excluding it costs inf, and what it must be given may be below a rounding of the others: the
    # draft was then emitted as it is.
    rng = np.random.default_rng(3)
    rule = Clamp(epsilon, divergence)
    laws = [(np.array([0.0, 1.0]), np.array([q0, 1.0]))]
    for size in (2, 3, 4):
        q = rng.dirichlet(np.ones(size))
        q[0] = q0
        q /= q.sum()
        same = np.append(0.0, q[1:] / q[1:].sum())
        laws += [(same, q), (np.append(0.0, rng.dirichlet(np.ones(size - 1))), q)]
    for p, q in laws:
        law, kept = output_distribution(rule, draft=p, target=q), rule.accepted_mass(p, q)
        # Both as said and as drawn; 1e-13 is what roundings of the usual tokens cost.
        for emitted in (law, rule.emitted(kept, p, q)):
            assert emitted[0] > 0
            assert emitted.sum() == pytest.approx(1, abs=1e-15 * p.size)
            assert divergence.between(np.minimum(emitted, 1.0), q) <= epsilon * (1 + 1e-9) + 1e-13


def test_one_token_is_always_kept():
    assert output_distribution(Clamp(0.0), draft=[1.0], target=[1.0]).tolist() == [1.0]


def test_an_account_and_a_law_agree_with_the_accepted_mass_alone():
    p, q = laws(200, noise=1.0, spread=3.0)
    rule = Clamp(0.05)
    kept = rule.accepted_mass(p, q)
    assert emission(rule, draft=p, target=q).acceptance_rate == kept.sum()
    # b by Newton's method there, by sorting here
    law = rule.emitted(kept, p, q)
    np.testing.assert_allclose(
        output_distribution(rule, draft=p, target=q), law, rtol=1e-12, atol=1e-16
    )


@given(pair=pairs(max_size=7), cut=st.integers(8, 30))
def test_tokens_on_which_the_laws_agree_are_of_no_account(pair, cut):
    p, q = pair
    alone = _clip.levels(KL(), 0.05, p, q)
    assert _clip.levels(KL(), 0.05, *np.pad([p, q], ((0, 0), (cut, 0)))) == alone


def test_a_clamp_that_all_but_keeps_the_draft_still_keeps_its_budget():
    # exp(log t) once fell short of the largest t = p/q: nothing seemed left to clip, although a
    # divergence that is steep at 0 then costs 2.44 where 2 were allowed.
    p = [1.3403458787409651e-3, 2.182691520914888e-08, 5.953963619648786e-23]
    p += [0.25991002084795706, 0.6572062017157869, 0.05303259100081386, 0.028510818729786055]
    q = [9.180637833837584e-17, 0.0012996544955618335, 0.04659490205145863, 0.035062297669229366]
    q += [0.7995110585602054, 0.11753208722353632, 8.156416210738656e-15]
    law = output_distribution(Clamp(2.0, ReverseKL()), draft=p, target=q)
    assert ReverseKL().between(law, q) <= 2
