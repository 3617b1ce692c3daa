"""The exact rule of each divergence, in numpy and in torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    KL,
    Alpha,
    CactusExact,
    CactusSafe,
    JensenShannon,
    ReverseKL,
    output_distribution,
)
from cactus_theory.testing import budgets, target_probabilities
from tests.theory.divergences.reference import CLOSED, DIVERGENCES, EPS, NAMED


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
