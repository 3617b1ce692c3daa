"""Budgets found for a wanted acceptance, total variation or KL, by round trips and sharpness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
    acceptance_rate,
    binary_kl,
    emission,
    kl,
    output_distribution,
)
from cactus_theory.inverse import (
    delta_for_acceptance_rate,
    delta_for_kl,
    delta_for_sure_acceptance,
    delta_for_total_variation,
)
from cactus_theory.rules import CandidateRule
from cactus_theory.testing import budgets, pairs, target_probabilities

EPS = 2.0**-52
FAMILIES = [Cactus, CactusExact]
RNG = np.random.default_rng(5)
DRAFT, TARGET = RNG.dirichlet(np.full(6, 0.5), size=4), RNG.dirichlet(np.ones(6), size=4)


class AdditiveBoost(CandidateRule):
    """A family without a closed form here: g = min(q + delta, 1), a total-variation budget."""

    def __init__(self, delta: float) -> None:
        self.delta = delta

    def boost(self, target_prob, *, xp=np):
        return xp.where(target_prob > 0, xp.minimum(target_prob + self.delta, 1.0), 0.0)

    def shrink(self, target_prob, *, xp=np):
        room = 1 - target_prob
        left = (1 - self.boost(target_prob)) / xp.where(room > 0, room, 1.0)
        return xp.where(room > 0, left, 1.0)


def mean_kl(rule, draft, target):
    return float(kl(output_distribution(rule, draft=draft, target=target), target).mean())


def mean_total_variation(rule, draft, target):
    return float(emission(rule, draft=draft, target=target).total_variation.mean())


def mean_rate(rule, draft, target):
    return float(acceptance_rate(rule, draft=draft, target=target).mean())


INVERSES = [
    (delta_for_acceptance_rate, mean_rate),
    (delta_for_total_variation, mean_total_variation),
    (delta_for_kl, mean_kl),
]


@pytest.mark.parametrize("family", FAMILIES)
@given(p=target_probabilities(), q=target_probabilities())
@example(p=1.0, q=0.9)
@example(p=1.0, q=1 - 2.0**-53)
@example(p=0.5 + 2.0**-53, q=0.5)
@example(p=1 - 2.0**-53, q=1e-3)
@example(p=1.0000000000000002e-300, q=1e-300)  # delta once was 0 by underflow
@example(p=1.0000000000001308e-300, q=1e-300)
def test_the_budget_of_sure_acceptance_is_enough_and_hardly_more(family, p, q):
    delta = float(delta_for_sure_acceptance(family, draft_prob=p, target_prob=q))
    if p <= q:
        assert delta == 0
        return
    if delta == np.inf:
        assert q <= 1e-100
        assert family is Cactus or q == 0
        return
    assert family(delta).boost(q) >= p
    assert family(delta).acceptance_probability(p, q) == 1
    # 8 ulp are added on purpose, 5 are the error of a boost, and a few are that of delta times
    # delta / (d KL / dg) <= p; below that it must fall short.
    # The least budget is the least normal number, which may reach p from any distance.
    shorter = p * (1 - 64 * EPS)
    less = float(delta_for_sure_acceptance(family, draft_prob=shorter, target_prob=q))
    if less > np.finfo(np.float64).tiny:
        assert family(less).boost(q) < p


def test_the_budget_of_sure_acceptance_has_its_closed_forms():
    p, q = np.array([0.6, 0.9, 1.0, 0.3]), np.array([0.2, 0.5, 0.25, 0.7])
    second = np.where(p > q, (p - q) ** 2 / (2 * q * (1 - q)), 0.0)
    exact = np.where(p > q, binary_kl(p, q), 0.0)
    # 8 ulp of p over a gain of at least 0.4.
    for family, expected in ((Cactus, second), (CactusExact, exact)):
        np.testing.assert_allclose(
            delta_for_sure_acceptance(family, draft_prob=p, target_prob=q), expected, rtol=64 * EPS
        )
    assert delta_for_sure_acceptance(CactusExact, draft_prob=1.0, target_prob=0.5) == pytest.approx(
        np.log(2), rel=8 * EPS
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_that_is_certain_of_its_token_is_surely_accepted_too(family):
    probs = np.concatenate([np.linspace(0.001, 0.999, 999), np.logspace(-90, -3, 88)])
    deltas = delta_for_sure_acceptance(family, draft_prob=1.0, target_prob=probs)
    for q, delta in zip(probs, deltas, strict=True):
        assert family(float(delta)).boost(q) == 1


@pytest.mark.parametrize("family", [*FAMILIES, AdditiveBoost])
def test_a_token_the_target_excludes_is_never_surely_accepted(family):
    delta = delta_for_sure_acceptance(family, draft_prob=[0.5, 0.0, 1e-9], target_prob=[0, 0, 0.0])
    assert delta.tolist() == [np.inf, 0, np.inf]


def test_sure_acceptance_broadcasts_and_solves_families_without_a_closed_form():
    p, q = np.array([[0.3], [0.8]]), np.array([0.2, 0.5, 1.0])
    delta = delta_for_sure_acceptance(AdditiveBoost, draft_prob=p, target_prob=q)
    # The root is found to a relative 1e-12.
    np.testing.assert_allclose(delta, np.maximum(p - q, 0), rtol=2e-12, atol=0)
    for place in np.ndindex(2, 3):
        rule = AdditiveBoost(float(delta[place]))
        assert rule.boost(q[place[1]]) >= p[place[0], 0]
    solved = delta_for_sure_acceptance(lambda d: Cactus(d), draft_prob=p, target_prob=q)
    np.testing.assert_allclose(
        solved, delta_for_sure_acceptance(Cactus, draft_prob=p, target_prob=q), rtol=2e-12
    )
    assert (
        delta_for_sure_acceptance(lambda _: SpeculativeSampling(), draft_prob=0.9, target_prob=0.1)
        == np.inf
    )


@pytest.mark.parametrize(("inverse", "value"), INVERSES)
@pytest.mark.parametrize("family", [*FAMILIES, AdditiveBoost])
def test_the_budget_found_gives_what_was_wanted_and_a_little_more_does_not(inverse, value, family):
    least, most = (value(family(delta), DRAFT, TARGET) for delta in (0.0, 1e3))
    for part in (1e-3, 0.1, 0.5, 0.9, 0.999):
        wanted = least + part * (most - least)
        delta = inverse(wanted, family, draft=DRAFT, target=TARGET)
        reached = value(family(delta), DRAFT, TARGET)
        # A relative 1e-12 of delta, and roundings of sums of two dozen numbers up to 1.
        assert reached == pytest.approx(wanted, rel=1e-11, abs=64 * EPS)
        further = value(family(delta * (1 + 4e-12)), DRAFT, TARGET)
        before = value(family(delta * (1 - 4e-12)), DRAFT, TARGET)
        if inverse is delta_for_acceptance_rate:
            assert before <= wanted <= reached
        else:
            assert reached <= wanted <= further


@pytest.mark.parametrize(("inverse", "value"), INVERSES)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=50)  # each finds a root in some fifty evaluations
@given(pair=pairs(min_size=2, max_size=5), part=st.floats(0.0, 1.0))
def test_round_trips_over_all_kinds_of_pairs(inverse, value, family, pair, part):
    least, most = (value(family(d), *pair) for d in (0.0, 1e100))
    wanted = least + part * (most - least)
    found = inverse(wanted, family, draft=pair.draft, target=pair.target)
    reached = value(family(found), *pair)
    # The values are sums with an error of some ulp of 1 (times a slope of 700 nats for KL), so
    # that is how well a wanted value near rounding can be met.
    assert reached == pytest.approx(wanted, rel=1e-10, abs=700 * 64 * EPS)


@pytest.mark.parametrize(("inverse", "value"), INVERSES)
def test_a_batch_is_solved_for_its_mean(inverse, value):
    wanted = value(Cactus(0.05), DRAFT, TARGET)
    together = inverse(wanted, Cactus, draft=DRAFT, target=TARGET)
    assert together == pytest.approx(0.05, rel=1e-9)
    shaped = inverse(wanted, Cactus, draft=DRAFT.reshape(2, 2, 6), target=TARGET.reshape(2, 2, 6))
    # The same mean in another order of summation.
    assert shaped == pytest.approx(together, rel=1e-10)


@pytest.mark.parametrize(("inverse", "value"), INVERSES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_ends_of_the_range_are_reached_and_beyond_them_there_is_an_error(
    inverse, value, family
):
    least, most = (value(family(delta), DRAFT, TARGET) for delta in (0.0, 1e100))
    assert inverse(least, family, draft=DRAFT, target=TARGET) == 0
    top = inverse(most, family, draft=DRAFT, target=TARGET)
    # No larger than the budget at which the last token is surely accepted.
    sure = delta_for_sure_acceptance(family, draft_prob=DRAFT, target_prob=TARGET).max()
    assert top <= sure * (1 + 1e-11)
    assert value(family(top), DRAFT, TARGET) == pytest.approx(most, rel=1e-11)
    # A sum taken in another order may lie an ulp beyond the end.
    assert inverse(most + 5e-13, family, draft=DRAFT, target=TARGET) == top
    assert inverse(least - 5e-13, family, draft=DRAFT, target=TARGET) == 0
    for wanted in (least - 1e-3, most + 1e-3, np.nan):
        with pytest.raises(ValueError, match=rf"must lie in .*, {most:.6g}.* got"):
            inverse(wanted, family, draft=DRAFT, target=TARGET)


def test_acceptance_can_reach_no_more_than_the_mass_on_the_support_of_the_target():
    laws = {"draft": [0.25, 0.5, 0.25], "target": [0.5, 0.0, 0.5]}
    with pytest.raises(ValueError, match=r"rate must lie in \[0.5, 0.5\]"):
        delta_for_acceptance_rate(0.75, Cactus, **laws)
    laws = {"draft": [0.25, 0.5, 0.25], "target": [0.125, 0.0, 0.875]}
    with pytest.raises(ValueError, match=r"rate must lie in \[0.375, 0.5\]"):
        delta_for_acceptance_rate(0.75, Cactus, **laws)
    assert delta_for_acceptance_rate(0.5, Cactus, **laws) == pytest.approx(
        0.125**2 / (2 * 0.125 * 0.875), rel=1e-11
    )


@pytest.mark.parametrize(("inverse", "value"), INVERSES)
def test_bad_laws_are_refused(inverse, value):
    with pytest.raises(ValueError, match="draft must sum to 1"):
        inverse(0.1, Cactus, draft=[0.5, 0.2], target=[0.5, 0.5])
    with pytest.raises(ValueError, match=r"target_prob must be a probability in \[0, 1\]"):
        delta_for_sure_acceptance(Cactus, draft_prob=0.5, target_prob=1.5)


@pytest.mark.parametrize("family", FAMILIES)
@given(pair=pairs(min_size=2), deltas=st.tuples(budgets(), budgets()))
def test_the_emitted_law_moves_away_from_the_target_at_every_token_as_the_budget_grows(
    family, pair, deltas
):
    p, q = pair
    small, large = (
        output_distribution(family(delta), draft=p, target=q) for delta in sorted(deltas)
    )
    over = p > q
    # The law is right to some ulp of 1 (see test_emitted).
    slack = 64 * EPS
    assert (large[over] >= small[over] - slack).all()
    assert (large[~over] <= small[~over] + slack).all()
    # Hence every f-divergence; KL's slope at a token is at most log(1/q) + 1 <= 700.
    assert kl(large, q) >= kl(small, q) - 700 * slack


def test_the_emitted_law_moves_away_in_each_single_boost_also_on_large_sets_of_laws():
    class OneBoost(CandidateRule):
        """Boosts only the tokens whose target probability is the given one."""

        def __init__(self, prob, boosted):
            self.prob, self.boosted = prob, boosted

        def boost(self, target_prob, *, xp=np):
            return xp.where(target_prob == self.prob, self.boosted, target_prob)

        def shrink(self, target_prob, *, xp=np):
            return (1 - self.boost(target_prob)) / (1 - target_prob)

    rng = np.random.default_rng(2)
    for _ in range(150):
        size = int(rng.integers(3, 8))
        q = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0])))
        p = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0])))
        over = np.nonzero(p > q)[0]
        token = int(rng.choice(over))
        boosts = np.linspace(q[token], p[token], 9)
        outs = [output_distribution(OneBoost(q[token], g), draft=p, target=q) for g in boosts]
        steps = np.diff(outs, axis=0)
        assert (steps[:, p > q] >= -64 * EPS).all()
        assert (steps[:, p <= q] <= 64 * EPS).all()
