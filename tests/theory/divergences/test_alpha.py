"""The alpha family: its members, its continuity and its symmetry."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import (
    Alpha,
    JensenShannon,
    SquaredHellinger,
    TotalVariation,
)
from tests.theory.divergences.reference import EPS, MEMBERS, ORDERS


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
