"""Each divergence, its optimum and the rules built on them, against high-precision arithmetic."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
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
    SpeculativeSampling,
    SquaredHellinger,
    TotalVariation,
    binary_kl,
    exact_optimum,
    kl,
    optimum_gap,
    output_distribution,
    second_order_optimum,
    total_variation,
)
from cactus_theory.testing import budgets, pairs, target_probabilities

EPS = 2.0**-52
DIGITS = 700  # (1e-300)^2 beside 1, and 50 digits of it
NAMED = [KL(), ReverseKL(), ChiSquare(), TotalVariation(), SquaredHellinger(), JensenShannon()]
ORDERS = [-3.0, -1.0, 1e-7, 0.3, 0.5, 0.999999, 1.0, 1.5, 7.5]
DIVERGENCES = NAMED + [Alpha(order) for order in ORDERS]
CLOSED = [ChiSquare(), TotalVariation(), SquaredHellinger(), Alpha(0.5), Alpha(2)]
BOUNDED = {TotalVariation(): 1.0, SquaredHellinger(): 1.0, JensenShannon(): 0.6931471805599454}
MEMBERS = [
    (Alpha(1), KL(), 1),
    (Alpha(0), ReverseKL(), 1),
    (Alpha(0.5), SquaredHellinger(), 4),
    (Alpha(2), ChiSquare(), 0.5),
]
each_divergence = pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)


def reference_term(divergence: Divergence, p, q):
    """q f(p/q) with f'(1) = 0, from the textbook formula."""
    if p == q == 0:
        return mpf(0)
    order = getattr(divergence, "alpha", None)
    log = mpmath.log
    if divergence == KL() or order == 1:
        return (p * log(p / q) if p else 0) - p + q if q else mpmath.inf
    if divergence == ReverseKL() or order == 0:
        return (q * log(q / p) if q else 0) - q + p if p else mpmath.inf
    if divergence == ChiSquare():
        return (p - q) ** 2 / q if q else mpmath.inf
    if divergence == TotalVariation():
        return abs(p - q) / 2
    if divergence == SquaredHellinger():
        return (mpmath.sqrt(p) - mpmath.sqrt(q)) ** 2 / 2
    if divergence == JensenShannon():
        m = (p + q) / 2
        return sum(x * log(x / m) for x in (p, q) if x) / 2
    a = mpf(order)
    if q == 0:
        return mpmath.inf if a >= 1 else p / (1 - a)
    if p == 0:
        return mpmath.inf if a <= 0 else q / a
    return q * ((p / q) ** a - 1 - a * (p / q - 1)) / (a * (a - 1))


def reference_binary(divergence, h, rest, q):
    return reference_term(divergence, h, q) + reference_term(divergence, rest, 1 - q)


def ulps(divergence: Divergence) -> float:
    """Relative error allowed to a divergence: 5 were seen, and a power costs |alpha| more."""
    return 12 + 4 * abs(getattr(divergence, "alpha", 0))


def agrees(divergence, value, expected) -> bool:
    if expected > mpf(10) ** 307:
        return value > 1e306
    # Below about 1e-290 the terms are subnormal, or products of such: an absolute precision.
    return abs(mpf(float(value)) - expected) <= ulps(divergence) * EPS * expected + mpf(10) ** -305


# The forms


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


@pytest.mark.parametrize(("member", "named", "factor"), MEMBERS, ids=str)
def test_the_members_of_the_alpha_family_are_the_named_divergences(member, named, factor):
    grid = np.concatenate([[0.0, 1.0], np.logspace(-20, -0.01, 40), 1 - np.logspace(-15, -1, 20)])
    h, q = np.meshgrid(grid, grid)
    np.testing.assert_allclose(member.binary(h, q), factor * named.binary(h, q), rtol=32 * EPS)
    t = np.logspace(-10, 10, 41)
    np.testing.assert_allclose(member.generator(t), factor * named.generator(t), rtol=32 * EPS)
    inner = grid[2:]
    mine, its = member.optimum(inner, 0.1), named.optimum(inner, 0.1 / factor)
    np.testing.assert_array_equal(mine.value, its.value)
    np.testing.assert_array_equal(mine.complement, its.complement)
    np.testing.assert_allclose(mine.gap, its.gap, rtol=0, atol=4 * EPS)
    root = member.root(inner, 0.1)  # and without delegation
    assert (root.value <= its.bracket[1]).all()
    assert (its.value <= root.bracket[1]).all()


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0])
def test_the_alpha_family_is_continuous_at_its_members(order):
    q = np.array([1e-30, 1e-6, 0.2, 0.5, 0.9])
    for step in (1e-9, -1e-9):
        near, there = Alpha(order + step), Alpha(order)
        h = np.minimum(2 * q, 0.95)
        # d log D / d alpha is at most about log(h/q), 70 here (and 1/q^alpha grows as fast).
        np.testing.assert_allclose(near.binary(h, q), there.binary(h, q), rtol=1e-7)
        close = near.optimum(q, 0.01).value
        np.testing.assert_allclose(close, there.optimum(q, 0.01).value, rtol=1e-6)


