"""Rules of papers: what they emit, what that costs, and the code that they were read from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    KL,
    AdaptiveTolerance,
    FuzzyAcceptance,
    JensenShannon,
    SpeculativeSampling,
    TotalVariation,
    acceptance_rate,
    kl,
    output_distribution,
    total_variation,
)
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import (
    OnePosition,
    check_by_enumeration,
    pairs,
    specification_verifier,
)

DRAFT, TARGET = np.array([6, 1, 1]) / 8, np.array([2, 2, 4]) / 8
RULES = [
    AdaptiveTolerance(0.0),
    AdaptiveTolerance(0.25),
    AdaptiveTolerance(1.0),
    FuzzyAcceptance(0.05),
    FuzzyAcceptance(0.5),
    FuzzyAcceptance(0.5, KL()),
    FuzzyAcceptance(0.25, TotalVariation()),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_specification_emits_what_the_rule_says(rule):
    check_by_enumeration(specification_verifier(rule), rule, draft=DRAFT, target=TARGET)


def patched(tolerance, draw=lambda draft, target: np.maximum(target - draft, 0)):
    """The patch of vLLM as read: q/p against u lowered by the tolerance, then the residual."""

    def one(token, draft, target, u, v):
        lowered = u - tolerance * (1 - target.max())
        if draft[token] > 0 and target[token] / draft[token] >= lowered:
            return token, True
        return inverse_cdf(draw(draft, target), v), False

    return OnePosition(one)


@pytest.mark.parametrize("tolerance", [0.0, 0.25, 0.5])
def test_the_patch_that_lowers_the_uniform_is_an_adaptive_tolerance(tolerance):
    rule = AdaptiveTolerance(tolerance)
    check_by_enumeration(patched(tolerance), rule, draft=DRAFT, target=TARGET)


def test_a_patch_that_recovers_from_the_target_is_not():
    """The power of the test above."""
    wrong = patched(0.25, draw=lambda draft, target: target)
    with pytest.raises(AssertionError):
        check_by_enumeration(wrong, AdaptiveTolerance(0.25), draft=DRAFT, target=TARGET)


@given(pair=pairs(), tolerance=st.floats(0, 1))
def test_what_a_tolerance_gains_in_acceptance_is_its_distance_and_at_most_the_tolerance(
    pair, tolerance
):
    draft, target = pair
    rule, plain = AdaptiveTolerance(tolerance), SpeculativeSampling()
    laws = {"draft": draft, "target": target}
    gained = acceptance_rate(rule, **laws) - acceptance_rate(plain, **laws)
    out = output_distribution(rule, **laws)
    assert gained == pytest.approx(total_variation(out, target), abs=1e-12)  # sums of roundings
    assert gained <= tolerance * (1 - target.max()) + 1e-12


def test_a_tolerance_keeps_tokens_that_the_target_excludes():
    out = output_distribution(AdaptiveTolerance(0.5), draft=[1, 0, 0], target=[0, 0.5, 0.5])
    np.testing.assert_allclose(out, [0.25, 0.375, 0.375], rtol=1e-15)
    assert kl(out, np.array([0, 0.5, 0.5])) == np.inf


def fuzzy_as_read(limit, distance):
    """The authors' function as read: one comparison a position, then a token of the target."""

    def one(token, draft, target, u, v):
        if distance(draft, target) <= limit:
            return token, True
        return inverse_cdf(target, v), False

    return OnePosition(one)


def jensen_shannon(p, q):
    middle = (p + q) / 2
    return (np.sum(p * np.log(p / middle)) + np.sum(q * np.log(q / middle))) / 2


def from_the_middle(p, q):
    """What the authors' code calls js_div."""
    middle = (p + q) / 2
    return (np.sum(middle * np.log(middle / p)) + np.sum(middle * np.log(middle / q))) / 2


@pytest.mark.parametrize("limit", [0.05, 0.5])
def test_one_comparison_for_each_position_is_fuzzy_acceptance(limit):
    engine = fuzzy_as_read(limit, jensen_shannon)
    check_by_enumeration(engine, FuzzyAcceptance(limit), draft=DRAFT, target=TARGET)


def test_the_published_code_measures_from_the_middle_which_is_more_than_jensen_and_shannon():
    """So its limit keeps fewer tokens than the same limit of the divergence it names."""
    p, q = np.array([0.75, 0.2, 0.05]), np.array([0.02, 0.28, 0.7])
    apart = JensenShannon().between(p, q)
    assert jensen_shannon(p, q) == pytest.approx(apart, rel=1e-14)
    assert from_the_middle(p, q) > 1.5 * apart
    with pytest.raises(AssertionError):
        check_by_enumeration(
            fuzzy_as_read(0.45, from_the_middle), FuzzyAcceptance(0.45), draft=p, target=q
        )


@given(pair=pairs(), limit=st.floats(0, 1))
def test_a_fuzzy_position_emits_the_draft_or_the_target(pair, limit):
    draft, target = pair
    out = output_distribution(FuzzyAcceptance(limit), draft=draft, target=target)
    near = JensenShannon().between(draft, target) <= limit
    np.testing.assert_allclose(out, draft if near else target, rtol=1e-15)


def test_a_fuzzy_position_may_keep_less_than_speculative_sampling():
    laws = {"draft": DRAFT, "target": TARGET}
    assert acceptance_rate(FuzzyAcceptance(0.05), **laws) == 0
    assert acceptance_rate(SpeculativeSampling(), **laws) == 0.5


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: AdaptiveTolerance(1.5), ValueError, r"^tolerance must lie in \[0, 1\], got 1.5"),
        (lambda: AdaptiveTolerance(True), TypeError, "^tolerance must be a number"),
        (lambda: FuzzyAcceptance(-1), ValueError, "^limit must be .*, got -1"),
        (lambda: FuzzyAcceptance(1, "kl"), TypeError, "^divergence must be a Divergence, got 'kl'"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(make, error, words):
    with pytest.raises(error, match=words):
        make()
