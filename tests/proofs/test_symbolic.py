"""The two ways an algebraic step is decided refuse what is not so."""

import sympy as sp

from proofs_check.symbolic import nonnegative, vanishes

X, Y = sp.symbols("x y", positive=True)


def test_an_identity_that_holds_on_one_branch_only_is_refused():
    assert not vanishes(sp.sqrt((X - 1) ** 2) - (X - 1))  # false for x < 1
    assert not vanishes(sp.log((X - 1) ** 2) - 2 * sp.log(X - 1))


def test_a_small_difference_is_refused():
    assert not vanishes(sp.log(1 + X) - sp.log(1 + X + sp.Rational(1, 10**12)))


def test_a_nonnegative_function_with_a_negative_coefficient_is_not_decided():
    assert not nonnegative((X - Y) ** 2)
    assert nonnegative((X - Y) ** 2 + 4 * X * Y)


def test_a_negative_denominator_is_not_mistaken_for_a_positive_one():
    assert not nonnegative(X / (1 - Y))
    assert nonnegative(-X / (-1 - Y))
