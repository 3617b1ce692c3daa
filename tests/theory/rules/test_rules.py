"""Every rule of the package: its emitted law by the definition, and what makes it what it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    AdaptiveTolerance,
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    FuzzyAcceptance,
    Lenience,
    Mixture,
    OneLevelRecovery,
    Rule,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
    emission,
    kl,
    output_distribution,
    residual_distribution,
    total_variation,
)
from cactus_theory.divergences import ChiSquare, SquaredHellinger
from cactus_theory.rules.registry import RULES as REGISTERED
from cactus_theory.specification import verify
from cactus_theory.testing import pairs

SHARED = [
    Lenience(0.5),
    Lenience(1.0),
    Mixture(0.0),
    Mixture(0.3),
    Mixture(1.0),
    TypicalAcceptance(),
    TypicalAcceptance(0.5, 1.0),
    TopKAcceptance(1),
    TopKAcceptance(3),
    OneLevelRecovery(Cactus(0.1)),
    OneLevelRecovery(SpeculativeSampling()),
    Clamp(0.0),
    Clamp(0.05),
    Clamp(0.05, ChiSquare()),
    Clamp(0.05, SquaredHellinger()),
    Clamp(20.0),
]
RULES = [SpeculativeSampling(), Cactus(0.3), CactusExact(0.3), CactusSafe(0.3), *SHARED]
RULES += [entry.example() for entry in REGISTERED.values() if entry.example() not in RULES]

KEEPS_WHAT_THE_TARGET_EXCLUDES = (Mixture, AdaptiveTolerance, FuzzyAcceptance)


def literal_law(rule, p, q):
    """The definition: accept with chance m(n)/p(n), else draw from the recovery law of n."""
    mass = rule.accepted_mass(p, q)
    law = mass.astype(float).copy()
    for n in np.flatnonzero(p > mass):
        weights = rule.recovery_weights(int(n), p, q)
        law += (p[n] - mass[n]) * (weights / weights.sum() if weights.sum() > 0 else q)
    return law


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(pair=pairs(max_size=7))
@settings(max_examples=60)
def test_the_emitted_law_is_the_definition_s(rule, pair):
    p, q = pair
    law = output_distribution(rule, draft=p, target=q)
    # seven terms of rounding 1e-16, and normalisers that are sums in another order
    np.testing.assert_allclose(law, literal_law(rule, p, q), rtol=1e-9, atol=1e-14)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert (law[q == 0] == 0).all() or isinstance(rule, KEEPS_WHAT_THE_TARGET_EXCLUDES)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(pair=pairs(max_size=7))
@settings(max_examples=60)
def test_the_account_is_that_of_the_emitted_law(rule, pair):
    p, q = pair
    cost = emission(rule, draft=p, target=q)
    law = output_distribution(rule, draft=p, target=q)
    assert cost.acceptance_rate == pytest.approx(rule.accepted_mass(p, q).sum(), abs=1e-12)
    assert cost.total_variation == pytest.approx(total_variation(law, q), abs=1e-12)
    assert cost.kl_bound >= kl(law, q) * (1 - 1e-9) - 1e-12
    plain = np.minimum(p, q).sum()
    # the price of acceptance: no scheme at all beats gain = cost
    assert cost.acceptance_rate <= plain + cost.total_variation + 1e-12


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_batch_is_its_positions_one_by_one(rule):
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.full(6, 0.5), (2, 3, 4))
    law = output_distribution(rule, draft=p, target=q)
    for position in np.ndindex(3, 4):
        alone = output_distribution(rule, draft=p[position], target=q[position])
        np.testing.assert_allclose(law[position], alone, rtol=1e-13)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_specification_emits_the_law_to_one_cell(rule):
    p, q, cells = np.array([1, 3, 4, 8]) / 16, np.array([6, 4, 4, 2]) / 16, 60
    grid = (np.arange(cells) + 0.5) / cells
    law = np.zeros(4)
    for token in range(4):
        for u in grid:
            args = {"draft": [p], "target": [q, q], "accept_uniforms": [u]}
            emitted, accepted = verify(rule, [token], recover_uniform=0.5, **args)
            if accepted:
                law[token] += p[token] / cells
                continue
            weights = rule.recovery_weights(token, p, q)
            law += p[token] / cells * weights / weights.sum()
            assert weights[emitted[0]] > 0
    assert np.abs(law - output_distribution(rule, draft=p, target=q)).max() <= 4 / cells


@given(pair=pairs(max_size=7), epsilon=st.sampled_from([1e-6, 0.01, 0.1, 1.0]))
@settings(max_examples=150)
def test_a_clamp_keeps_its_budget_and_spends_it(pair, epsilon):
    p, q = pair
    law = output_distribution(Clamp(epsilon), draft=p, target=q)
    spent = kl(law, q)
    assert spent <= epsilon * (1 + 1e-12) + 1e-15
    if (p[q == 0] == 0).all() and kl(p, q) > 2 * epsilon:
        assert spent >= epsilon * (1 - 1e-6)


@given(pair=pairs(max_size=6), delta=st.sampled_from([0.01, 0.1, 1.0]))
@settings(max_examples=150)
def test_no_rule_of_the_same_kl_accepts_more_than_the_clamp(pair, delta):
    p, q = pair
    for rule in (Cactus(delta), CactusExact(delta), Lenience(0.5), Mixture(0.5)):
        spent = kl(output_distribution(rule, draft=p, target=q), q)
        if np.isfinite(spent):
            clamp = emission(Clamp(float(spent)), draft=p, target=q).acceptance_rate
            rate = emission(rule, draft=p, target=q).acceptance_rate
            # sqrt: near budget 0 the acceptance moves like the root of the budget's rounding
            assert rate <= clamp + 1e-7


@given(pair=pairs(max_size=7), delta=st.sampled_from([0.01, 0.3, 2.0]))
def test_one_level_recovers_most_cheaply_at_the_same_acceptance(pair, delta):
    p, q = pair
    rule, level = Cactus(delta), OneLevelRecovery(Cactus(delta))
    before, after = emission(rule, draft=p, target=q), emission(level, draft=p, target=q)
    assert after.acceptance_rate == pytest.approx(before.acceptance_rate, abs=1e-13)
    assert after.total_variation == pytest.approx(before.total_variation, abs=1e-12)
    theirs = kl(output_distribution(rule, draft=p, target=q), q)
    assert kl(output_distribution(level, draft=p, target=q), q) <= theirs + 1e-12


@given(pair=pairs(max_size=7))
def test_the_lossless_settings_emit_the_target(pair):
    p, q = pair
    for rule in (Lenience(1.0), Mixture(1.0), Clamp(0.0), OneLevelRecovery(SpeculativeSampling())):
        np.testing.assert_allclose(
            output_distribution(rule, draft=p, target=q), q, rtol=1e-9, atol=1e-13
        )


@given(pair=pairs(max_size=7), weight=st.floats(0, 1))
def test_a_mixture_emits_the_mixture_and_lenience_at_most_q_over_l(pair, weight):
    p, q = pair
    law = output_distribution(Mixture(weight), draft=p, target=q)
    np.testing.assert_allclose(law, weight * q + (1 - weight) * p, rtol=1e-9, atol=1e-13)
    lenience = max(weight, 1e-3)
    law = output_distribution(Lenience(lenience), draft=p, target=q)
    assert (law <= q / lenience * (1 + 1e-9) + 1e-13).all()


def test_typical_acceptance_has_no_guarantee():
    p, q = np.array([0.0, 1.0]), np.array([0.9, 0.1])
    assert output_distribution(TypicalAcceptance(), draft=p, target=q).tolist() == [0.0, 1.0]


def test_rejection_by_typical_acceptance_emits_the_first_of_equal_maxima():
    weights = TypicalAcceptance().recovery_weights(0, np.ones(3) / 3, np.array([0.2, 0.4, 0.4]))
    assert weights.tolist() == [0, 1, 0]


def test_the_residual_of_a_shared_rule_is_its_recovery_law():
    got = residual_distribution(Lenience(0.5), 1, draft=[0.1, 0.9], target=[0.7, 0.3])
    assert got.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Lenience(0), ValueError, r"lenience must lie in \(0, 1\], got 0"),
        (lambda: Lenience(-0.5), ValueError, r"^lenience must lie in \(0, 1\], got -0.5$"),
        (lambda: Lenience(1.5), ValueError, "got 1.5"),
        (lambda: Lenience(float("nan")), ValueError, "got nan"),
        (lambda: Lenience("x"), TypeError, "lenience"),
        (lambda: Mixture(-0.1), ValueError, "weight .* got -0.1"),
        (lambda: Mixture(True), TypeError, r"^weight must be a number in \[0, 1\], got True$"),
        (lambda: Mixture(1.1), ValueError, r"weight must lie in \[0, 1\], got 1.1"),
        (lambda: TypicalAcceptance(0.0), ValueError, r"epsilon must lie in \(0, 1\], got 0.0"),
        (lambda: TypicalAcceptance("x"), TypeError, "epsilon must be a number in"),
        (lambda: TypicalAcceptance(0.1, 2.0), ValueError, "alpha .* got 2.0"),
        (lambda: TopKAcceptance(0), ValueError, "k must be an integer >= 1, got 0"),
        (lambda: TopKAcceptance(True), TypeError, "k must be"),
        (lambda: Clamp(-1.0), ValueError, "epsilon .* got -1.0"),
        (lambda: Clamp(0.1, "kl"), TypeError, "divergence must be a Divergence, got 'kl'"),
        (lambda: OneLevelRecovery(Lenience(0.5)), TypeError, "rule must be a rule with candidates"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(make, error, words):
    with pytest.raises(error, match=words):
        make()


class Threshold(Rule):
    """A user's rule of neither kind: keep where q >= p / 2, recover by what was rejected."""

    def accepted_mass(self, draft, target, *, xp=np):
        return xp.where(target >= draft / 2, draft, 0.0)

    def recovery_weights(self, token, draft, target):
        return np.where(np.arange(len(draft)) == token, 0.0, target)


