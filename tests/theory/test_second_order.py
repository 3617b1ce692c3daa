"""The second-order optimum: what it spends, and how far it lies from the exact one."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mpmath import mpf

from cactus_theory import (
    Cactus,
    binary_kl,
    optimum_gap,
    second_order_optimum,
)
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.optimum_reference import DIGITS, EPS, ULPS, exact_kl


@given(q=target_probabilities(), delta=budgets())
def test_the_second_order_candidate_has_chi_square_exactly_twice_the_budget(q, delta):
    boosted = Cactus(delta).boost(q)
    assume(0 < q < 1 and boosted < 1)
    with mpmath.workdps(DIGITS):
        gain = mpmath.sqrt(2 * mpf(delta) * mpf(q) * (1 - mpf(q)))
        chi_square = gain**2 / mpf(q) + gain**2 / (1 - mpf(q))
        assert abs(chi_square - 2 * mpf(delta)) <= mpf(10) ** -60 * delta
        # g carries three roundings of the root (halved by the square root) and one of the sum.
        # Below 2^-1022 the product under the root is subnormal: an absolute precision is left.
        lost = mpmath.sqrt(mpf(2) ** -1072)
        assert abs(mpf(float(boosted)) - (mpf(q) + gain)) <= 4 * EPS * (mpf(q) + gain) + lost


@given(q=target_probabilities(), delta=budgets())
def test_the_second_order_candidate_overspends_at_most_the_sharp_bound(q, delta):
    # KL computed from the rounded g: its slope log-odds (<= 700) times g's error of 2 ulp.
    slack = 1500 * EPS
    assert binary_kl(Cactus(delta).boost(q), q) <= np.log1p(2 * delta) * (1 + slack) + slack


@given(delta=budgets())
def test_the_sharp_bound_is_attained_where_the_cap_begins(delta):
    q = 1 / (1 + 2 * delta)
    # g has an error of a few ulp there, and KL has slope log(g (1-q) / (q (1-g))) <= 40 near g = 1.
    assert binary_kl(Cactus(delta).boost(q), q) == pytest.approx(np.log1p(2 * delta), abs=1e-13)


@given(q=target_probabilities(), delta=budgets())
def test_corollary_6_holds_up_to_one_half(q, delta):
    boosted = Cactus(delta).boost(q)
    assume(boosted <= 0.5)
    # g is right to 2 ulp; KL then moves by g * 2 ulp * slope, slope = log-odds gained.
    slope = np.log(boosted / q) - np.log1p((q - boosted) / (1 - q)) if q > 0 else 0.0
    assert binary_kl(boosted, q) <= delta * (1 + 8 * EPS) + 4 * EPS * boosted * slope


def test_the_second_order_candidate_can_overspend_above_one_half():
    assert binary_kl(Cactus(0.1).boost(0.7), 0.7) > 0.1


def test_the_gap_is_positive_on_improbable_tokens_and_negative_where_the_closed_form_overspends():
    assert (optimum_gap(np.logspace(-300, -3, 50), 1.0) > 0).all()
    assert (optimum_gap(np.array([0.5, 0.6, 0.7]), 0.1) < 0).all()
    assert abs(optimum_gap(np.array([0.0, 1.0]), 0.1)).max() == 0


@given(q=target_probabilities(), delta=budgets())
def test_the_gap_is_negative_exactly_where_the_closed_form_overspends(q, delta):
    assume(0 < q < 1 and delta > 0)
    closed = float(second_order_optimum(q, delta))
    gap = float(np.squeeze(optimum_gap([q], delta)))
    with mpmath.workdps(DIGITS):
        spent = exact_kl(mpf(closed), 1 - mpf(closed), mpf(q))
        if spent > mpf(delta):
            assert gap <= 0
        # The exact value is 8 ulp (up to 16 EPS) low, so a shortfall that small is not one.
        elif gap < 0:
            assert -gap <= 2 * ULPS * EPS * closed


@given(delta=budgets())
@example(delta=0.75)
def test_the_safe_closed_form_keeps_the_budget(delta):
    # theory.md, section 2: the chi-square budget expm1(delta) never overspends the KL budget.
    q = np.concatenate([np.logspace(-300, -1, 60), np.linspace(0.01, 0.99, 99)])
    safe = Cactus(float(np.expm1(delta)) / 2).boost(q)
    assert (binary_kl(safe, q) <= delta * (1 + 1500 * EPS) + 1500 * EPS).all()  # slope <= 700


@given(exponent=st.floats(1.0, 15.9), fraction=st.floats(0.0, 1.5))
def test_the_shrink_of_the_second_order_rule_is_accurate_near_certainty(exponent, fraction):
    q = 1 - 10.0**-exponent
    delta = float((1 - q) / (2 * q) * fraction**2)  # the cap g = 1 begins at fraction = 1
    shrink = float(Cactus(delta).shrink(q))
    with mpmath.workdps(DIGITS):
        gain = mpmath.sqrt(2 * mpf(delta) * mpf(q) * (1 - mpf(q)))
        boosted = min(mpf(q) + gain, mpf(1))
        expected = (1 - boosted) / (1 - mpf(q))
        # Relative 1e-14, except within 2 ulp (of 1) of the cap, where 1 - sqrt(...) cancels.
        assert abs(mpf(shrink) - expected) <= 1e-14 * expected + 2 * EPS
