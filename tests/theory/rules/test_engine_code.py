"""Engines' own verification, written again as it was read, follows the rule that names it.

Each procedure has the steps of the source that the rule's docstring names, at the commit named
there, in numpy: thresholds, the order of comparisons and what is drawn, but none of its code.
"""

import numpy as np
import pytest

from cactus_theory import RelaxedAcceptance, RolloutReuse, SamplerMatch, ThresholdAcceptance
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import OnePosition, check_by_enumeration

TARGETS = [np.array(q) / 16 for q in ([7, 5, 3, 1], [4, 4, 4, 4], [14, 1, 1, 0])]
CERTAIN = list(np.eye(4))


def sglang(single, total):
    """One sibling: the sum of the target's probabilities is that of the drafted token."""

    def one(token, draft, target, coin, final_coin):
        so_far = target[token]
        if coin <= so_far / total or target[token] >= single:
            return token, True
        left = target.copy()
        left[token] = 0  # the target minus what was copied to the draft's row
        return inverse_cdf(left, final_coin), False

    return OnePosition(one)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("draft", CERTAIN, ids=str)
@pytest.mark.parametrize(("single", "total"), [(1, 1), (0.25, 0.5), (0.75, 0.5), (0.3125, 1)])
def test_the_kernel_of_sglang_is_threshold_acceptance_of_a_certain_draft(
    single, total, draft, target
):
    rule = ThresholdAcceptance(single, total)
    check_by_enumeration(sglang(single, total), rule, draft=draft, target=target)


def test_the_kernel_of_sglang_is_not_that_rule_of_a_draft_with_probabilities():
    """It keeps q/total of a token, where the rule keeps min(1, q/(total p))."""
    rule = ThresholdAcceptance(1, 0.5)
    draft = np.array([8, 4, 2, 2]) / 16
    with pytest.raises(AssertionError):
        check_by_enumeration(sglang(1, 0.5), rule, draft=draft, target=TARGETS[0])


def tensorrt(k, margin, *, among_all=False):
    """The drafted token against the k largest, in falling order, as far as the threshold allows."""

    def one(token, draft, target, u, v):
        largest = np.argsort(-target, kind="stable")[: 4 if among_all else k]
        threshold = target[largest[0]] - margin
        for place, candidate in enumerate(largest):
            if place > 0 and threshold > target[candidate]:
                break
            if candidate == token:
                return token, True
        return largest[0], False

    return OnePosition(one)


@pytest.mark.parametrize("draft", [*CERTAIN, np.array([2, 4, 4, 6]) / 16], ids=str)
@pytest.mark.parametrize("target", [TARGETS[0], TARGETS[2]], ids=str)  # no ties across the k-th
@pytest.mark.parametrize(("k", "margin"), [(1, 0.0), (2, 0.125), (2, 0.0625), (3, 1.0)])
def test_the_kernel_of_tensorrt_is_relaxed_acceptance_of_any_draft(k, margin, target, draft):
    if k == 2 and target is TARGETS[2]:
        target = np.array([9, 4, 2, 1]) / 16
    rule = RelaxedAcceptance(k, margin)
    check_by_enumeration(tensorrt(k, margin), rule, draft=draft, target=target)


def test_a_kernel_that_looks_beyond_the_k_largest_is_told_from_it():
    """The power of the test above."""
    wrong = tensorrt(2, 1.0, among_all=True)
    draft = np.array([2, 4, 4, 6]) / 16
    with pytest.raises(AssertionError):
        check_by_enumeration(wrong, RelaxedAcceptance(2, 1.0), draft=draft, target=TARGETS[0])


def llama(token, draft, target, u, v):
    """The target's own sample is emitted in any case; the draft is compared with it afterwards."""
    sampled = inverse_cdf(target, u)
    return sampled, sampled == token


@pytest.mark.parametrize("draft", [*CERTAIN, np.array([2, 4, 4, 6]) / 16], ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_comparison_of_llama_cpp_and_mlx_is_the_sampler_match(target, draft):
    check_by_enumeration(OnePosition(llama), SamplerMatch(), draft=draft, target=target)


def spec_rl(bias, *, resumes_from):
    """Log-probabilities compared with the logarithm of a uniform, then the policy goes on."""

    def one(token, draft, target, u, v):
        if not target[token] > 0:
            return inverse_cdf(resumes_from(draft, target), v), False
        gain = np.log(target[token]) - np.log(draft[token]) + bias
        if gain >= 0 or np.log(u) <= gain:
            return token, True
        return inverse_cdf(resumes_from(draft, target), v), False

    return OnePosition(one)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("lenience", [1.0, 0.5])
def test_the_cut_of_spec_rl_is_the_reuse_of_rollouts(lenience, target):
    draft = np.array([2, 4, 4, 6]) / 16
    engine = spec_rl(-np.log(lenience), resumes_from=lambda draft, target: target)
    check_by_enumeration(engine, RolloutReuse(lenience), draft=draft, target=target)


def test_a_cut_that_resumes_from_the_residual_is_told_from_it():
    """The power of the test above: this is lenience."""
    wrong = spec_rl(0.0, resumes_from=lambda draft, target: np.maximum(target - draft, 0))
    draft = np.array([2, 4, 4, 6]) / 16
    with pytest.raises(AssertionError):
        check_by_enumeration(wrong, RolloutReuse(1.0), draft=draft, target=TARGETS[0])
