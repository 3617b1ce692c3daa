"""The best possible over many positions: against convex programs, clamps and limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from cactus_theory import (
    Clamp,
    Frontier,
    MultiDraftClamp,
    equivalent_draft,
    kl,
    multidraft_acceptance,
    output_distribution,
)

RNG = np.random.default_rng(2)
TARGET = RNG.dirichlet(np.full(4, 0.8), size=3)
DRAFT = 0.5 * TARGET + 0.5 * RNG.dirichlet(np.full(4, 0.8), size=3)
CLOSE = 1e-9  # to which a price is solved for


@pytest.mark.parametrize("k", [1, 2])
def test_no_outputs_found_by_a_solver_accept_more_for_the_same_mean_kl(k):
    """SLSQP over three outputs, with t <= out and t <= r for what is accepted of r."""
    budget = 0.01
    best = Frontier(draft=DRAFT, target=TARGET, num_drafts=k).at_kl(budget)
    r = equivalent_draft(draft=DRAFT, target=TARGET, num_drafts=k)
    shape = TARGET.shape

    def split(x):
        return x[:12].reshape(shape), x[12:].reshape(shape)

    found = minimize(
        lambda x: -split(x)[1].sum(),
        np.concatenate([TARGET.ravel(), np.minimum(r, TARGET).ravel()]),
        jac=lambda x: np.concatenate([np.zeros(12), -np.ones(12)]),
        bounds=[(1e-9, 1.0)] * 12 + [(0.0, float(x)) for x in r.ravel()],
        constraints=[
            {"type": "eq", "fun": lambda x: split(x)[0].sum(axis=1) - 1},
            {"type": "ineq", "fun": lambda x: (split(x)[0] - split(x)[1]).ravel()},
            {
                "type": "ineq",
                "fun": lambda x: budget - (split(x)[0] * np.log(split(x)[0] / TARGET)).sum() / 3,
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success, found.message
    # SLSQP keeps the budget to about 1e-9, and the price is some tens
    assert -found.fun / 3 == pytest.approx(best.acceptance_rate, abs=1e-6)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("price", [0.0, 0.1, 1.0, 5.0])
def test_every_position_has_the_clamp_of_what_it_spends(price, k):
    best = Frontier(draft=DRAFT, target=TARGET, num_drafts=k)
    for p, q, law in zip(DRAFT, TARGET, best.emitted(price), strict=True):
        _, clamped = MultiDraftClamp(float(kl(law, q)), k).accepted_and_emitted(draft=p, target=q)
        # at a spent KL below 1e-8 the levels are known to its square root
        np.testing.assert_allclose(law, clamped, atol=1e-7)
    rates = multidraft_acceptance(best.emitted(price), draft=DRAFT, num_drafts=k)
    assert best.at_price(price).acceptance_rate == pytest.approx(rates.mean(), abs=1e-12)


def test_one_epsilon_everywhere_is_not_the_best_on_average():
    epsilon = 0.02
    law = output_distribution(Clamp(epsilon), draft=DRAFT, target=TARGET)
    rate = np.minimum(DRAFT, law).sum(axis=1).mean()
    spent = float(kl(law, TARGET).mean())
    best = Frontier(draft=DRAFT, target=TARGET)
    assert best.at_kl(spent).acceptance_rate > rate + 1e-4
    assert best.at_acceptance(rate).kl < spent - 1e-5


def test_a_budget_is_kept_and_spent_and_an_acceptance_reached_from_below():
    best = Frontier(draft=DRAFT, target=TARGET)
    for budget in (1e-4, 0.01):
        assert budget * (1 - CLOSE) <= best.at_kl(budget).kl <= budget
    plain, most = best.at_price(0.0).acceptance_rate, best.at_price(700.0).acceptance_rate
    rate = (plain + most) / 2
    assert rate - CLOSE <= best.at_acceptance(rate).acceptance_rate <= rate


def test_the_ends_are_plain_sampling_and_the_draft_itself():
    best = Frontier(draft=DRAFT, target=TARGET)
    np.testing.assert_allclose(best.emitted(0.0), TARGET, atol=1e-15)
    np.testing.assert_allclose(best.emitted(600.0), DRAFT, atol=1e-15)
    assert best.at_kl(0.0) == best.at_price(0.0)
    assert best.at_kl(50.0).acceptance_rate == pytest.approx(1)
    assert best.at_acceptance(0.0) == best.at_price(0.0)


def test_tokens_that_the_target_forbids_are_never_emitted():
    best = Frontier(draft=[0.5, 0.5, 0.0], target=[0.0, 0.5, 0.5])
    for price in (0.0, 1.0, 700.0):
        assert best.emitted(price)[0, 0] == 0


@pytest.mark.parametrize("price", [-1.0, float("nan")])
def test_a_negative_price_is_refused(price):
    with pytest.raises(ValueError, match="price must be >= 0"):
        Frontier(draft=DRAFT, target=TARGET).emitted(price)