def test_exchanging_the_laws_exchanges_alpha_and_one_less_alpha():
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(4), 20), rng.dirichlet(np.ones(4), 20)
    for order in [*ORDERS, 0.0, 2.0]:
        swapped = Alpha(1 - order).between(q, p)
        np.testing.assert_allclose(Alpha(order).between(p, q), swapped, rtol=1e-6)
    for divergence in (JensenShannon(), SquaredHellinger(), TotalVariation()):
        np.testing.assert_allclose(divergence.between(p, q), divergence.between(q, p), rtol=8 * EPS)


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


# The optimum


def sweep(divergence: Divergence, count: int) -> tuple[np.ndarray, np.ndarray]:
    """q from 1e-300 to 1 - 2^-53 and delta from 1e-12 to 50, a third of them nearly saturated."""
    rng = np.random.default_rng(20261130)
    q = np.concatenate(
        [
            10 ** rng.uniform(-300, 0, count),
            rng.uniform(0, 1, count),
            10 ** rng.uniform(-6, 0, count),
            1 - 10 ** rng.uniform(-15.9, 0, count),
            [1e-300, 1 - 2.0**-53, 2.0**-53, 0.5],
        ]
    )
    q = np.clip(q, 1e-300, 1 - 2.0**-53)
    delta = 10 ** rng.uniform(-12, np.log10(50), q.size)
    certain = divergence.binary(np.ones_like(q), q)
    nearly = certain * (1 - 10 ** rng.uniform(-16, -1, q.size))
    chosen = (rng.uniform(size=q.size) < 1 / 3) & (nearly > 1e-12) & (nearly < 50)
    return q, np.where(chosen, nearly, delta)


def check_optimum(divergence, q, delta, solution, *, closed: bool) -> None:
    """A certificate: every end of the brackets lies on its side of the exact budget.

    For a closed form value and complement are 8 ulp (at most 8 EPS, relative) to the safe side of a
    formula of a few roundings: 24 EPS is the room given. A root is that of a budget `ulps` lower,
    which the convexity of D in the gain passes on to g undiminished and not enlarged; 1 - g is
    that budget's complement, so there the certificate is about the budget.
    """
    slack = 0 if closed else 2 * ulps(divergence) * EPS
    width = 24 * EPS if closed else 24 * EPS + slack
    arrays = (q, delta, solution.value, solution.complement, solution.bracket[1])
    with mpmath.workdps(DIGITS):
        for a, d, g, c, upper in zip(*(map(mpf, map(float, x)) for x in arrays), strict=True):
            cost = lambda h, rest, q=a: reference_binary(divergence, h, rest, q)  # noqa: E731
            assert a <= g <= upper <= 1
            assert upper - g <= width * g
            assert g == a or cost(g, 1 - g) <= d
            assert upper == 1 or cost(upper, 1 - upper) >= d
            if c == 0:
                assert g == 1
                assert cost(mpf(1), mpf(0)) <= d
                continue
            assert cost(mpf(1), mpf(0)) > d * (1 - slack)
            if c < 1 - a:  # 1 - q itself is rounded: it may lie beyond the exact one
                assert cost(1 - c, c) <= d
                less = c * (1 - 24 * EPS) if c > 1e-305 else mpf(0)  # or below the least float
                assert cost(1 - less, less) >= d * (1 - slack)


