"""Each divergence against high-precision arithmetic: its forms, and what is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from cactus_theory import (
    KL,
    Alpha,
    Cactus,
    CactusExact,
    CactusSafe,
    ChiSquare,
    Divergence,
    JensenShannon,
    ReverseKL,
    TotalVariation,
    binary_kl,
    kl,
    total_variation,
)
from cactus_theory.testing import pairs, target_probabilities
from tests.theory.divergences.reference import (
    BOUNDED,
    DIGITS,
    DIVERGENCES,
    EPS,
    agrees,
    each_divergence,
    reference_binary,
    reference_term,
    ulps,
)


@each_divergence
@settings(max_examples=30)
@given(pair=pairs())
def test_the_full_form_agrees_with_high_precision(divergence, pair):
    p, q = pair
    value = divergence.between(p, q)
    assert value >= 0
    with mpmath.workdps(DIGITS):
        terms = [
            reference_term(divergence, mpf(float(a)), mpf(float(b)))
            for a, b in zip(p, q, strict=True)
        ]
        assert agrees(divergence, value, mpmath.fsum(terms))


@each_divergence
@settings(max_examples=40)
@given(h=target_probabilities(), q=target_probabilities())
@example(h=1e-300, q=1 - 2.0**-53)
@example(h=1.0, q=1e-300)
@example(h=1 - 2.0**-53, q=0.9)  # 1 - h is not q's complement less the gain: that lost 34 ulp
def test_the_binary_form_agrees_with_high_precision(divergence, h, q):
    with mpmath.workdps(DIGITS):
        expected = reference_binary(divergence, mpf(h), 1 - mpf(h), mpf(q))
        assert agrees(divergence, divergence.binary(h, q), expected)


@each_divergence
def test_the_binary_form_keeps_its_digits_where_the_laws_nearly_agree(divergence):
    for q in (1e-200, 1e-9, 1e-3, 0.3, 0.5, 0.9, 1 - 2.0**-30):
        for gain in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.24, 0.26):
            for h in (q + gain * min(q, 1 - q), q - gain * min(q, 1 - q)):
                with mpmath.workdps(DIGITS):
                    expected = reference_binary(divergence, mpf(h), 1 - mpf(h), mpf(q))
                    value = mpf(float(divergence.binary(h, q)))
                    assert abs(value - expected) <= ulps(divergence) * EPS * expected


@each_divergence
def test_the_binary_form_is_the_full_form_of_two_bernoulli_laws(divergence):
    # Dyadic, so that 1 - h and 1 - q are exact.
    h, q = np.meshgrid(np.arange(33) / 32, np.arange(33) / 32)
    full = divergence.between(np.stack([h, 1 - h], -1), np.stack([q, 1 - q], -1))
    binary = divergence.binary(h, q)
    assert binary.shape == (33, 33)
    np.testing.assert_allclose(binary, full, rtol=4 * EPS, atol=0)
    assert (np.diag(binary) == 0).all()
    assert (binary + np.eye(33) > 0).all()


@each_divergence
def test_the_generator_is_zero_at_one_with_the_curvature_stated_and_gives_the_terms(divergence):
    assert divergence.generator(1.0) == 0
    if divergence.curvature is not None:
        for step in (2.0**-20, -(2.0**-20)):
            # Third order: f'''(1) = (alpha-2) f''(1) in the family, below 6 in all: 6 * 2^-20 / 3.
            second = 2 * divergence.generator(1 + step) / step**2
            assert second == pytest.approx(divergence.curvature, rel=3e-6)
    ratios = np.concatenate([np.logspace(-30, 30, 40), 1 + np.logspace(-15, -1, 20), [0.0]])
    with mpmath.workdps(DIGITS):
        for t, value in zip(ratios, divergence.generator(ratios), strict=True):
            assert agrees(divergence, value, reference_term(divergence, mpf(float(t)), mpf(1)))


@each_divergence
@settings(max_examples=40)
@given(a=st.floats(1e-3, 1e3), b=st.floats(1e-3, 1e3), weight=st.floats(0.0, 1.0))
def test_the_generator_is_convex_and_non_negative(divergence, a, b, weight):
    f = divergence.generator
    assert f(a) >= 0
    middle = weight * a + (1 - weight) * b
    chord = weight * f(a) + (1 - weight) * f(b) if 0 < weight < 1 else f(middle)
    # The chord is a rounded sum of rounded values; `middle` is rounded, where f has slope f'.
    slope = abs(f(middle * (1 + 2.0**-30)) - f(middle)) * 2.0**30
    tolerance = 2 * ulps(divergence) * EPS * f(middle) + 4 * EPS * slope
    assert f(middle) <= chord * (1 + 2 * ulps(divergence) * EPS) + tolerance + 1e-300


def test_the_named_divergences_agree_with_the_functions_that_were_there_before():
    rng = np.random.default_rng(7)
    p, q = rng.dirichlet(np.ones(5), 50), rng.dirichlet(np.ones(5), 50)
    np.testing.assert_allclose(KL().between(p, q), kl(p, q), rtol=16 * EPS)
    np.testing.assert_allclose(ReverseKL().between(p, q), kl(q, p), rtol=16 * EPS)
    np.testing.assert_array_equal(TotalVariation().between(p, q), total_variation(p, q))
    np.testing.assert_allclose(KL().binary(p, q), binary_kl(p, q), rtol=64 * EPS)


@each_divergence
def test_subnormal_probabilities_neither_overflow_nor_vanish(divergence):
    with mpmath.workdps(DIGITS):
        for tiny in (5e-324, 1e-320, 1e-310):
            for h, q in ((tiny, 0.5), (tiny, 1.0), (0.5, tiny), (1.0, tiny)):
                expected = reference_binary(divergence, mpf(h), 1 - mpf(h), mpf(q))
                value = divergence.binary(h, q)
                assert value >= 0
                if expected < mpf(10) ** 300:
                    # A subnormal has few digits; so has m = (p+q)/2 of two. log of the ratio: 745.
                    assert abs(mpf(float(value)) - expected) <= 1e-12 * expected


def test_leaving_the_support_costs_infinity_exactly_where_it_should():
    inside, outside = [0.0, 1.0], [0.5, 0.5]
    for divergence in DIVERGENCES:
        order = getattr(divergence, "alpha", None)
        leaves = divergence in (KL(), ChiSquare()) or (order is not None and order >= 1)
        excludes = divergence == ReverseKL() or (order is not None and order <= 0)
        assert np.isinf(divergence.between(outside, inside)) == leaves
        assert np.isinf(divergence.between(inside, outside)) == excludes
        assert np.isinf(divergence.binary(0.5, 0.0)) == leaves
        assert np.isinf(divergence.binary(1.0, 0.5)) == excludes
        assert divergence.binary([0.0, 1.0], [0.0, 1.0]).tolist() == [0, 0]
        apart = divergence.between([1.0, 0.0], [0.0, 1.0])
        if divergence in BOUNDED:
            assert apart == pytest.approx(BOUNDED[divergence], rel=4 * EPS)


# What is refused


def test_divergences_and_rules_are_values():
    assert len({KL(), KL(), Alpha(1), Alpha(1.0), Alpha(2), ChiSquare()}) == 4
    assert KL() != Alpha(1)
    assert len({CactusSafe(1), CactusSafe(1.0), CactusExact(1.0), Cactus(1.0)}) == 3
    assert repr(Alpha(0.5)) == "Alpha(alpha=0.5)"
    for thing, name in [(Alpha(1), "alpha"), (CactusSafe(1), "delta"), (CactusExact(1), "delta")]:
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 2.0)


def test_bad_input_is_refused_and_named():
    for alpha in ("1", True, None):
        with pytest.raises(TypeError, match="alpha"):
            Alpha(alpha)
    for alpha in (np.nan, np.inf):
        with pytest.raises(ValueError, match="alpha"):
            Alpha(alpha)
    with pytest.raises(TypeError, match="divergence"):
        CactusExact(0.5, "kl")
    with pytest.raises(TypeError, match="delta"):
        CactusSafe("1")
    with pytest.raises(ValueError, match="delta"):
        CactusSafe(-0.1)
    for divergence in DIVERGENCES:
        with pytest.raises(ValueError, match="target_prob"):
            divergence.optimum(1.5, 0.1)
        for delta in (-1e-9, np.inf, np.nan):
            with pytest.raises(ValueError, match="delta"):
                divergence.optimum(0.5, delta)
        with pytest.raises(ValueError, match="t must"):
            divergence.generator([1.0, -0.5])
        with pytest.raises(ValueError, match="h must"):
            divergence.binary(-0.1, 0.5)
        with pytest.raises(ValueError, match="share a vocabulary"):
            divergence.between([0.5, 0.5], [1.0])
    with pytest.raises(TypeError, match="abstract"):
        Divergence()


def test_a_probability_whose_half_is_nothing_costs_nothing():
    # q = 0 for half of the smallest float, which rounds to 0, is no exclusion
    assert JensenShannon().between([5e-324, 1.0], [0.0, 1.0]) == 0