@given(pair=pairs(max_size=6))
def test_a_rule_of_neither_kind_has_exact_laws_too(pair):
    p, q = pair
    law = output_distribution(Threshold(), draft=p, target=q)
    np.testing.assert_allclose(law, literal_law(Threshold(), p, q), rtol=1e-12, atol=1e-15)
    cost = emission(Threshold(), draft=p, target=q)
    assert cost.total_variation == pytest.approx(total_variation(law, q), abs=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("excess", [2.3e-16, 5e-7])
def test_a_law_that_rounds_above_one_gives_no_nan(rule, excess):
    p, q = np.array([0.5, 0.5]), np.array([1 + excess, 0.0])
    cost = emission(rule, draft=p, target=q)
    assert 0 <= cost.acceptance_rate <= 1
    assert np.isfinite(output_distribution(rule, draft=p, target=q)).all()


@pytest.mark.parametrize("smallest", [5e-324, 1e-310, 1e-300])
@pytest.mark.parametrize("epsilon", [1e-300, 1e-17, 0.1])
def test_a_clamp_stands_extreme_laws_and_budgets(smallest, epsilon):
    p, q = np.array([0.7, 0.3]), np.array([smallest, 1.0])
    law = output_distribution(Clamp(epsilon), draft=p, target=q)
    assert kl(law, q) <= epsilon + 1e-15
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(9), 2)
    assert kl(output_distribution(Clamp(epsilon), draft=p, target=q), q) <= epsilon + 1e-15
