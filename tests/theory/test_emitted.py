"""The emitted law, its cost and the residual against a literal translation of their definitions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cactus_theory import (
    KL,
    Cactus,
    CactusExact,
    CandidateRule,
    SpeculativeSampling,
    acceptance_rate,
    block_efficiency,
    emission,
    kl,
    output_distribution,
    residual_distribution,
    total_variation,
)
from cactus_theory import emitted as emitted_module
from cactus_theory.testing import budgets, distributions, pairs, rules, target_probabilities

EPS = 2.0**-52
# Laws of at most 8 tokens sum to one up to a few ulp, and the emitted law is a sum of products of
# a few roundings each. A recovered mass w is shared by ratios [c - t]_+ / Z, each as uncertain as
# rounding makes it where p nearly equals q; but w <= Z there, so absolutely this is an ulp again.
AN_ULP = np.array([[1e-20, 1.0], [1e-19, 1 - 2.0**-53]])  # laws an ulp apart
ABSOLUTE = 64 * EPS


def literal_output_distribution(rule, p, q):
    """out = sum over drafted n of p(n) [accept n, else draw from [h - p]_+], word for word."""
    size = len(p)
    out = np.zeros(size)
    for n in range(size):
        g, shrink = float(rule.boost(q[n])), float(rule.shrink(q[n]))
        h = np.array([g if x == n else q[x] * shrink for x in range(size)])
        accepted = min(g / p[n], 1.0) if p[n] > 0 else 1.0
        out[n] += p[n] * accepted
        residual = np.array([max(h[x] - p[x], 0.0) if x != n else 0.0 for x in range(size)])
        if accepted < 1:
            total = residual.sum()
            out += p[n] * (1 - accepted) * (residual / total if total > 0 else np.eye(size)[n])
    return out


@given(rule=rules(), pair=pairs())
def test_the_output_law_agrees_with_its_literal_definition(rule, pair):
    p, q = pair
    expected = literal_output_distribution(rule, p, q)
    np.testing.assert_allclose(
        output_distribution(rule, draft=p, target=q), expected, atol=ABSOLUTE, rtol=0
    )


def test_the_output_law_agrees_with_its_definition_on_longer_vocabularies():
    rng = np.random.default_rng(11)
    for trial in range(30):
        size = 30 + trial
        weights = rng.integers(0, 6, size=(2, size)) if trial % 2 else rng.lognormal(size=(2, size))
        p, q = weights / weights.sum(axis=1, keepdims=True)
        for rule in (SpeculativeSampling(), Cactus(0.05), CactusExact(0.5)):
            out = output_distribution(rule, draft=p, target=q)
            # Up to eight times the tokens of the test above, as many times the roundings.
            np.testing.assert_allclose(
                out, literal_output_distribution(rule, p, q), atol=8 * ABSOLUTE, rtol=0
            )


@given(pair=pairs(max_size=6), delta=budgets())
def test_the_candidate_law_of_the_definition_has_shrink_equal_to_its_ratio(pair, delta):
    for rule in (Cactus(delta), CactusExact(delta)):
        q = pair.target[(pair.target > 0) & (pair.target <= 0.5)]
        # (1-g)/(1-q) is computed here with two roundings of numbers near one: absolute ulps.
        np.testing.assert_allclose(
            rule.shrink(q), (1 - rule.boost(q)) / (1 - q), atol=8 * EPS, rtol=0
        )


@given(rule=rules(), size=st.integers(1, 6), rows=st.integers(1, 4), data=st.data())
def test_a_batch_is_its_rows(rule, size, rows, data):
    batch = data.draw(st.lists(pairs(min_size=size, max_size=size), min_size=rows, max_size=rows))
    draft, target = (np.stack(side) for side in zip(*batch, strict=True))
    together = output_distribution(rule, draft=draft, target=target)
    cost = emission(rule, draft=draft, target=target)
    for i in range(rows):
        alone = emission(rule, draft=draft[i], target=target[i])
        # Vectorised log and sqrt may differ from their remainder loops in the last bit.
        np.testing.assert_allclose(
            together[i],
            output_distribution(rule, draft=draft[i], target=target[i]),
            atol=ABSOLUTE,
            rtol=0,
        )
        for name in ("acceptance_rate", "total_variation", "kl_bound"):
            assert getattr(cost, name)[i] == pytest.approx(
                getattr(alone, name), rel=1e-14, abs=ABSOLUTE
            )


def test_leading_axes_broadcast():
    rng = np.random.default_rng(3)
    draft, target = rng.dirichlet(np.ones(5), size=(4, 1)), rng.dirichlet(np.ones(5), size=(3,))
    rule = Cactus(0.3)
    out = output_distribution(rule, draft=draft, target=target)
    assert out.shape == (4, 3, 5)
    assert acceptance_rate(rule, draft=draft, target=target).shape == (4, 3)
    single = output_distribution(rule, draft=draft[2, 0], target=target[1])
    np.testing.assert_allclose(out[2, 1], single, atol=ABSOLUTE, rtol=0)
    assert output_distribution(rule, draft=draft[0, 0], target=target).shape == (3, 5)


@given(rule=rules(), pair=pairs())
def test_the_output_law_is_a_law_and_lies_between_draft_and_target(rule, pair):
    p, q = pair
    out = output_distribution(rule, draft=p, target=q)
    over = p > q
    assert out.sum() == pytest.approx(1, abs=ABSOLUTE)
    kept = np.minimum(p, rule.boost(q))
    # On p > q nothing is recovered, but for the rounding-sized mass of a residual that is empty.
    assert (out[over] >= kept[over]).all()
    assert (out[over] <= kept[over] + ABSOLUTE).all()
    assert (out[over] >= q[over]).all()
    assert (out[over] <= p[over] + ABSOLUTE).all()
    assert (out[~over] >= p[~over]).all()
    assert (out[~over] <= q[~over] + ABSOLUTE).all()


@given(rule=rules(), pair=pairs())
def test_the_acceptance_gained_is_the_total_variation_paid(rule, pair):
    p, q = pair
    out = output_distribution(rule, draft=p, target=q)
    cost = emission(rule, draft=p, target=q)
    plain = np.minimum(p, q).sum()
    paid = total_variation(out, q)
    assert cost.acceptance_rate == pytest.approx(np.minimum(p, rule.boost(q)).sum(), abs=ABSOLUTE)
    assert cost.acceptance_rate - plain == pytest.approx(paid, abs=ABSOLUTE)
    assert cost.total_variation == pytest.approx(paid, abs=ABSOLUTE)
    assert acceptance_rate(rule, draft=p, target=q) == cost.acceptance_rate
    assert acceptance_rate(SpeculativeSampling(), draft=p, target=q) == pytest.approx(
        1 - total_variation(p, q), abs=ABSOLUTE
    )


@given(rule=rules(), pair=pairs())
@example(rule=SpeculativeSampling(), pair=tuple(AN_ULP))
def test_the_output_law_is_no_farther_from_the_target_than_the_draft(rule, pair):
    p, q = pair
    out = output_distribution(rule, draft=p, target=q)
    # Term by term out lies between q and p. Rounding moves out(x) by an ulp of 1 at most, and the
    # relative slope of each divergence there is log(p/q) <= 700 nats or 2.
    assert kl(out, q) <= kl(p, q) + 700 * ABSOLUTE
    assert total_variation(out, q) <= total_variation(p, q) + ABSOLUTE
    hellinger = [((np.sqrt(law) - np.sqrt(q)) ** 2).sum() for law in (out, p)]
    assert hellinger[0] <= hellinger[1] + ABSOLUTE
    inside = q > 1e-100  # (p - q)^2 / q overflows below
    # That ulp may land on a token of 1e-18, a hundred times its probability: what a token of 1
    # loses is a multiple of an ulp, and must go somewhere. It counts here by its square over q.
    farthest = (np.abs(p - q) + ABSOLUTE)[inside] ** 2 / q[inside]
    assert ((out - q)[inside] ** 2 / q[inside]).sum() <= farthest.sum() * (1 + 64 * EPS)


@given(rule=rules(), pair=pairs())
@example(SpeculativeSampling(), np.array([[1e-30, 1 - 2 * EPS], [1e-30, 1.0]]))  # an ulp is lost
def test_the_kl_of_the_output_law_stays_below_its_bound(rule, pair):
    p, q = pair
    out = output_distribution(rule, draft=p, target=q)
    # Tokens with p <= q contribute <= 0, up to a lost ulp of 1 at log(1/q) <= 700 nats.
    bound = emission(rule, draft=p, target=q).kl_bound
    assert kl(out, q) <= bound * (1 + 8 * EPS) + 700 * ABSOLUTE


@given(rule=rules(), pair=pairs())
def test_the_kl_bound_is_its_formula(rule, pair):
    p, q = pair
    kept = np.minimum(p, rule.boost(q))
    counted = (p > q) & (kept > 0)
    expected = (kept[counted] * (np.log(kept[counted]) - np.log(q[counted]))).sum()
    # log p - log q cancels to an absolute ulp of 700.
    assert emission(rule, draft=p, target=q).kl_bound == pytest.approx(
        expected, rel=1e-13, abs=700 * 4 * EPS
    )


@given(pair=pairs())
def test_no_budget_is_plain_speculative_sampling_in_formula_and_law(pair):
    p, q = pair
    for rule in (SpeculativeSampling(), Cactus(0.0), CactusExact(0.0)):
        assert (rule.boost(q) == q).all()
        assert (rule.shrink(q) == 1).all()
        np.testing.assert_allclose(
            output_distribution(rule, draft=p, target=q), q, atol=ABSOLUTE, rtol=0
        )
        cost = emission(rule, draft=p, target=q)
        assert cost.total_variation == 0
        assert cost.kl_bound == 0
        assert cost.acceptance_rate == pytest.approx(np.minimum(p, q).sum(), abs=ABSOLUTE)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.0), CactusExact(0.0)], ids=repr)
def test_no_budget_accepts_exactly_the_smaller_law_however_close_the_two(rule):
    # A shortcut p (log p - log q) <= delta once took p for q where the two logs round alike.
    q = np.concatenate([np.linspace(0.001, 0.999, 999), np.logspace(-300, -3, 298)])
    for p in (q, np.nextafter(q, 1), np.nextafter(q, 0), np.minimum(2 * q, 1.0)):
        assert (rule.accepted_mass(p, q) == np.minimum(p, q)).all()


@given(rule=rules(), q=distributions(), data=st.data())
def test_a_one_hot_draft_emits_the_candidate_law_itself(rule, q, data):
    token = data.draw(st.integers(0, q.size - 1))
    out = output_distribution(rule, draft=np.eye(q.size)[token], target=q)
    g, shrink = float(rule.boost(q[token])), float(rule.shrink(q[token]))
    candidate = shrink * q
    candidate[token] = g
    np.testing.assert_allclose(out, candidate, atol=ABSOLUTE, rtol=0)
    if isinstance(rule, CactusExact) and rule.divergence == KL() and q[token] > 0:
        # Here delta does bound what is emitted. Relative errors of 8 ulp in the terms x log(x/q)
        # of the candidate, and ABSOLUTE by rounding of the law (times its slope <= 700 at q = 0).
        gained = g * np.log(g / q[token]) + (1 - g) * abs(np.log(shrink) if shrink > 0 else 0.0)
        assert kl(out, q) <= rule.delta + 8 * EPS * gained + ABSOLUTE


@given(rule=rules(), q=distributions())
def test_equal_laws_are_always_accepted(rule, q):
    assert (output_distribution(rule, draft=q, target=q) == q).all()
    cost = emission(rule, draft=q, target=q)
    assert cost.acceptance_rate == pytest.approx(1, abs=ABSOLUTE)
    assert (cost.total_variation, cost.kl_bound) == (0, 0)
    assert (rule.acceptance_probability(q, q) == 1).all()


@given(rule=rules(), p=distributions(), data=st.data())
def test_a_deterministic_target_is_matched_exactly(rule, p, data):
    token = data.draw(st.integers(0, p.size - 1))
    q = np.eye(p.size)[token]
    np.testing.assert_allclose(
        output_distribution(rule, draft=p, target=q), q, atol=ABSOLUTE, rtol=0
    )
    assert acceptance_rate(rule, draft=p, target=q) == pytest.approx(p[token], abs=ABSOLUTE)
    assert (rule.boost(q) == q).all()


@given(rule=rules(), draft_prob=target_probabilities(), target_prob=target_probabilities())
def test_acceptance_probability_and_accepted_mass_are_the_capped_ratio(
    rule, draft_prob, target_prob
):
    chance = rule.acceptance_probability(draft_prob, target_prob)
    assert 0 <= chance <= 1
    mass = rule.accepted_mass(draft_prob, target_prob)
    assert mass == min(draft_prob, rule.boost(target_prob))
    # One division and one product: two roundings, or an absolute one for a subnormal ratio.
    assert draft_prob * chance == pytest.approx(mass, rel=2 * EPS, abs=5e-324)
    if draft_prob == 0:
        assert chance == 1


@given(rule=rules())
def test_a_vocabulary_of_one_token_emits_it(rule):
    assert output_distribution(rule, draft=[1.0], target=[1.0]).tolist() == [1.0]
    cost = emission(rule, draft=[1.0], target=[1.0])
    assert (cost.acceptance_rate, cost.total_variation, cost.kl_bound) == (1, 0, 0)


def test_a_vocabulary_of_152000_tokens_keeps_every_identity():
    size = 152_000
    rng = np.random.default_rng(7)
    logits = 3 * rng.standard_normal(size)
    q = np.exp(logits) / np.exp(logits).sum()
    logits += rng.standard_normal(size)
    p = np.exp(logits) / np.exp(logits).sum()
    for rule in (SpeculativeSampling(), Cactus(0.75), CactusExact(0.75)):
        out = output_distribution(rule, draft=p, target=q)
        cost = emission(rule, draft=p, target=q)
        over = p > q
        # The worst case of a sequential sum of V entries, 3e-11; one lost token would show as 7e-6.
        tolerance = size * EPS
        assert out.sum() == pytest.approx(1, abs=tolerance)
        assert (out[over] == np.minimum(p, rule.boost(q))[over]).all()
        assert (out[~over] >= p[~over]).all()
        assert (out[~over] <= q[~over] * (1 + tolerance)).all()
        assert total_variation(out, q) == pytest.approx(cost.total_variation, abs=tolerance)
        gain = cost.acceptance_rate - np.minimum(p, q).sum()
        assert gain == pytest.approx(cost.total_variation, abs=tolerance)
        assert kl(out, q) <= cost.kl_bound + tolerance


@pytest.mark.parametrize("rule", [Cactus(1.0), CactusExact(1.0)])
def test_the_budget_of_one_candidate_does_not_bound_the_emitted_law(rule):
    q = np.full(10_000, 1e-4)
    p = np.where(np.arange(10_000) < 70, 1 / 70, 0.0)
    assert float(kl(output_distribution(rule, draft=p, target=q), q)) == pytest.approx(4.9, abs=0.1)


@given(rule=rules(), pair=pairs(min_size=2))
def test_the_residual_is_a_law_off_the_drafted_excess_or_an_error(rule, pair):
    p, q = pair
    for token in range(p.size):
        if rule.boost(q[token]) >= p[token]:
            with pytest.raises(ValueError, match="is never rejected"):
                residual_distribution(rule, token, draft=p, target=q)
            continue
        h = q * rule.shrink(q[token])
        h[token] = rule.boost(q[token])
        weights = np.maximum(h - p, 0)
        if weights.sum() == 0:  # p = q but for rounding
            with pytest.raises(ValueError, match="is never rejected"):
                residual_distribution(rule, token, draft=p, target=q)
            continue
        residual = residual_distribution(rule, token, draft=p, target=q)
        np.testing.assert_allclose(residual, weights / weights.sum(), atol=ABSOLUTE, rtol=0)
        assert residual[token] == 0
        assert (residual[p > q] == 0).all()


@given(pair=pairs(min_size=2))
def test_the_residual_of_plain_speculative_sampling_does_not_depend_on_the_token(pair):
    p, q = pair
    rejected = np.nonzero((p > q) & (np.maximum(q - p, 0).sum() > 0))[0]
    first = None
    for token in rejected:
        residual = residual_distribution(SpeculativeSampling(), int(token), draft=p, target=q)
        first = residual if first is None else first
        assert (residual == first).all()


@pytest.mark.parametrize("token", [-1, 2, 10])
def test_the_residual_of_a_token_outside_the_vocabulary_is_refused(token):
    with pytest.raises(ValueError, match=rf"token must lie in \[0, 2\), got {token}"):
        residual_distribution(Cactus(0.1), token, draft=[0.9, 0.1], target=[0.5, 0.5])


def test_the_residual_leaves_its_inputs_alone():
    draft, target = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    residual_distribution(SpeculativeSampling(), 0, draft=draft, target=target)
    output_distribution(SpeculativeSampling(), draft=draft, target=target)
    assert draft.tolist() == [0.9, 0.1]
    assert target.tolist() == [0.5, 0.5]


@given(rates=st.lists(st.floats(0.0, 1.0), min_size=0, max_size=6))
def test_block_efficiency_is_the_mean_over_all_patterns_of_acceptance(rates):
    expected = 0.0
    for passes in product([True, False], repeat=len(rates)):
        chance = np.prod([a if ok else 1 - a for a, ok in zip(rates, passes, strict=True)])
        kept = passes.index(False) if False in passes else len(passes)
        expected += chance * (kept + 1)
    # 64 products of six roundings each, of numbers up to 7.
    assert block_efficiency(rates) == pytest.approx(expected, abs=512 * EPS)


def test_block_efficiency_has_its_closed_forms_and_batches():
    assert block_efficiency([1.0] * 5) == 6
    assert block_efficiency([0.0, 1.0, 1.0]) == 1
    assert block_efficiency(np.empty((3, 0))).tolist() == [1, 1, 1]
    # The geometric sum of equal rates, to a few ulp.
    assert block_efficiency([0.8] * 9) == pytest.approx((1 - 0.8**10) / 0.2, rel=8 * EPS)
    assert block_efficiency([[0.5, 0.5], [1.0, 0.25]]).tolist() == [1.75, 2.25]


@given(
    levels=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20, unique=True),
    ratios=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=50),
)
def test_a_slot_is_the_first_level_above_a_ratio(levels, ratios):
    level = np.sort(levels)
    ratio = np.concatenate([ratios, level, [0.0, 1.0]])
    slot = emitted_module._slots(level, ratio)
    assert slot.tolist() == [sum(level <= x) for x in ratio]


def test_the_output_law_agrees_with_its_definition_where_every_level_differs():
    # Some hundred rejected tokens, of about as many levels, beside tokens of probability 0.
    p, q = np.random.default_rng(13).dirichlet(np.full(300, 0.3), 2)
    p[:20], q[10:30] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    for rule in (Cactus(1e-4), CactusExact(1e-4)):
        assert np.unique(rule.shrink(q[p > rule.boost(q)])).size > 100
        out = output_distribution(rule, draft=p, target=q)
        # Forty times the tokens of the property test above, as many times the roundings.
        np.testing.assert_allclose(
            out, literal_output_distribution(rule, p, q), atol=40 * ABSOLUTE, rtol=0
        )


def test_a_rule_that_accepts_what_the_target_excludes_is_charged_in_full():
    class HalfWay(CandidateRule):
        def boost(self, target_prob, *, xp=np):
            return (1 + target_prob) / 2

        def shrink(self, target_prob, *, xp=np):
            return 0.5 * xp.ones_like(target_prob)

    cost = emission(HalfWay(), draft=[1.0, 0.0], target=[0.0, 1.0])
    assert (cost.acceptance_rate, cost.total_variation, cost.kl_bound) == (0.5, 0.5, np.inf)
