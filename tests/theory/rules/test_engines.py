"""Rules of other engines: what they grant, what that may cost, and that they decode as they say."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    RolloutReuse,
    Rule,
    SamplerMatch,
    SpeculativeSampling,
    ThresholdAcceptance,
    acceptance_rate,
    binary_kl,
    kl,
    output_distribution,
)
from cactus_theory.testing import check_by_enumeration, pairs, specification_verifier
from cactus_theory.testing.strategies import rules_of

RULES = rules_of(ThresholdAcceptance)
PROBABILITIES = st.floats(0, 1)
DRAFT, TARGET = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])


@pytest.mark.parametrize("rule", [ThresholdAcceptance(0.3, 0.8), ThresholdAcceptance(1, 1)])
def test_the_specification_emits_what_the_rule_says(rule):
    check_by_enumeration(specification_verifier(rule), rule, draft=DRAFT, target=TARGET)


def test_another_threshold_is_told_from_it():
    """The power of the test above: the same rule with a total of .5 instead of .8."""
    wrong = specification_verifier(ThresholdAcceptance(0.3, 0.5))
    with pytest.raises(AssertionError):
        check_by_enumeration(wrong, ThresholdAcceptance(0.3, 0.8), draft=DRAFT, target=TARGET)


def test_what_is_granted_jumps_to_one_at_single():
    boosted = ThresholdAcceptance(0.5, 0.8).boost(np.array([0.0, 0.4, 0.5 - 1e-16, 0.5, 1.0]))
    assert boosted[:2].tolist() == [0, 0.5]
    assert boosted[2] == pytest.approx(0.625)
    assert boosted[3:].tolist() == [1, 1]


@given(rule=RULES, q=PROBABILITIES)
def test_the_candidate_is_a_distribution_by_numpy_and_by_torch(rule, q):
    boosted, left = rule.boost(q), rule.shrink(q)
    assert q <= boosted <= 1
    assert 0 <= left <= 1
    assert boosted + left * (1 - q) == pytest.approx(1, abs=1e-15)  # three roundings
    one = torch.tensor(q, dtype=torch.float64)
    assert (float(rule.boost(one, xp=torch)), float(rule.shrink(one, xp=torch))) == (boosted, left)


@given(rule=RULES, q=st.floats(1e-300, 1), pair=pairs())
def test_neither_the_candidate_nor_what_is_emitted_exceeds_the_bound_of_kl(rule, q, pair):
    most = -np.log(min(rule.single, rule.total)) + 1e-12  # rounding
    assert binary_kl(rule.boost(q), q) <= most
    draft, target = pair
    assert kl(output_distribution(rule, draft=draft, target=target), target) <= most


@given(pair=pairs())
def test_two_thresholds_of_one_are_speculative_sampling(pair):
    draft, target = pair
    rule = ThresholdAcceptance(1, 1)
    assert rule.lossless
    out = output_distribution(rule, draft=draft, target=target)
    np.testing.assert_allclose(out, target, rtol=1e-9, atol=1e-13)  # sums of roundings


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ThresholdAcceptance(0, 1), ValueError, r"single must lie in \(0, 1\], got 0"),
        (lambda: ThresholdAcceptance(1, 1.5), ValueError, r"total must lie in \(0, 1\], got 1.5"),
        (lambda: ThresholdAcceptance(True, 1), TypeError, "single must be a number in"),
        (lambda: ThresholdAcceptance(1, True), TypeError, "total must be a number in"),
    ],
)
def test_a_wrong_threshold_is_named_with_its_value(make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("rule", [SamplerMatch(), RolloutReuse(0.6)], ids=str)
def test_what_matches_or_is_reused_emits_what_its_rule_says(rule):
    check_by_enumeration(specification_verifier(rule), rule, draft=DRAFT, target=TARGET)


@given(pair=pairs())
def test_a_match_emits_the_target_and_keeps_no_more_than_speculative_sampling(pair):
    draft, target = pair
    rates = [
        acceptance_rate(rule, draft=draft, target=target)
        for rule in (SamplerMatch(), SpeculativeSampling())
    ]
    assert rates[0] <= rates[1] + 1e-15
    by_definition = Rule.emitted(
        SamplerMatch(), draft * target, np.asarray(draft), np.asarray(target)
    )
    np.testing.assert_allclose(by_definition, target, rtol=1e-12, atol=1e-300)


def test_a_certain_draft_is_matched_as_often_as_speculative_sampling_keeps_it():
    draft = np.array([0, 1, 0])
    assert acceptance_rate(SamplerMatch(), draft=draft, target=TARGET) == TARGET[1]


def test_a_rollout_reused_without_lenience_is_not_speculative_sampling():
    """SPEC-RL at l = 1 recovers from q instead of the residual, and moves what is emitted."""
    out = output_distribution(RolloutReuse(1.0), draft=DRAFT, target=TARGET)
    kept = np.minimum(DRAFT, TARGET)
    np.testing.assert_allclose(out, kept + (1 - kept.sum()) * TARGET, rtol=1e-15)
    assert kl(out, TARGET) > 0.01


def test_the_bound_of_reuse_is_nearly_reached():
    """One token of all p with q = l: kept half the time, and drawn from q otherwise."""
    q, lenience = 1e-6, 1.0
    out = output_distribution(RolloutReuse(lenience), draft=[1 - 1e-9, 1e-9], target=[q, 1 - q])
    assert out[0] / q == pytest.approx(1 + 1 / lenience, rel=1e-5)


def test_a_wrong_lenience_is_named():
    with pytest.raises(ValueError, match=r"^lenience must lie in \(0, 1\], got 0"):
        RolloutReuse(0.0)