@each_divergence
def test_the_optimum_agrees_with_high_precision(divergence):
    q, delta = sweep(divergence, 20)
    solution = divergence.optimum(q, delta)
    closed = divergence in CLOSED
    check_optimum(divergence, q, delta, solution, closed=closed)
    room = 1 - q
    np.testing.assert_array_equal(solution.ratio, solution.complement / room)
    np.testing.assert_array_equal(solution.bracket[0], solution.value)


@each_divergence
def test_the_root_agrees_with_high_precision_also_where_there_is_a_closed_form(divergence):
    q, delta = sweep(divergence, 12)
    check_optimum(divergence, q, delta, divergence.root(q, delta), closed=False)


@each_divergence
@pytest.mark.parametrize("delta", [5e-324, 1.5e-323, 1e-320, 1e-310, 1e-300, 1e-250, 1e-30])
def test_tiny_budgets_are_kept_and_bracketed(divergence, delta):
    q = np.array([5e-324, 1e-320, 1e-310, 1e-300, 1e-200, 1e-9, 0.1, 0.5, 0.9, 1 - 2.0**-53])
    solution = divergence.optimum(q, delta)
    arrays = (q, solution.value, solution.complement, solution.bracket[1])
    with mpmath.workdps(DIGITS):
        for a, g, c, upper in zip(*(map(mpf, map(float, x)) for x in arrays), strict=True):
            assert a <= g <= upper
            # The width of a bracket, as below, or some of the smallest floats.
            assert upper - g <= (24 + 4 * ulps(divergence)) * EPS * g + 20 * mpf(2) ** -1074
            assert g == a or reference_binary(divergence, g, 1 - g, a) <= mpf(delta)
            assert c >= 1 - a or reference_binary(divergence, 1 - c, c, a) <= mpf(delta)
            # Of 4 squared Hellinger, a quarter of the budget may be below the smallest float.
            if divergence != Alpha(0.5) or delta > 1e-300:
                assert reference_binary(divergence, upper, 1 - upper, a) >= mpf(delta)


@settings(max_examples=150)
@given(divergence=st.sampled_from(DIVERGENCES), q=target_probabilities(), delta=budgets())
@example(divergence=ReverseKL(), q=1 - 2.0**-53, delta=50.0)
@example(divergence=SquaredHellinger(), q=0.9999993956938379, delta=1 - 0.9999993956938379**0.5)
def test_the_optimum_agrees_with_high_precision_wherever_hypothesis_looks(divergence, q, delta):
    assume(0 < q < 1 and delta > 0)
    closed = divergence in CLOSED
    q, delta = np.array([q]), np.array([delta])
    check_optimum(divergence, q, delta, divergence.optimum(q, delta), closed=closed)


@pytest.mark.parametrize("divergence", [*CLOSED, KL()], ids=str)
def test_closed_form_and_root_agree(divergence):
    q, delta = sweep(divergence, 400)
    closed, root = divergence.optimum(q, delta), divergence.root(q, delta)
    relative = (2 * ulps(divergence) + 24) * EPS  # of the two brackets together
    np.testing.assert_allclose(root.value, closed.value, rtol=relative, atol=0)
    assert (root.value <= closed.bracket[1]).all()
    assert (closed.value <= root.bracket[1]).all()
    assert (root.complement >= closed.complement * (1 - 24 * EPS)).all()
    # A relative change of delta moves 1 - g by at most (gain / (1-g)) times as much.
    well = closed.complement > 0.01 * (1 - q)
    assert well.sum() > 200
    np.testing.assert_allclose(
        root.complement[well], closed.complement[well], rtol=100 * relative, atol=0
    )


@pytest.mark.parametrize("divergence", CLOSED, ids=str)
def test_the_complement_keeps_its_digits_where_the_budget_all_but_pays_for_certainty(divergence):
    # delta the float nearest saturation: 1 - g is smaller than any rounding of the plain formula.
    q = np.random.default_rng(5).uniform(0.01, 0.99, 60)
    delta = divergence.binary(np.ones_like(q), q)
    for steps in (-2, -1, 0, 1):
        budget = delta + steps * np.spacing(delta)
        check_optimum(divergence, q, budget, divergence.optimum(q, budget), closed=True)


