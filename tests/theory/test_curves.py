"""Curves against the budget are the means of what the laws themselves say."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import Cactus, emission
from cactus_theory.curves import curve
from cactus_theory.rules.registry import RULES

RNG = np.random.default_rng(5)
DRAFT, TARGET = RNG.dirichlet(np.full(16, 0.5), size=6), RNG.dirichlet(np.ones(16), size=6)
DELTAS = np.array([0.0, 0.01, 0.3, 2.0])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # sums of sixteen roundings


@pytest.mark.parametrize("name", RULES)
def test_a_curve_holds_the_means_of_what_each_rule_emits(name):
    found = curve(RULES[name].at, draft=DRAFT, target=TARGET, deltas=DELTAS)
    for i, delta in enumerate(DELTAS):
        cost = emission(RULES[name].at(delta), draft=DRAFT, target=TARGET)
        np.testing.assert_allclose(found.acceptance_rate[i], cost.acceptance_rate.mean(), **CLOSE)
        np.testing.assert_allclose(found.total_variation[i], cost.total_variation.mean(), **CLOSE)
        assert found.kl[i] <= cost.kl_bound.mean() + 1e-12  # rounding


@pytest.mark.parametrize("name", [n for n, e in RULES.items() if e.at_budget and n != "mixture"])
def test_more_budget_accepts_more_and_none_is_plain_speculative_sampling(name):
    found = curve(RULES[name].at, draft=DRAFT, target=TARGET, deltas=DELTAS)
    assert (np.diff(found.acceptance_rate) > 0).all()
    plain = np.minimum(DRAFT, TARGET).sum(axis=1).mean()
    assert found.acceptance_rate[0] == pytest.approx(plain, abs=1e-12)
    assert found.kl[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["clamp", "lenience"])
def test_where_delta_bounds_what_is_emitted_it_does(name):
    found = curve(RULES[name].at, draft=DRAFT, target=TARGET, deltas=DELTAS)
    assert (found.kl <= DELTAS + 1e-12).all()  # rounding


def test_gain_is_cost_along_the_whole_curve():
    found = curve(Cactus, draft=DRAFT, target=TARGET, deltas=DELTAS)
    gain = found.acceptance_rate - found.acceptance_rate[0]
    np.testing.assert_allclose(gain, found.total_variation, **CLOSE)


@pytest.mark.parametrize("deltas", [[], 0.1, [[0.1]], [-0.1], [np.nan]])
def test_deltas_that_are_no_list_of_budgets_are_refused(deltas):
    with pytest.raises(ValueError, match="deltas must"):
        curve(Cactus, draft=DRAFT, target=TARGET, deltas=deltas)
