"""The optimum of each divergence, by closed form and by root, against high precision."""

from __future__ import annotations

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
    ChiSquare,
    ReverseKL,
    SquaredHellinger,
    TotalVariation,
    exact_optimum,
    optimum_gap,
    second_order_optimum,
)
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.divergences.reference import (
    BOUNDED,
    CLOSED,
    DIGITS,
    DIVERGENCES,
    EPS,
    each_divergence,
    reference_binary,
    sweep,
    ulps,
)


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
