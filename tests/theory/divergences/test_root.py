"""Newton steps and the bracketed root against each other and against 50 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from cactus_theory import (
    KL,
    CactusExact,
    ChiSquare,
    Divergence,
    _chunks,
    exact_optimum,
)
from cactus_theory.divergences import Status, _kl_root, _logarithmic, binary_kl_of_gain
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.optimum_reference import DIGITS, DIVERGENCES, EPS, ULPS, digits, reference_optimum


@pytest.mark.parametrize("scale", [0.99, 0.997, 1 - 1e-9, 1.0, 1 + 1e-9, 1.003])
def test_the_root_is_right_on_either_side_of_the_half_way_point(scale):
    q = np.concatenate([np.linspace(0.01, 0.99, 99), 1 - np.logspace(-12, -2, 40)])
    room = 1 - q
    delta = scale * binary_kl_of_gain(room / 2, q, xp=np)
    _, complement, _ = _kl_root.kl_root(q, delta, xp=np)
    # 1 - g and -log(q) - delta carry a few ulp each; KL has slope <= 2 delta / gain here.
    spent = binary_kl_of_gain(room - complement, q, xp=np)
    np.testing.assert_allclose(spent, delta, rtol=1e-14)


@given(q=st.floats(1e-6, 1 - 1e-6), exponent=st.floats(-10.0, -0.1))
def test_the_gain_itself_has_full_relative_precision(q, exponent):
    gain = 10**exponent * (1 - q) / 2
    delta = float(binary_kl_of_gain(np.array([gain]), q, xp=np)[0])
    arguments = np.array([q]), np.array([1 - q]), np.array([delta])
    with mpmath.workdps(DIGITS):
        root = reference_optimum(q, delta)[0] - mpf(q)
        solved = [_kl_root._solve_gain(*arguments, xp=np)]
        if q * (1 - q) <= 16 * delta:
            solved.append(_kl_root._solve_steep_gain(*arguments))
        for (x,) in solved:  # half the few ulp of the divergence, as it is nearly quadratic; times
            # the 1/(a - b) <= 4 by which -q a - (1-q) b cancels where it is used
            assert abs(mpf(float(x)) - root) <= 8 * EPS * root


def test_the_smallest_budgets_raise_a_token_by_the_least():
    q = np.concatenate([np.logspace(-300, -0.01, 50), 1 - np.logspace(-15, -1, 20)])
    for delta in np.logspace(-300, -20, 15):
        boosted, complement, ratio = _kl_root.kl_root(q, delta, xp=np)
        assert (boosted >= q).all()
        # KL >= x^2 / (2 (q + x)), solved for the gain, and a rounding of the sum
        assert (boosted - q <= delta + np.sqrt(delta) * np.sqrt(delta + 2 * q) + 2 * EPS * q).all()
        assert (complement <= 1 - q).all()
        assert (ratio <= 1).all()


@pytest.mark.parametrize("delta", [5e-324, 1e-310, 1e-300, 1e-12, 1.0, 400.0])
def test_subnormal_probabilities_have_their_root(delta):
    # Below 1e-300 the ratio g/q overflows, and so may its square far above.
    q = np.array([5e-324, 1e-320, 1e-310, 1e-300, 1e-200])
    value = exact_optimum(q, delta).value
    with mpmath.workdps(digits(5e-324, delta)):
        for target, got in zip(q, value, strict=True):
            g, _ = reference_optimum(float(target), delta)
            assert abs(mpf(float(got)) - g) <= ULPS * EPS * g + mpf(2) ** -1073


def test_the_smallest_budget_raises_no_usual_probability(torch):
    # 2 delta q (1-q) underflows for q = 1/2: the rule's first step was then 0, its second 0/0, and
    # g = .508.
    q = np.array([1e-100, 0.1, 0.5, 0.9, 1 - 2.0**-53])
    for delta in (5e-324, 1e-320, 1e-310):
        rule, solution = CactusExact(delta), exact_optimum(q, delta)
        np.testing.assert_array_equal(solution.value, q)
        np.testing.assert_array_equal(solution.complement, 1 - q)
        above = np.minimum(q + 2 * np.spacing(q), 1)
        np.testing.assert_array_equal(solution.bracket[1], above)
        np.testing.assert_array_equal(rule.boost(q), q)
        np.testing.assert_array_equal(rule.boost(torch.tensor(q), xp=torch).numpy(), q)


# The two solvers


def test_the_bracketed_root_does_not_use_the_solver_it_validates(monkeypatch):
    def unused(*_, **__):
        raise AssertionError

    monkeypatch.setattr(_logarithmic, "kl_root", unused)
    assert exact_optimum(1e-4, 1.0).value == pytest.approx(0.1554786588, rel=1e-9)
    with pytest.raises(AssertionError):
        CactusExact(1.0).boost(1e-4)


@settings(max_examples=150)
@given(
    q=target_probabilities() | st.floats(5e-324, 1.0) | st.floats(0, 745).map(lambda x: np.exp(-x)),
    delta=budgets() | st.floats(-300, 2).map(lambda x: 10.0**x),
)
@example(q=1e-300, delta=1e-300)
@example(q=1 - 2.0**-53, delta=2.0**-54)
@example(q=5e-324, delta=744.0)
def test_newton_steps_in_numpy_and_torch_agree_with_the_bracketed_root_and_fifty_digits(
    torch, q, delta
):
    rule, solution = CactusExact(delta), exact_optimum(q, delta)
    lower, upper = solution.bracket
    with mpmath.workdps(digits(q, delta)):
        g, c = reference_optimum(q, delta)
        # Sums and a subnormal have an absolute precision besides.
        least = mpf(2) ** -1073
        assert lower - least <= g <= upper + least
        # As in `check_against_reference`.
        unsure = 4 * mpf(float(np.spacing(-np.log(q)))) if 0 < q < 1 else mpf(0)
        for xp, number in ((np, np.float64(q)), (torch, torch.tensor(q, dtype=torch.float64))):
            boosted = mpf(float(rule.boost(number, xp=xp)))
            assert abs(boosted - g) <= 5 * EPS * g + least  # below 5 were seen
            assert float(lower) * (1 - 4 * EPS) - 1e-323 <= boosted
            assert boosted <= float(upper) * (1 + 4 * EPS) + 1e-323
            if 0 < q < 1 and delta > 0:
                ratio = mpf(float(rule.shrink(number, xp=xp)))
                expected = c / (1 - mpf(q))
                error = abs(ratio - expected) * (1 - mpf(q))
                assert error <= 8 * EPS * c + unsure + least


@given(
    divergence=st.sampled_from([d for d in DIVERGENCES if d != KL()]),
    q=target_probabilities(),
    delta=budgets(),
)
def test_every_rule_agrees_with_the_bracketed_root_of_its_divergence(torch, divergence, q, delta):
    rule, solution = CactusExact(delta, divergence), divergence.root(q, delta)
    lower, upper = solution.bracket
    namespaces = [np]
    if rule.torch_ready:
        namespaces.append(torch)
    for xp in namespaces:
        number = xp.asarray(q, dtype=xp.float64)
        boosted = float(rule.boost(number, xp=xp))
        # Closed forms are right to 8 ulp.
        assert lower * (1 - 16 * EPS) <= boosted <= upper * (1 + 16 * EPS)


def test_an_optimum_says_how_it_was_found():
    solution = exact_optimum([0.0, 0.1, 1e-9, 0.99, 1.0], 1.0)
    assert [Status(code).name for code in solution.status] == [
        *("LIMIT", "ROOT", "ROOT", "LIMIT", "LIMIT")
    ]
    assert (solution.iterations > 0).tolist() == [False, True, True, False, False]
    assert solution.iterations.max() < 12  # 3 to 6 are usual
    assert solution.iterations.dtype == np.int16
    lower, upper = solution.bracket
    assert (lower == solution.value).all()
    assert ((upper > lower) == (solution.status == Status.ROOT)).all()
    closed = exact_optimum([0.0, 0.1, 0.99], 1.0, divergence=ChiSquare())
    assert closed.status.tolist() == [Status.LIMIT, Status.CLOSED_FORM, Status.LIMIT]
    assert not closed.iterations.any()


def test_few_iterations_are_needed_over_the_whole_range():
    rng = np.random.default_rng(0)
    q = np.concatenate([10 ** rng.uniform(-300, 0, 4000), 1 - 10 ** rng.uniform(-16, 0, 4000)])
    delta = 10 ** rng.uniform(-300, np.log10(50), q.size)
    iterations = exact_optimum(np.clip(q, 1e-300, 1 - 2.0**-53), delta).iterations
    assert iterations.max() <= 20  # 15 were seen


class NotANumber(Divergence):
    """What a mistake in a divergence of one's own may come to."""

    def _term(self, p, q, gain):
        return np.where(gain > 0.2, np.nan, np.abs(gain)) if np.ndim(gain) else np.nan

    def __repr__(self):
        return "NotANumber()"


def test_a_divergence_without_a_root_is_an_error_that_names_the_problem():
    message = r"no root found for target_prob 0.25, delta 0.5 and divergence NotANumber\(\)"
    with pytest.raises(RuntimeError, match=message):
        exact_optimum([0.0, 0.25], 0.5, divergence=NotANumber())


def test_a_long_array_is_solved_in_pieces_without_a_seam():
    q = np.linspace(0, 1, 3 * _chunks._CHUNK + 5)
    whole = exact_optimum(q, 0.3)
    assert whole.value.shape == q.shape
    for i in (0, _chunks._CHUNK - 1, _chunks._CHUNK, 2 * _chunks._CHUNK, q.size - 1):
        assert whole.value[i] == pytest.approx(float(exact_optimum(q[i], 0.3).value), rel=4 * EPS)


def test_an_array_of_no_elements_has_no_optima():
    assert exact_optimum(np.empty((0, 3)), 0.3).value.shape == (0, 3)
    assert CactusExact(0.3).boost(np.empty(0)).shape == (0,)
