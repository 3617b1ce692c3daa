"""What k drafts accept at best: against linear programming, limits, and the clamp of one draft."""

from __future__ import annotations

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from cactus_theory import Clamp, MultiDraftClamp, emission, equivalent_draft, multidraft_acceptance
from cactus_theory.divergences import KL, ChiSquare, ReverseKL, TotalVariation, total_variation
from cactus_theory.testing import pairs

ROUNDING = 1e-13  # sums of a few probabilities and their powers
SOLVER = 1e-7  # of HiGHS, which stops at such residuals
COUNTS = st.integers(1, 5)


def sets(size):
    return chain.from_iterable(combinations(range(size), n) for n in range(size + 1))


def by_cuts(law, p, k):
    """The same maximum over all sets of tokens."""
    return 1 - max(p[list(h)].sum() ** k - law[list(h)].sum() for h in sets(p.size))


def by_transport(law, p, k):
    """The most that a plan from all k-tuples of drafts to tokens keeps, by linear programming."""
    tuples = list(product(range(p.size), repeat=k))
    weights = [np.prod(p[list(xs)]) for xs in tuples]
    cells = [(row, y) for row, xs in enumerate(tuples) for y in set(xs)]
    upper = np.zeros((len(tuples) + p.size, len(cells)))
    for column, (row, y) in enumerate(cells):
        upper[row, column] = upper[len(tuples) + y, column] = 1
    found = linprog(-np.ones(len(cells)), A_ub=upper, b_ub=[*weights, *law], method="highs")
    return -found.fun


def cheapest_by_program(p, q, k, rejected):
    """The least TV(out, q) of an output that k drafts reach with a given rejection, by sets."""
    size = p.size
    above = [[*(-(x in h) * 1.0 for x in range(size)), *([0.0] * size)] for h in sets(size)]
    needed = [rejected - p[list(h)].sum() ** k for h in sets(size)]
    gains = np.hstack([np.eye(size), -np.eye(size)])  # out - q <= gain
    found = linprog(
        [0.0] * size + [1.0] * size,
        A_ub=np.vstack([above, gains]),
        b_ub=[*needed, *q],
        A_eq=[[1.0] * size + [0.0] * size],
        b_eq=[1.0],
        method="highs",
    )
    return found.fun


def random_pair(seed, size):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(size, 0.7)), rng.dirichlet(np.full(size, 0.7))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_acceptance_is_that_of_the_best_transport_plan(seed, k):
    p, law = random_pair(seed, 4)
    found = multidraft_acceptance(law, draft=p, num_drafts=k)
    assert found == pytest.approx(by_transport(law, p, k), abs=SOLVER)


@given(pair=pairs(max_size=6), k=COUNTS)
def test_no_set_of_tokens_bounds_the_acceptance_more_than_those_of_largest_ratio(pair, k):
    p, law = (x / x.sum() for x in pair)
    found = multidraft_acceptance(law, draft=p, num_drafts=k)
    assert found == pytest.approx(by_cuts(law, p, k), abs=ROUNDING)


@given(pair=pairs(max_size=6), k=COUNTS)
def test_the_equivalent_draft_is_a_distribution_that_never_rejects(pair, k):
    p, q = pair
    law = equivalent_draft(draft=p, target=q, num_drafts=k)
    assert (law >= 0).all()
    assert law.sum() == pytest.approx(1, abs=ROUNDING)
    assert by_cuts(law, p / p.sum(), k) == pytest.approx(1, abs=ROUNDING)


@given(pair=pairs(max_size=6), k=COUNTS)
def test_more_drafts_are_worth_a_draft_that_is_no_farther_from_the_target(pair, k):
    p, q = pair
    near, far = (equivalent_draft(draft=p, target=q, num_drafts=n) for n in (k + 1, k))
    for divergence in (TotalVariation(), KL()):
        now, before = divergence.between(near, q), divergence.between(far, q)
        assert now <= before + ROUNDING * max(1, np.abs(before))


@given(pair=pairs(max_size=8), epsilon=st.sampled_from([0.0, 1e-3, 0.1, 1.0]))
def test_one_draft_is_the_clamp(pair, epsilon):
    p, q = pair
    kept, law = MultiDraftClamp(epsilon, 1).accepted_and_emitted(draft=p, target=q)
    wanted_kept, wanted = Clamp(epsilon).accepted_and_emitted(p, q)
    np.testing.assert_array_equal(law, wanted)
    np.testing.assert_array_equal(kept, wanted_kept)


