"""The exact optimum of KL against 60-digit arithmetic, and its limit cases."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mpmath import mpf

from cactus_theory import (
    Cactus,
    CactusExact,
    exact_optimum,
    optimum_gap,
    second_order_optimum,
)
from cactus_theory.divergences import _kl_root
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.optimum_reference import DIGITS, EPS, ULPS, exact_kl, reference_optimum


def check_against_reference(q: float, delta: float) -> None:
    solution = exact_optimum(np.array([q]), np.array([delta]))
    value, complement = float(solution.value[0]), float(solution.complement[0])
    lower, upper = (float(end[0]) for end in solution.bracket)
    with mpmath.workdps(DIGITS):
        g, c = reference_optimum(q, delta)
        least = mpf(2) ** -1073  # of subnormal numbers, which have an absolute precision
        assert abs(mpf(value) - g) <= ULPS * EPS * g + least
        if q < 1:
            # -log(q) - delta is known to an ulp of -log(q) and raised by as much; 1 - g moves by
            # that over the slope, which is above .69 wherever the difference matters.
            unsure = 4 * mpf(float(np.spacing(-np.log(q)))) if q > 0 else mpf(0)
            below = least if delta else EPS / 2 * c + least  # at 0 it is 1 - q, rounded to nearest
            assert -below <= mpf(complement) - c <= ULPS * EPS * c + unsure + 2 * least
            # One more rounding, of the division, and one of 1 - q.
            room = 1 - mpf(q)
            error = abs(mpf(float(solution.ratio[0])) - c / room)
            assert error <= (ULPS + 2) * EPS * c / room + unsure / room + least
        assert lower == value
        assert lower <= g <= upper
        if 0 < q < 1 and delta > 0:  # the budget is kept exactly, by value and by complement
            if value > q:
                assert exact_kl(mpf(value), 1 - mpf(value), mpf(q)) <= mpf(delta)
            if complement < 1 - mpf(q):  # 1 - q itself is rounded: it may lie beyond the exact one
                assert exact_kl(1 - mpf(complement), mpf(complement), mpf(q)) <= mpf(delta)


def sweep_points() -> list[tuple[float, float]]:
    rng = np.random.default_rng(20260404)
    points = []
    for _ in range(70):
        delta = 10 ** rng.uniform(-12, np.log10(50))
        points.append((10 ** rng.uniform(-300, 0), delta))
        points.append((rng.uniform(), delta))
        points.append((10 ** rng.uniform(-6, 0), delta))
        points.append((1 - 10 ** rng.uniform(-15.9, 0), delta))
    for k in range(1, 17):  # nearly saturated: g within a hair of 1
        for delta in (1e-12, 1e-3, 0.3, 1.0, 20.0, 50.0):
            points.append((float(np.exp(-delta) * (1 - 10.0**-k)), delta))
    ends = (1e-300, 1 - 2.0**-53, 2.0**-53, 0.5)
    points += [(q, delta) for q in ends for delta in (1e-12, 1e-6, 0.5, 1.0, 50.0)]
    return points


def test_the_exact_optimum_agrees_with_high_precision_over_a_fixed_sweep():
    points = sweep_points()
    assert len(points) >= 300
    for q, delta in points:
        check_against_reference(q, delta)


@given(q=target_probabilities(), delta=budgets())
@example(q=1e-300, delta=1e-12)
@example(q=0.5 - 2.0**-54, delta=0.0)
@example(q=1 - 2.0**-53, delta=1e-12)
@example(q=float(np.exp(-1.0)), delta=1.0)
@example(q=0.5, delta=float(np.log(2)))
def test_the_exact_optimum_agrees_with_high_precision(q, delta):
    check_against_reference(q, delta)


@given(delta=st.floats(1e-12, 50.0), closeness=st.floats(0.0, 16.0), steps=st.integers(-3, 3))
def test_the_exact_optimum_agrees_with_high_precision_near_saturation(delta, closeness, steps):
    q = float(np.exp(-delta) * (1 - 10.0**-closeness))
    q = min(q + steps * float(np.spacing(q)), 1.0)
    assume(q >= 1e-300)
    check_against_reference(q, delta)


@pytest.mark.parametrize(
    ("q", "delta"),
    [
        (0.8172269083286373, 0.2018384891105797),
        (0.0007456071776630375, 7.201311667945241),
        (1.3357596523935138e-07, 15.828595492931033),
        (1.1311773992680126e-10, 22.90259189341056),
    ],
)
def test_the_complement_keeps_the_budget_where_delta_is_the_float_nearest_to_minus_log_q(q, delta):
    # -log(q) - delta is about 1e-19 here, far below an ulp of either.
    complement = float(exact_optimum([q], [delta]).complement[0])
    with mpmath.workdps(DIGITS):
        assert exact_kl(1 - mpf(complement), mpf(complement), mpf(q)) <= mpf(delta)


@given(q=target_probabilities())
def test_no_budget_leaves_the_target_probability_bit_for_bit(q):
    solution = exact_optimum([q], 0.0)
    assert solution.value[0] == q
    assert solution.complement[0] == 1 - q
    assert solution.ratio[0] == 1
    assert solution.bracket[0][0] == solution.bracket[1][0] == q
    assert second_order_optimum(q, 0.0) == q
    assert Cactus(0).boost(q) == q
    assert CactusExact(0).boost(q) == q
    assert Cactus(0).shrink(q) == 1
    assert CactusExact(0).shrink(q) == 1


@given(delta=budgets())
def test_a_token_outside_the_support_is_never_raised_and_a_certain_one_stays(delta):
    for rule in (Cactus(delta), CactusExact(delta)):
        assert rule.boost(0.0) == 0
        assert rule.boost(1.0) == 1
        assert rule.shrink(0.0) == 1
        assert rule.shrink(1.0) == 1
    solution = exact_optimum([0.0, 1.0], delta)
    assert solution.value.tolist() == [0, 1]
    assert solution.complement.tolist() == [1, 0]
    assert solution.ratio.tolist() == [1, 1]


@given(q=target_probabilities(), delta=budgets())
def test_a_budget_that_pays_for_certainty_gives_exactly_one(q, delta):
    with mpmath.workdps(DIGITS):
        # Within an ulp of -log(q), and its rounding up, certainty is not known to be paid for.
        saturated = 0 < q < 1 and -mpmath.log(mpf(q)) <= mpf(delta) * (1 - 3 * EPS)
    assume(saturated)
    solution = exact_optimum([q], delta)
    assert solution.value[0] == 1
    assert solution.complement[0] == 0
    assert solution.ratio[0] == 0


def test_the_exact_optimum_accepts_python_scalars():
    # 0-d input once failed where -log(q) - delta cancels: a numpy scalar has no item assignment.
    for q, delta in [(0.5, 0.69), (float(np.exp(-1.0)), 1.0), (1e-4, 1.0), (0.0, 1.0), (1, 1)]:
        solution, batched = exact_optimum(q, delta), exact_optimum([q], delta)
        assert np.ndim(solution.value) == 0
        for name in ("value", "complement", "ratio"):
            assert getattr(solution, name) == getattr(batched, name)[0]
        assert np.ndim(optimum_gap(q, delta)) == 0
        assert np.ndim(second_order_optimum(q, delta)) == 0


def test_probabilities_and_budgets_broadcast():
    q, delta = np.array([[0.0], [1e-9], [0.2], [0.9], [1.0]]), np.array([0.0, 1e-3, 0.69, 5.0])
    solution = exact_optimum(q, delta)
    parts = [solution.value, solution.complement, solution.ratio, *solution.bracket]
    parts += [second_order_optimum(q, delta), optimum_gap(q, delta)]
    assert {part.shape for part in parts} == {(5, 4)}
    for i in range(5):
        for j in range(4):
            alone = exact_optimum(q[i], delta[j : j + 1])
            # Vectorised log and exp may differ from their scalar loops in the last bit.
            assert solution.value[i, j] == pytest.approx(alone.value[0], rel=4 * EPS)
            assert solution.complement[i, j] == pytest.approx(alone.complement[0], rel=4 * EPS)


@given(q=st.lists(target_probabilities(), min_size=2, max_size=2), delta=budgets())
def test_a_likelier_token_is_raised_higher(q, delta):
    low, high = sorted(q)
    for boost in (Cactus(delta).boost, CactusExact(delta).boost):
        # Below the cap dg/dq >= 0 until g reaches 1, so only rounding can reorder: a few ulp. Above
        # it, q + sqrt(2 delta q (1-q)) stays >= 1 once it is: 2 delta q >= 1 - q persists.
        assert boost(low) <= boost(high) * (1 + 8 * EPS)
    lower, higher = exact_optimum([low, high], delta).value
    assert lower <= higher * (1 + ULPS * EPS)


@given(q=target_probabilities(), delta=st.lists(budgets(), min_size=2, max_size=2))
def test_a_larger_budget_raises_the_token_higher(q, delta):
    small, large = sorted(delta)
    assert Cactus(small).boost(q) <= Cactus(large).boost(q)
    assert CactusExact(small).boost(q) <= CactusExact(large).boost(q) * (1 + 8 * EPS)
    lower, higher = exact_optimum([q, q], [small, large]).value
    assert q <= lower <= higher * (1 + ULPS * EPS) <= 1 + ULPS * EPS


@given(q=target_probabilities(), delta=budgets())
def test_the_rule_and_the_exact_optimum_agree_in_numpy(q, delta):
    solution = exact_optimum([q], delta)
    # The optimum is at most 18 EPS low, the rule within 5.
    assert abs(CactusExact(delta).boost(q) - solution.value[0]) <= 1e-14 * solution.value[0]


def test_the_rule_and_the_exact_optimum_agree_in_torch(torch):
    points = np.array(sweep_points())
    for delta in (0.0, 1e-12, 1e-6, 0.03, 0.75, 1.0, 10.0, 50.0):
        q = np.concatenate([points[:, 0], [0.0, 1.0]])
        value = exact_optimum(q, delta).value
        tensor = torch.tensor(q, dtype=torch.float64)
        rule = CactusExact(delta)
        boosted = rule.boost(tensor, xp=torch)
        assert boosted.dtype == torch.float64
        # As in numpy; torch's log differs from numpy's by an ulp.
        np.testing.assert_allclose(boosted.numpy(), value, rtol=1e-14, atol=0)
        # The ratio inherits the rounding of -log(q) - delta, absolute EPS * delta, near saturation.
        ratio, expected = rule.shrink(tensor, xp=torch).numpy(), rule.shrink(q)
        np.testing.assert_allclose(ratio, expected, rtol=1e-13, atol=4 * EPS * max(delta, 1))
        closed = Cactus(delta)
        np.testing.assert_allclose(
            closed.boost(tensor, xp=torch).numpy(), closed.boost(q), rtol=2 * EPS, atol=0
        )
        # 1 - sqrt(...) near its zero keeps an absolute error of an ulp of 1.
        np.testing.assert_allclose(
            closed.shrink(tensor, xp=torch).numpy(), closed.shrink(q), rtol=0, atol=2 * EPS
        )


@given(q=target_probabilities(), delta=budgets())
def test_boost_and_shrink_keep_their_ranges(q, delta):
    for rule in (Cactus(delta), CactusExact(delta)):
        assert q <= rule.boost(q) <= 1
        assert 0 <= rule.shrink(q) <= 1


def test_one_more_newton_step_changes_nothing(monkeypatch):
    tail = np.logspace(-300, -1, 250)
    q = np.unique(
        np.concatenate([tail, np.linspace(0.01, 0.99, 99), 1 - np.logspace(-15.9, -1, 90)])
    )
    delta = np.logspace(-12, np.log10(50), 240)[:, None]
    nearly = np.exp(-delta) * (1 - np.logspace(-16, -0.01, 60))
    for probs in (q, nearly):
        few = _kl_root.kl_root(probs, delta, xp=np)
        with monkeypatch.context() as patch:
            patch.setattr(_kl_root, "NEWTON_STEPS", _kl_root.NEWTON_STEPS + 1)
            more = _kl_root.kl_root(probs, delta, xp=np)
        for name, a, b in zip(("boosted", "complement", "ratio"), few, more, strict=True):
            # A converged Newton iteration still jitters by the rounding of its residual, a few ulp.
            np.testing.assert_allclose(a, b, rtol=8 * EPS, atol=0, err_msg=name)
