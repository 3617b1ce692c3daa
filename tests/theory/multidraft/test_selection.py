"""One of k drafts is selected as a sample of the equivalent draft, seen by enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    Clamp,
    Mixture,
    MultiDraftClamp,
    SpeculativeSampling,
    equivalent_draft,
    multidraft_acceptance,
    output_distribution,
    selection_chances,
    verify_drafts,
)
from cactus_theory.testing import pairs

ROUNDING = 1e-13  # of sums over all tuples


def selected_law(p, q, k):
    law = np.zeros(p.size)
    for xs in product(np.flatnonzero(p).tolist(), repeat=k):
        chances = selection_chances(xs, draft=p, target=q)
        assert chances.sum() == pytest.approx(1, abs=ROUNDING)
        assert (chances >= 0).all()
        np.add.at(law, list(xs), np.prod(p[list(xs)]) * chances)
    return law


@given(pair=pairs(max_size=4), k=st.integers(1, 3))
@settings(max_examples=20)
def test_the_selected_draft_follows_the_equivalent_draft(pair, k):
    p, q = (x / x.sum() for x in pair)
    wanted = equivalent_draft(draft=p, target=q, num_drafts=k)
    np.testing.assert_allclose(selected_law(p, q, k), wanted, atol=ROUNDING)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_blocks_of_many_tokens_are_split_until_they_are_exact(k):
    """The target is nearly the draft: all tokens are in one block, the hardest case."""
    rng = np.random.default_rng(k)
    p = rng.dirichlet(np.ones(6))
    q = p * (1 + 0.05 * rng.normal(size=6))
    q /= q.sum()
    wanted = equivalent_draft(draft=p, target=q, num_drafts=k)
    np.testing.assert_allclose(wanted, q, atol=ROUNDING)
    np.testing.assert_allclose(selected_law(p, q, k), q, atol=ROUNDING)


@pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), Cactus(0.1), Clamp(0.02), Mixture(0.5)], ids=str
)
def test_any_rule_emits_its_distribution_of_the_equivalent_draft(rule):
    """Enumerated: drafts, selection, acceptance and recovery."""
    rng = np.random.default_rng(11)
    p, q, k = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4)), 2
    r = equivalent_draft(draft=p, target=q, num_drafts=k)
    law, kept = np.zeros(4), 0.0
    mass = rule.accepted_mass(r, q)
    for xs in product(range(4), repeat=k):
        chances = selection_chances(xs, draft=p, target=q)
        for x, chance in zip(xs, chances, strict=True):
            weight = np.prod(p[list(xs)]) * chance
            passes = mass[x] / r[x] if r[x] else 0.0
            law[x] += weight * passes
            kept += weight * passes
            if passes < 1:
                recovery = rule.recovery_weights(x, r, q)
                law += weight * (1 - passes) * recovery / recovery.sum()
    np.testing.assert_allclose(law, output_distribution(rule, draft=r, target=q), atol=ROUNDING)
    if rule.ordered:
        most = multidraft_acceptance(law, draft=p, num_drafts=k)
        assert kept == pytest.approx(most, abs=ROUNDING)


def test_the_executable_verifier_draws_what_the_frontier_says():
    """1,000 draws: five deviations of any frequency are at most .08."""
    rng = np.random.default_rng(5)
    p, q, k, draws = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4]), 3, 1000
    kept, law = MultiDraftClamp(0.01, k).accepted_and_emitted(draft=p, target=q)
    seen, accepted = np.zeros(3), 0
    for us in rng.random((draws, 3)):
        xs = rng.choice(3, size=k, p=p).tolist()
        token, passed = verify_drafts(
            Clamp(0.01),
            xs,
            draft=p,
            target=q,
            select_uniform=us[0],
            accept_uniform=us[1],
            recover_uniform=us[2],
        )
        seen[token] += 1
        accepted += passed
        assert not passed or token in xs
    spread = 5 * np.sqrt(0.25 / draws)
    np.testing.assert_allclose(seen / draws, law, atol=spread)
    assert accepted / draws == pytest.approx(kept.sum(), abs=spread)


def test_equal_drafts_share_one_chance():
    chances = selection_chances([1, 1, 1], draft=[0.5, 0.5], target=[0.5, 0.5])
    np.testing.assert_array_equal(chances, [1, 0, 0])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "at least one drafted token"),
        ([2], r"tokens must lie in \[0, 2\)"),
        ([0], "positive draft probability"),
    ],
)
def test_drafts_that_cannot_be_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        selection_chances(tokens, draft=[0.0, 1.0], target=[0.5, 0.5])