def test_the_closed_forms_have_the_values_of_their_formulas():
    q, delta = np.meshgrid(np.linspace(0.05, 0.95, 19), [1e-3, 0.1, 0.4, 2.0])
    chi = np.minimum(q + np.sqrt(delta * q * (1 - q)), 1)
    np.testing.assert_allclose(ChiSquare().optimum(q, delta).value, chi, rtol=32 * EPS)
    tv = np.minimum(q + delta, 1)
    np.testing.assert_allclose(TotalVariation().optimum(q, delta).value, tv, rtol=32 * EPS)
    angle = np.arcsin(np.sqrt(q)) + np.arccos(np.maximum(1 - delta, 0))
    hellinger = np.where(angle < np.pi / 2, np.sin(np.minimum(angle, np.pi / 2)) ** 2, 1)
    # arccos(1 - delta) is badly conditioned: EPS / sqrt(2 delta).
    np.testing.assert_allclose(SquaredHellinger().optimum(q, delta).value, hellinger, rtol=1e-13)
    np.testing.assert_allclose(
        Cactus(0.2).boost(q), ChiSquare().optimum(q, 0.4).value, rtol=32 * EPS
    )


@each_divergence
def test_limits_of_the_optimum(divergence):
    q = np.array([0.0, 1e-300, 0.3, 1 - 2.0**-53, 1.0])
    still = divergence.optimum(q, 0.0)
    np.testing.assert_array_equal(still.value, q)
    np.testing.assert_array_equal(still.bracket[1], q)
    np.testing.assert_array_equal(still.complement, 1 - q)
    assert (still.ratio == 1).all()
    for delta in (1e-12, 0.5, 50.0, 1e100):
        ends = divergence.optimum([0.0, 1.0], delta)
        assert ends.value.tolist() == ends.bracket[1].tolist() == [0, 1]
        assert ends.complement.tolist() == [1, 0]
        assert ends.ratio.tolist() == [1, 1]
    rich = divergence.optimum(q, 1e100)
    barred = np.isinf(divergence.binary(1.0, 0.5))  # certainty has no price
    assert (rich.complement[2:4] > 0).all() == barred
    assert (rich.value[2:4] < 1).all() == barred
    assert (rich.bracket[1][2:4] == 1).all()
    if divergence in BOUNDED:
        assert (divergence.optimum(q[1:], BOUNDED[divergence] * (1 + 1e-12)).value == 1).all()
        assert divergence.optimum(1e-300, BOUNDED[divergence] * (1 - 1e-9)).value < 1


def test_a_budget_of_exactly_certainty_is_saturated():
    for divergence, q, delta in [
        (TotalVariation(), 0.25, 0.75),
        (ChiSquare(), 0.25, 3.0),
        (SquaredHellinger(), 0.25, 0.5),
    ]:
        assert divergence.optimum(q, delta).value == 1
        assert divergence.optimum(q, np.nextafter(delta, 0)).complement > 0


@each_divergence
@settings(max_examples=20)
@given(data=st.data())
def test_a_likelier_token_and_a_larger_budget_are_raised_higher(divergence, data):
    low, high = sorted(data.draw(st.lists(target_probabilities(), min_size=2, max_size=2)))
    small, large = sorted(data.draw(st.lists(budgets(), min_size=2, max_size=2)))
    assume(low > 0)  # q = 0 is left at 0 by convention
    solution = divergence.optimum([[low], [high]], [small, large])
    value, upper = solution.value, solution.bracket[1]
    assert (value >= [[low], [high]]).all()
    # Lower ends lie below the true roots, upper ends above: no tolerance.
    assert (value[0] <= upper[1]).all()
    assert (value[:, 0] <= upper[:, 1]).all()
    assert (solution.complement >= 0).all()
    assert (solution.ratio <= 1).all()


