"""Counts of emitted tokens: mistakes are named, honest samplers pass, and power is told."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

from cactus_theory.testing import (
    ConformanceError,
    check_counts,
    samples_needed,
)
from tests.theory.testing.position_samplers import (
    CANDIDATES,
    DRAFTED_WRONGLY,
    LOSSY,
    MISTAKES,
    PLAIN,
    SHARED,
    P,
    Q,
    counting,
    made,
    parts,
)


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
def test_an_honest_sampler_passes_and_the_power_is_told(rule):
    samples = max(samples_needed(rule, draft=P, target=Q), 20_000)
    counts = counting(parts(rule))(P, Q, samples, 0)
    report = check_counts(counts, rule, draft=P, target=Q)
    assert report.statistic < report.threshold
    assert report.threshold == pytest.approx(chi2.isf(1e-6, report.degrees))
    assert min(report.power.values()) >= 0.999
    assert len(report.power) > 10


@pytest.mark.parametrize(("name", "rule", "solve"), [*MISTAKES, *DRAFTED_WRONGLY])
def test_each_mistake_is_rejected_by_counts_and_named(name, rule, solve):
    counts = counting(made(name, solve))(P, Q, 1_000_000, 0)
    with pytest.raises(ConformanceError) as caught:
        check_counts(counts, rule, draft=P, target=Q)
    assert f"it matches {name}" in str(caught.value)
    assert "false-alarm level 1e-06" in str(caught.value)


def test_two_hundred_honest_runs_raise_no_alarm():
    sampler = counting(parts(LOSSY))
    for seed in range(200):
        check_counts(sampler(P, Q, 60_000, seed), LOSSY, draft=P, target=Q)


def test_too_few_samples_are_refused_and_the_number_needed_is_said_and_enough():
    needed = samples_needed(LOSSY, draft=P, target=Q)
    sampler = counting(parts(LOSSY))
    with pytest.raises(ValueError, match=f"it takes {needed} for 0.999"):
        check_counts(sampler(P, Q, needed // 2, 0), LOSSY, draft=P, target=Q)
    report = check_counts(sampler(P, Q, needed, 0), LOSSY, draft=P, target=Q)
    assert 0.999 <= min(report.power.values()) < 0.9999


def test_what_is_too_near_to_be_told_is_named_and_not_promised():
    counts = counting(parts(LOSSY))(P, Q, 10_000, 0)
    report = check_counts(counts, LOSSY, draft=P, target=Q, smallest=0.2)
    assert "residual not rescaled" in report.indistinguishable
    assert "residual not rescaled" not in report.power


def test_a_token_of_no_probability_is_one_too_many():
    q = np.array([0.5, 0.5, 0.0])
    p = np.array([0.4, 0.2, 0.4])

    counts = np.random.default_rng(0).multinomial(99_999, q) + np.array([0, 0, 1])
    with pytest.raises(ConformanceError, match="token 2 is emitted, whose probability is 0"):
        check_counts(counts, PLAIN, draft=p, target=q)


@pytest.mark.parametrize(
    "counts", [[10, 10], [0, 0, 0, 0, 0], [100_001, -1, 0, 0, 0], [1.5, 99_998.5, 0, 0, 0]]
)
def test_what_is_no_count_is_said_so(counts):
    with pytest.raises(ConformanceError, match="counts of"):
        check_counts(counts, PLAIN, draft=P, target=Q)


def test_the_samples_needed_grow_as_the_false_alarm_level_falls():
    needed = [
        samples_needed(PLAIN, draft=P, target=Q, false_alarm=level) for level in (1e-2, 1e-6, 1e-12)
    ]
    assert all(a < b for a, b in pairwise(needed))