@given(pair=pairs(max_size=6), k=COUNTS, epsilon=st.sampled_from([0.0, 1e-3, 0.1, 1.0]))
def test_the_acceptance_is_the_largest_for_what_is_emitted_and_gain_is_cost(pair, k, epsilon):
    p, q = pair
    best = MultiDraftClamp(epsilon, k)
    kept, law = best.accepted_and_emitted(draft=p, target=q)
    rate = kept.sum()
    assert rate == pytest.approx(multidraft_acceptance(law, draft=p, num_drafts=k), abs=1e-12)
    plain = multidraft_acceptance(q, draft=p, num_drafts=k)
    assert rate == pytest.approx(plain + total_variation(law, q), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_no_output_with_the_same_rejection_is_nearer_to_the_target(seed, k):
    p, q = random_pair(seed, 5)
    best = MultiDraftClamp(0.05, k, TotalVariation())
    kept, law = best.accepted_and_emitted(draft=p, target=q)
    cost = cheapest_by_program(p, q, k, 1 - kept.sum())
    assert total_variation(law, q) == pytest.approx(cost, abs=SOLVER)


@pytest.mark.parametrize("divergence", [KL(), ReverseKL(), ChiSquare()], ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_every_direction_to_another_feasible_output_costs_more(divergence, k):
    """Outputs are vertices and mixtures of the same polytope: random linear programs reach them."""
    rng = np.random.default_rng(7)
    for seed in range(12):
        p, q = random_pair(100 + seed, 4)
        kept, law = MultiDraftClamp(0.02, k, divergence).accepted_and_emitted(draft=p, target=q)
        if kept.sum() > 1 - 1e-9:
            continue
        subsets = list(sets(4))
        member = np.array([[x in h for x in range(4)] for h in subsets], dtype=float)
        needed = (member @ p) ** k - (1 - kept.sum())
        for _ in range(10):
            rival = linprog(
                rng.normal(size=4), A_ub=-member, b_ub=-needed, A_eq=np.ones((1, 4)), b_eq=[1.0]
            ).x
            for share in (1e-3, 0.1, 1.0):
                other = np.maximum((1 - share) * law + share * rival, 0)
                assert divergence.between(other, q) >= divergence.between(law, q) - SOLVER


def test_many_drafts_emit_the_target_where_the_draft_covers_it():
    p, q = random_pair(1, 6)
    rate = multidraft_acceptance(q, draft=p, num_drafts=2000)
    assert rate == pytest.approx(1, abs=1e-6)
    near = equivalent_draft(draft=p, target=q, num_drafts=2000)
    np.testing.assert_allclose(near, q, atol=1e-6)  # (1 - .01)^2000 is below that


def test_tokens_that_the_target_forbids_are_taken_only_when_all_drafts_are_such():
    law = equivalent_draft(draft=[0.3, 0.2, 0.5], target=[0.0, 0.0, 1.0], num_drafts=3)
    np.testing.assert_allclose(law, [0.3 * 0.25, 0.2 * 0.25, 1 - 0.125], rtol=1e-14)


def test_leading_axes_broadcast():
    p, q = np.stack([random_pair(s, 5)[0] for s in range(3)]), random_pair(9, 5)[1]
    together = MultiDraftClamp(0.1, 3).accepted_and_emitted(draft=p, target=q)[1]
    for row, law in zip(p, together, strict=True):
        alone = MultiDraftClamp(0.1, 3).accepted_and_emitted(draft=row, target=q)[1]
        np.testing.assert_array_equal(law, alone)


def test_the_clamp_of_k_drafts_spends_its_budget():
    p, q = random_pair(3, 8)
    cost = emission(Clamp(0.01), draft=equivalent_draft(draft=p, target=q, num_drafts=2), target=q)
    _, law = MultiDraftClamp(0.01, 2).accepted_and_emitted(draft=p, target=q)
    assert float(KL().between(law, q)) == pytest.approx(0.01, abs=1e-12)
    assert float(cost.kl_bound) == pytest.approx(0.01, abs=1e-12)


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_draft_is_refused(k):
    with pytest.raises(ValueError, match="num_drafts must be an integer >= 1"):
        MultiDraftClamp(0.1, k)
    with pytest.raises(ValueError, match="num_drafts must be an integer >= 1"):
        equivalent_draft(draft=[1.0], target=[1.0], num_drafts=k)


def test_a_budget_that_is_none_is_refused():
    with pytest.raises(ValueError, match="epsilon must be"):
        MultiDraftClamp(-0.1, 2)
    with pytest.raises(TypeError, match="divergence must be"):
        MultiDraftClamp(0.1, 2, divergence="kl")  # type: ignore[arg-type]
