"""The exact and the second-order optimum against 60-digit arithmetic, and their limit cases."""

from __future__ import annotations

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
    Divergence,
    JensenShannon,
    ReverseKL,
    SquaredHellinger,
    TotalVariation,
    _chunks,
    binary_kl,
    exact_optimum,
    optimum_gap,
    second_order_optimum,
)
from cactus_theory.divergences import Status, _kl_root, _logarithmic, binary_kl_of_gain
from cactus_theory.testing import budgets, target_probabilities

DIVERGENCES = [
    *(KL(), ReverseKL(), JensenShannon(), ChiSquare(), TotalVariation(), SquaredHellinger()),
    *(Alpha(order) for order in (-3.0, -1.0, 0.3, 0.5, 1.0, 1.5, 2.0, 7.5)),
]
DIGITS = 80  # q = 1e-300 needs no more, because log1p and expm1 keep relative precision
EPS = 2.0**-52
ULPS = 18  # EPS, relative: 12 for evaluating the divergence, 2 the bracket's width, some roundings


def digits(q: float, delta: float) -> int:
    """Digits in which 50 are left of a gain as small as a tiny q or a tiny budget makes it."""
    return DIGITS + int(2 * abs(np.log10(q or 1.0)) + 2 * abs(np.log10(delta or 1.0)))


def reference_kl(odds, q):
    """KL(Bernoulli(g) || Bernoulli(q)) in mpmath, with odds = log(g/(1-g))."""
    g, c = 1 / (1 + mpmath.exp(-odds)), 1 / (1 + mpmath.exp(odds))
    return g * (mpmath.log(g) - mpmath.log(q)) + c * (mpmath.log(c) - mpmath.log1p(-q))


def reference_optimum(q: float, delta: float):
    """g and 1 - g to 50 digits: bisection on the log-odds, Newton, and a certified sign change."""
    q, delta = mpf(q), mpf(delta)
    if delta == 0 or q == 0 or q == 1:
        return q, 1 - q
    if -mpmath.log(q) <= delta:
        return mpf(1), mpf(0)
    start = mpmath.log(q) - mpmath.log1p(-q)
    low, width = start, mpf(1)
    while reference_kl(start + width, q) < delta:
        width *= 2
    high = start + width
    while high - low > mpf("1e-3"):
        middle = (low + high) / 2
        low, high = (middle, high) if reference_kl(middle, q) < delta else (low, middle)
    odds = high  # d KL / d odds = g (1-g) (odds - start): convex this close above the root
    for _ in range(2000):  # far above a tiny root, each step only halves the excess
        slope = (odds - start) / (2 + mpmath.exp(odds) + mpmath.exp(-odds))
        step = (reference_kl(odds, q) - delta) / slope
        odds -= step
        if abs(step) < mpf(10) ** -55 * (odds - start):
            break
    margin = mpf(10) ** -50 * (odds - start)
    assert reference_kl(odds - margin, q) < delta < reference_kl(odds + margin, q)
    return 1 / (1 + mpmath.exp(-odds)), 1 / (1 + mpmath.exp(odds))


def exact_kl(g, c, q):
    """Divergence of (g, c) from (q, 1-q), where g or c is a float and the other 1 minus it."""
    terms = [
        x * (mpmath.log(x) - log) for x, log in ((g, mpmath.log(q)), (c, mpmath.log1p(-q))) if x
    ]
    return mpmath.fsum(terms)


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
            assert -least <= mpf(complement) - c <= ULPS * EPS * c + unsure + 2 * least
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
