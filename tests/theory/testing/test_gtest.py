"""The G-test: its false-alarm level, its power, and strata."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, ncx2

from cactus_theory.testing._gtest import merged, power, statistic
from tests.theory.testing.position_samplers import P, Q


def test_the_false_alarm_level_holds_where_it_can_be_measured():
    # Cells at the smallest expectation allowed, the hardest case for the approximation.
    law = np.array([0.01, 0.01, 0.02, 0.06, 0.1, 0.8])
    samples, runs, level = 1000, 20_000, 1e-3
    assert min(samples * law[cell].sum() for cell in merged(law, samples)) >= 10
    draws = np.random.default_rng(5).multinomial(samples, law, size=runs)
    alarms = sum(
        found > threshold
        for found, threshold, _ in (statistic([row], [law], level) for row in draws)
    )
    assert alarms <= 20 + 5 * np.sqrt(20)  # Poisson of mean 20, five standard deviations


def test_the_power_told_is_the_power_had():
    wrong = 0.97 * Q + 0.03 * P
    samples, runs, level = 4_000, 4_000, 1e-3
    told = power([Q], [wrong], samples, level)
    assert 0.05 < told < 0.95
    draws = np.random.default_rng(6).multinomial(samples, wrong, size=runs)
    had = np.mean([s > t for s, t, _ in (statistic([row], [Q], level) for row in draws)])
    assert had == pytest.approx(told, abs=0.05)  # .02 of it is the noise of 4,000 runs


def test_strata_add_their_statistics_their_degrees_and_their_noncentralities():
    wrong, samples, level = 0.97 * Q + 0.03 * P, 4_000, 1e-3
    rng = np.random.default_rng(7)
    counts, laws = [rng.multinomial(samples, law) for law in (Q, P)], [Q, P]
    alone = [statistic([row], [law], level) for row, law in zip(counts, laws, strict=True)]
    value, threshold, degrees = statistic(counts, laws, level)
    assert value == pytest.approx(sum(found for found, _, _ in alone))
    assert degrees == sum(each for _, _, each in alone) == 8
    assert threshold == pytest.approx(chi2.isf(level, degrees))
    far = 2 * samples * float((wrong * np.log(wrong / Q)).sum())
    assert power([Q, P], [wrong, P], samples, level) == pytest.approx(ncx2.sf(threshold, 8, far))
    assert power([Q, Q], [wrong] * 2, samples, level) == pytest.approx(
        ncx2.sf(threshold, 8, 2 * far)
    )