@each_divergence
def test_probabilities_and_budgets_broadcast_and_scalars_stay_scalars(divergence):
    q, delta = np.array([[0.0], [1e-9], [0.2], [0.9], [1.0]]), np.array([0.0, 1e-3, 0.69, 5.0])
    solution = exact_optimum(q, delta, divergence=divergence)
    parts = [solution.value, solution.complement, solution.ratio, *solution.bracket]
    assert {part.shape for part in parts} == {(5, 4)}
    assert (solution.gap is None) == (divergence.curvature is None)
    for i, j in product(range(5), range(4)):
        alone = exact_optimum(float(q[i, 0]), float(delta[j]), divergence=divergence)
        assert np.ndim(alone.value) == np.ndim(alone.ratio) == 0
        # Vectorised log and powers may differ from their scalar loops in the last bit.
        assert solution.value[i, j] == pytest.approx(alone.value, rel=ulps(divergence) * EPS)
    assert np.ndim(divergence.binary(0.3, 0.2)) == np.ndim(divergence.generator(0.3)) == 0
    assert divergence.optimum(np.empty((0, 3)), 0.5).value.shape == (0, 3)


@each_divergence
def test_the_gap_is_measured_from_the_divergences_own_second_order(divergence):
    q = np.linspace(0.1, 0.9, 9)
    if divergence.curvature is None:
        with pytest.raises(ValueError, match="kink"):
            optimum_gap(q, 0.1, divergence=divergence)
        return
    delta = 1e-10
    step = np.sqrt(2 * delta * q * (1 - q) / divergence.curvature)
    gap = optimum_gap(q, delta, divergence=divergence)
    # Third order, |f'''| / (6 f'') * step / q(1-q) < 4 * 3e-5 / .1 relative.
    assert (np.abs(gap) <= 2e-3 * step).all()
    np.testing.assert_array_equal(gap, divergence.optimum(q, delta).gap)
    if divergence == ChiSquare():
        assert (np.abs(optimum_gap(q, 0.3, divergence=divergence)) <= 24 * EPS).all()


def test_kl_is_the_default_and_unchanged():
    q, delta = sweep(KL(), 50)
    default, named = exact_optimum(q, delta), KL().optimum(q, delta)
    for field in ("value", "complement", "ratio", "gap"):
        np.testing.assert_array_equal(getattr(default, field), getattr(named, field))
    np.testing.assert_array_equal(default.gap, default.value - second_order_optimum(q, delta))
    np.testing.assert_array_equal(optimum_gap(q, delta), default.gap)
    assert CactusExact(0.5) == CactusExact(0.5, KL()) != CactusExact(0.5, ReverseKL())


# Theorem 2


def simplex(size: int, cells: int) -> np.ndarray:
    """Every law of `size` tokens whose probabilities are multiples of 1 / cells."""
    points = [x for x in product(range(cells + 1), repeat=size - 1) if sum(x) <= cells]
    head = np.array(points)
    return np.column_stack([head, cells - head.sum(axis=1)]) / cells


@each_divergence
@pytest.mark.parametrize(("size", "cells"), [(2, 2000), (3, 90), (4, 26)])
def test_no_law_within_the_budget_gives_the_token_more(divergence, size, cells):
    grid = simplex(size, cells)
    rng = np.random.default_rng(size)
    for target in [*rng.dirichlet(np.ones(size), 4), np.arange(1, size + 1) / sum(range(size + 1))]:
        cost = divergence.between(grid, target)
        for delta in (1e-3, 0.03, 0.3):
            upper = divergence.optimum(target, delta).bracket[1]
            reached = grid[cost <= delta].max(axis=0, initial=0.0)
            assert (reached <= upper).all()
            if size == 2:  # the grid comes within a cell of the optimum
                assert (reached >= upper - 2 / cells).all()


@each_divergence
@settings(max_examples=12)
@given(
    weights=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=5),
    share=st.floats(1e-3, 0.999),
    data=st.data(),
)
def test_the_candidate_spends_the_budget_and_any_other_split_of_the_rest_spends_more(
    divergence, weights, share, data
):
    target = np.array(weights) / sum(weights)
    token = data.draw(st.integers(0, target.size - 1))
    q = float(target[token])
    delta = float(share * min(divergence.binary(1.0, q), 5.0))
    solution = divergence.optimum(q, delta)
    candidate = solution.ratio * target
    candidate[token] = solution.value
    spent = divergence.between(candidate, target)
    # The law is rounded: an ulp of a probability times the slope of f, below 1e6 here.
    assert spent == pytest.approx(delta, rel=1e-6, abs=1e-9)
    others = [x for x in range(target.size) if x != token]
    first, second = data.draw(st.permutations(others))[:2]
    moved = candidate.copy()
    shift = 0.1 * min(candidate[first], candidate[second])
    moved[first] += shift
    moved[second] -= shift
    # Total variation does not care how the rest shrinks, while nothing of it grows.
    assert divergence.between(moved, target) >= spent * (1 - 1e-9)
    if divergence != TotalVariation() and solution.ratio > 0.1:  # else below a rounding
        assert divergence.between(moved, target) > spent


