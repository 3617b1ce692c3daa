"""The safe closed form: it never spends more than its budget."""

from __future__ import annotations

import mpmath
import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from cactus_theory import (
    KL,
    CactusSafe,
    SpeculativeSampling,
    exact_optimum,
)
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.divergences.reference import DIGITS, EPS, reference_binary


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
