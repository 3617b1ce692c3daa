"""KL, total variation and binary KL against independent formulas, also where laws nearly agree."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mpf
from scipy.special import rel_entr

from cactus_theory import binary_kl, kl, total_variation
from cactus_theory.testing import distributions, pairs, target_probabilities

EPS = 2.0**-52
DIGITS = 80


def kl_in_high_precision(p, q):
    """sum p log(p/q) - p + q in mpmath: KL for laws, and what rounding leaves of their sums."""
    total = mpf(0)
    for a, b in zip(map(mpf, map(float, p)), map(mpf, map(float, q)), strict=True):
        if a > 0 and b == 0:
            return mpmath.inf
        total += (a * (mpmath.log(a) - mpmath.log(b)) if a > 0 else mpf(0)) - a + b
    return total


@given(pair=pairs())
def test_kl_agrees_with_high_precision(pair):
    p, q = pair
    value = float(kl(p, q))
    with mpmath.workdps(DIGITS):
        expected = kl_in_high_precision(p, q)
        if mpmath.isinf(expected):
            assert value == np.inf
            return
        # Every term is >= 0 and right to a few ulp: p - q is exact unless p and q are a factor 2
        # apart, and there a term t has relative condition |p-q| |log(p/q)| / t, of order one. A
        # term below 2^-1022 is subnormal and keeps an absolute precision of 2^-1074.
        assert abs(mpf(value) - expected) <= 1e-13 * expected + p.size * mpf(2) ** -1074


@given(pair=pairs())
def test_kl_agrees_with_scipy(pair):
    expected = float(rel_entr(*pair).sum())
    # rel_entr cancels between terms: absolute rounding of V terms of size <= 700.
    assert kl(*pair) == pytest.approx(expected, rel=1e-13, abs=8 * 8 * EPS)


@given(q=distributions(min_size=2), data=st.data())
def test_kl_of_laws_an_ulp_apart_has_full_relative_precision(q, data):
    steps = data.draw(st.lists(st.integers(-4, 4), min_size=q.size, max_size=q.size))
    p = np.clip(q + np.array(steps) * np.where(q > 0, np.spacing(q), 0.0), 0.0, 1.0)
    value = float(kl(p, q))
    with mpmath.workdps(DIGITS):
        # p - q is exact here, so nothing but a few ulp of the terms can be lost; a term of laws
        # around 1e-300 is itself subnormal and keeps an absolute precision of 5e-324.
        expected = kl_in_high_precision(p, q)
        assert abs(mpf(value) - expected) <= 1e-13 * expected + q.size * mpf(2) ** -1074


def test_binary_kl_near_equality_has_full_relative_precision():
    # About 1e-25 nats, far below the rounding of h log(h/q) + (1-h) log((1-h)/(1-q)).
    for q in (1e-9, 1e-3, 0.3, 0.5, 0.9, 1 - 2.0**-30):
        for steps in (1, 2.0**8, 2.0**16, 2.0**20):
            for sign in (1, -1):
                h = q + sign * steps * float(np.spacing(q))
                with mpmath.workdps(DIGITS):
                    expected = kl_in_high_precision([h], [q])
                    a, b = 1 - mpf(h), 1 - mpf(q)
                    expected += a * (mpmath.log(a) - mpmath.log(b)) - a + b
                    # 1e-13: t = (h-q)/(1-q) carries the rounding of 1 - q, then a few ulp.
                    assert abs(mpf(float(binary_kl(h, q))) - expected) <= 1e-13 * expected


@given(h=target_probabilities(), q=target_probabilities())
@example(h=1e-300, q=1 - 2.0**-53)
@example(h=1.0, q=1e-300)
@example(h=1e-300, q=1.0000000000000002e-300)
def test_binary_kl_agrees_with_high_precision(h, q):
    value = float(binary_kl(h, q))
    with mpmath.workdps(1000):  # 1 - 1e-300 must be exact
        a, b = mpf(h), mpf(q)
        if (b == 0 and a > 0) or (b == 1 and a < 1):
            assert value == np.inf
            return
        expected = a * mpmath.log(a / b) if a else mpf(0)
        expected += (1 - a) * mpmath.log((1 - a) / (1 - b)) if a < 1 else mpf(0)
        # h - q and 1 - q are rounded: relative 1e-13 of the larger of the two non-negative terms,
        # (1-t) log(1-t) + t being steep where h is near 1: slope <= 37 times an ulp of 1.
        # What lies below the least subnormal number is 0.
        least = mpf(2) ** -1074
        allowed = 1e-13 * expected + 37 * EPS * (1 - b) * (a > 0.9) + least
        assert abs(mpf(value) - expected) <= allowed


def test_a_certain_or_impossible_outcome_has_its_closed_form():
    q = np.array([1e-300, 0.1, 0.5, 0.9, 1 - 2.0**-53])
    np.testing.assert_allclose(binary_kl(1.0, q), -np.log(q), rtol=4 * EPS)
    np.testing.assert_allclose(binary_kl(0.0, q), -np.log1p(-q), rtol=4 * EPS)
    assert binary_kl([0.0, 1.0], [0.0, 1.0]).tolist() == [0, 0]
    assert binary_kl([0.5, 1.0, 0.5, 0.0], [0.0, 0.0, 1.0, 1.0]).tolist() == [np.inf] * 4
    assert kl([0.0, 1.0], [0.0, 1.0]) == 0
    assert kl([1.0, 0.0], [0.0, 1.0]) == np.inf
    assert kl([1.0, 0.0], [0.5, 0.5]) == pytest.approx(np.log(2), rel=4 * EPS)


def test_subnormal_probabilities_neither_overflow_nor_vanish():
    # p / q overflows here; log p - log q does not. The subnormal itself is exact, so a few ulp.
    for q in (5e-324, 1e-320, 1e-310):
        assert kl([1.0, 0.0], [q, 1.0]) == pytest.approx(-np.log(q), rel=8 * EPS)
        assert binary_kl(1.0, q) == pytest.approx(-np.log(q), rel=8 * EPS)
        expected = np.log(0.5) - 0.5 * np.log(q)
        assert binary_kl(0.5, q) == pytest.approx(expected, rel=8 * EPS)
        assert kl([q, 1.0], [0.5, 0.5]) == pytest.approx(np.log(2), rel=8 * EPS)


@given(pair=pairs())
def test_no_divergence_is_negative_and_equal_laws_have_none(pair):
    p, q = pair
    assert kl(p, q) >= 0
    assert total_variation(p, q) >= 0
    assert kl(p, p) == 0
    assert total_variation(q, q) == 0
    assert total_variation(p, q) == total_variation(q, p)


@given(pair=pairs())
def test_pinsker_bounds_total_variation_by_kl(pair):
    # Laws sum to one up to V ulp, so the inequality holds up to that.
    assert total_variation(*pair) <= np.sqrt(kl(*pair) / 2) * (1 + 4 * EPS) + 16 * EPS


@given(pair=pairs())
def test_total_variation_agrees_with_the_largest_difference_over_events(pair):
    p, q = pair
    # Equal to half the sum of differences but for the V ulp by which the sums miss one.
    event = np.maximum(p - q, 0).sum()
    assert total_variation(p, q) == pytest.approx(event, abs=16 * EPS)
    assert total_variation(p, q) <= 1 + 8 * EPS


@given(h=target_probabilities(), q=target_probabilities())
def test_binary_kl_is_the_kl_of_two_bernoulli_laws(h, q):
    # 1 - h is rounded before kl sees it: an ulp of 1 times the slope log(...) <= 700.
    expected = kl([h, 1 - h], [q, 1 - q])
    assert binary_kl(h, q) == pytest.approx(expected, rel=1e-13, abs=700 * EPS)


def test_leading_axes_broadcast_and_the_first_law_is_the_one_drawn_from():
    p = np.array([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]])
    q = np.array([0.25, 0.75])
    assert kl(p, q).shape == total_variation(p, q).shape == (3,)
    for row, divergence, distance in zip(p, kl(p, q), total_variation(p, q), strict=True):
        assert divergence == pytest.approx(rel_entr(row, q).sum(), rel=1e-13)
        assert distance == pytest.approx(abs(row - q).sum() / 2, rel=2 * EPS)
    assert kl(p[:, None], np.stack([q, q])).shape == (3, 2)
    assert np.ndim(kl(q, q)) == 0
    assert binary_kl(p, q).shape == (3, 2)