# The rules


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_the_rule_is_the_optimum_of_its_divergence(divergence):
    q = np.concatenate([[0.0], np.logspace(-12, -0.01, 40), [1.0]])
    for delta in (0.0, 1e-6, 0.3, 3.0):
        rule, solution = CactusExact(delta, divergence), divergence.optimum(q, delta)
        np.testing.assert_allclose(rule.boost(q), solution.value, rtol=24 * EPS, atol=0)
        # The rule of KL computes -log(q) - delta plainly: an absolute error of a few ulp of 3.
        np.testing.assert_allclose(rule.shrink(q), solution.ratio, rtol=1e-13, atol=16 * EPS)
        p = np.linspace(0, 1, q.size)
        mass = rule.accepted_mass(p, q)
        np.testing.assert_allclose(mass, np.minimum(p, rule.boost(q)), rtol=24 * EPS, atol=0)
        assert mass[-2] == rule.accepted_mass(float(p[-2]), float(q[-2]))
        # Drafts on both sides of the optimum, and a hair from it.
        for p in (q + 0.9 * (solution.value - q), np.minimum(q + 1.1 * (solution.value - q), 1)):
            mass = rule.accepted_mass(p, q)
            np.testing.assert_allclose(mass, np.minimum(p, rule.boost(q)), rtol=24 * EPS, atol=0)


@given(
    divergence=st.sampled_from(DIVERGENCES),
    delta=budgets(),
    q=target_probabilities(),
)
def test_every_rule_is_exact_matching_on_certain_and_impossible_tokens(divergence, delta, q):
    for rule in (CactusExact(delta, divergence), CactusSafe(delta)):
        boosted, shrunk = rule.boost(np.array([0.0, 1.0, q])), rule.shrink(np.array([0.0, 1.0, q]))
        assert boosted[:2].tolist() == [0, 1]
        assert shrunk[:2].tolist() == [1, 1]
        assert q <= boosted[2] <= 1
        assert 0 <= shrunk[2] <= 1


@pytest.mark.parametrize("divergence", [KL(), *CLOSED, Alpha(1)], ids=str)
def test_a_rule_with_a_formula_runs_in_torch(torch, divergence):
    q = np.concatenate([np.logspace(-300, 0, 60), 1 - np.logspace(-15.9, -0.1, 60), [0.0]])
    tensor = torch.tensor(q, dtype=torch.float64)
    for delta in (0.0, 1e-9, 0.03, 0.75, 20.0):
        rule = CactusExact(delta, divergence)
        boosted = rule.boost(tensor, xp=torch)
        assert boosted.dtype == torch.float64
        np.testing.assert_allclose(boosted.numpy(), rule.boost(q), rtol=1e-14, atol=0)
        shrunk = rule.shrink(tensor, xp=torch).numpy()
        np.testing.assert_allclose(shrunk, rule.shrink(q), rtol=1e-13, atol=4 * EPS * max(delta, 1))
        draft = torch.linspace(0, 1, len(q), dtype=torch.float64)
        mass = rule.accepted_mass(draft, tensor, xp=torch)
        assert torch.allclose(mass, torch.minimum(draft, boosted), rtol=1e-12, atol=0)


@pytest.mark.parametrize("divergence", [ReverseKL(), JensenShannon(), Alpha(0.3)], ids=str)
def test_a_rule_without_a_formula_says_so_in_torch(torch, divergence):
    tensor = torch.tensor([0.5], dtype=torch.float64)
    for method in (CactusExact(0.1, divergence).boost, CactusExact(0.1, divergence).shrink):
        with pytest.raises(TypeError, match=r"root found with numpy.*'torch'"):
            method(tensor, xp=torch)


@pytest.mark.parametrize("rule", [*(CactusExact(0.2, d) for d in NAMED), CactusSafe(0.2)], ids=str)
def test_the_emitted_law_lies_between_draft_and_target(rule):
    rng = np.random.default_rng(11)
    draft, target = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    emitted = output_distribution(rule, draft=draft, target=target)
    assert emitted.sum() == pytest.approx(1, abs=8 * EPS)
    # theory.md, section 3: ordering, for any boost of at least q; rounding of sums of 6 terms.
    assert (emitted >= np.minimum(draft, target) - 8 * EPS).all()
    assert (emitted <= np.maximum(draft, target) + 8 * EPS).all()


# The safe closed form


def spent_kl(g: float, q: float):
    """KL of the candidate whose probability is the float g, exactly."""
    return reference_binary(KL(), mpf(g), 1 - mpf(g), mpf(q))


def check_safe(q: float, delta: float) -> None:
    rule = CactusSafe(delta)
    boosted, shrunk = float(rule.boost(q)), float(rule.shrink(q))
    with mpmath.workdps(DIGITS):
        assert spent_kl(boosted, q) <= mpf(delta)
        gain = mpmath.sqrt(mpmath.expm1(mpf(delta)) * mpf(q) * (1 - mpf(q)))
        expected = min(mpf(q) + gain, mpf(1))
        # 2^-50 of the gain is given up, and a few roundings.
        assert -8 * EPS * expected <= mpf(boosted) - expected <= EPS * expected
        ratio = (1 - expected) / (1 - mpf(q))
        assert abs(mpf(shrunk) - ratio) <= 8 * EPS  # absolute: 1 - sqrt(...) near its zero


@given(q=target_probabilities(), delta=budgets())
@example(q=1 - 2.0**-53, delta=1e-12)
@example(q=1 - 2.0**-53, delta=1e-16)
@example(q=1e-300, delta=50.0)
def test_the_safe_closed_form_never_overspends(q, delta):
    assume(0 < q < 1)
    check_safe(q, delta)


@settings(max_examples=300)
@given(delta=budgets(), closeness=st.floats(0.0, 17.0), steps=st.integers(-3, 3))
def test_the_safe_closed_form_never_overspends_where_its_cap_begins(delta, closeness, steps):
    # Equality holds at q = e^-delta: a rounding the wrong way there overspends.
    q = float(np.exp(-delta)) * (1 - 10.0**-closeness * (closeness < 16.5))
    q += steps * float(np.spacing(q))
    assume(0 < q < 1)
    check_safe(q, delta)


@given(q=target_probabilities(), delta=budgets())
def test_the_safe_closed_form_lies_below_the_exact_optimum(q, delta):
    assert CactusSafe(delta).boost(q) <= exact_optimum(q, delta).bracket[1]
    if delta == 0:
        assert CactusSafe(delta).boost(q) == SpeculativeSampling().boost(q) == q
        assert CactusSafe(delta).shrink(q) == 1


def test_the_safe_closed_form_saturates_from_the_budget_of_certainty_on():
    q = np.array([1e-300, 1e-9, 0.3, 0.9])
    rule = CactusSafe(1e100)
    np.testing.assert_array_equal(rule.boost(q[1:]), 1)
    assert (rule.shrink(q[1:]) == 0).all()
    assert rule.boost(0.0) == 0
    for delta in (0.1, 1.0, 5.0):
        certain = np.exp(-delta) * (1 + 1e-12)
        assert CactusSafe(delta).boost(certain) == 1
        assert CactusSafe(delta).shrink(certain) == 0
        assert CactusSafe(delta).boost(np.exp(-delta) * (1 - 1e-6)) < 1


def test_the_safe_closed_form_runs_in_torch(torch):
    q = np.concatenate([np.logspace(-300, 0, 60), 1 - np.logspace(-15.9, -0.1, 60), [0.0]])
    tensor = torch.tensor(q, dtype=torch.float64)
    for delta in (0.0, 1e-9, 0.03, 0.75, 20.0, 1e100):
        rule = CactusSafe(delta)
        boosted, shrunk = rule.boost(tensor, xp=torch), rule.shrink(tensor, xp=torch)
        np.testing.assert_allclose(boosted.numpy(), rule.boost(q), rtol=2 * EPS, atol=0)
        np.testing.assert_allclose(shrunk.numpy(), rule.shrink(q), rtol=0, atol=2 * EPS)


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
