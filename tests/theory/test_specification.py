"""The executable verifier, enumerated: its emitted law against the formula, and mutants rejected.

Nothing is sampled. The kit enumerates it: exactly, for rational laws and a grid fine enough to
resolve them; to the grid otherwise. The same checks must reject each mutant.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    CandidateRule,
    Rule,
    SpeculativeSampling,
    acceptance_rate,
    block_efficiency,
    output_distribution,
)
from cactus_theory.specification import inverse_cdf, verify
from cactus_theory.testing import check_by_enumeration, pairs, rules, specification_verifier


class Remembered(CandidateRule):
    """A rule that solves each root once; an enumeration asks for the same few again and again."""

    def __init__(self, rule: Rule) -> None:
        self._boost = lru_cache(None)(rule.boost)
        self._shrink = lru_cache(None)(rule.shrink)

    def boost(self, target_prob, *, xp=np):
        return self._boost(target_prob)

    def shrink(self, target_prob, *, xp=np):
        return self._shrink(target_prob)


def as_fractions(*numerators: int) -> np.ndarray:
    total = sum(numerators)
    return np.array([Fraction(n, total) for n in numerators], dtype=object)


def of_blocks(verifier, rule):
    """A verifier of single rows in the form that the kit takes."""

    def blocks(tokens, draft, target, accept, recover):
        rows = zip(tokens, draft, target, accept, recover, strict=True)
        found = [
            verifier(rule, x, draft=p, target=q, accept_uniforms=u, recover_uniform=v)
            for x, p, q, u, v in rows
        ]
        return [emitted for emitted, _ in found], [accepted for _, accepted in found]

    return blocks


# The checks, each for any verifier, so that a mutant meets the very assertion the real one passes.


def check_rational_speculative_sampling(verifier, p, q, cells=24):
    """Exactly by midpoints; on a threshold, the end of its cell, a token is rejected.

    Whether the grid was fine enough to be exact.
    """
    rule = SpeculativeSampling()
    found = check_by_enumeration(of_blocks(verifier, rule), rule, draft=p, target=q, cells=cells)
    if any(found.tolerances[0].values()):
        return False
    assert list(found.first_token()) == list(q)
    for token in np.flatnonzero(p > q).tolist():
        for recover in (Fraction(0), Fraction(1, 2)):
            emitted, accepted = verifier(
                rule,
                [token],
                draft=p[None],
                target=np.stack([q, q]),
                accept_uniforms=[q[token] / p[token]],
                recover_uniform=recover,
            )
            assert accepted == 0
            assert q[emitted[0]] > p[emitted[0]]
    return True


def check_law_to_one_cell(verifier, rule, p, q):
    return check_by_enumeration(
        of_blocks(verifier, Remembered(rule)), rule, draft=p, target=q, cells=48
    )


def check_strictness(verifier):
    for rule in (SpeculativeSampling(), Cactus(1.0), CactusExact(1.0)):
        emitted, accepted = verifier(
            rule,
            [0],
            draft=np.array([[0.5, 0.5]]),
            target=np.array([[0.0, 1.0], [0.5, 0.5]]),
            accept_uniforms=[0.0],
            recover_uniform=0.0,
        )
        assert (emitted, accepted) == ([1], 0)


RATIONAL_PAIRS = [
    (as_fractions(3, 1), as_fractions(1, 1)),
    (as_fractions(1, 2, 3), as_fractions(3, 2, 1)),
    (as_fractions(2, 2, 0), as_fractions(0, 1, 3)),
    (as_fractions(1, 0, 0), as_fractions(1, 1, 1)),
    (as_fractions(0, 1, 1), as_fractions(1, 0, 0)),
    (as_fractions(1, 1, 1, 3), as_fractions(2, 2, 1, 1)),
]
FLOAT_PAIRS = [
    (np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])),
    (np.array([0.9, 0.1, 0.0]), np.array([0.1, 0.05, 0.85])),
    (np.array([0.6, 0.4, 0.0]), np.array([0.15, 0.25, 0.6])),
]
BOOSTING = [Cactus(0.1), Cactus(0.75), CactusExact(0.1), CactusExact(0.75)]


@pytest.mark.parametrize(("p", "q"), RATIONAL_PAIRS)
def test_speculative_sampling_emits_the_target_exactly(p, q):
    assert check_rational_speculative_sampling(verify, p, q)


@settings(max_examples=25)
@given(
    numerators=st.integers(2, 3).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any),
            min_size=2,
            max_size=2,
        )
    )
)
def test_speculative_sampling_emits_any_rational_target_exactly(numerators):
    p, q = (as_fractions(*row) for row in numerators)
    assume(check_rational_speculative_sampling(verify, p, q, cells=36))


@pytest.mark.parametrize("rule", BOOSTING, ids=repr)
@pytest.mark.parametrize(("p", "q"), FLOAT_PAIRS, ids=["spread", "steep", "cut"])
def test_cactus_emits_its_output_law_to_one_grid_cell(rule, p, q):
    check_law_to_one_cell(verify, rule, p, q)


def test_a_first_token_of_no_target_probability_is_rejected_even_by_a_uniform_of_zero():
    check_strictness(verify)


def test_the_block_of_two_emits_the_target_at_every_position_exactly():
    draft = np.stack([as_fractions(3, 1), as_fractions(1, 2)])
    target = np.stack([as_fractions(1, 1), as_fractions(2, 1), as_fractions(1, 3)])
    rule = SpeculativeSampling()
    found = check_by_enumeration(  # q/p is 2/3 and 1/2 on the excess; 1/2, 2/3 and 1/4 are borders
        specification_verifier(rule), rule, draft=[draft], target=[target], cells=12
    )
    (outcomes,) = found.distributions
    assert sum(outcomes.values()) == 1
    assert list(found.first_token()) == list(target[0])
    overlap = np.minimum(draft, target[:2])
    for x, y in product(range(2), repeat=2):
        pair = sum(
            chance
            for (emitted, accepted), chance in outcomes.items()
            if accepted >= 1 and tuple(emitted[:2]) == (x, y)
        )
        assert pair == overlap[0][x] * target[1][y]
    for z in range(2):
        bonus = sum(c for (emitted, n), c in outcomes.items() if n == 2 and emitted[2] == z)
        assert bonus == overlap[0].sum() * overlap[1].sum() * target[2][z]
    mean = sum(chance * len(emitted) for (emitted, _), chance in outcomes.items())
    assert mean == 1 + overlap[0].sum() + overlap[0].sum() * overlap[1].sum()
    # The last rounding of a float.
    rates = [float(row.sum()) for row in overlap]
    assert block_efficiency(rates) == pytest.approx(float(mean), rel=1e-15)


@pytest.mark.parametrize("rule", [Cactus(0.2), CactusExact(0.2)], ids=repr)
def test_the_block_of_two_follows_the_output_law_at_both_positions(rule):
    draft = np.array([[0.8, 0.2], [0.3, 0.7]])
    target = np.array([[0.4, 0.6], [0.7, 0.3], [0.5, 0.5]])
    cells = 16
    found = check_by_enumeration(
        of_blocks(verify, Remembered(rule)), rule, draft=[draft], target=[target], cells=cells
    )
    (outcomes,) = found.distributions
    laws = [output_distribution(rule, draft=draft[i], target=target[i]) for i in range(2)]
    rates = [float(acceptance_rate(rule, draft=draft[i], target=target[i])) for i in range(2)]
    # Acceptance is misplaced by half a cell per drafted token, a recovered token by one more.
    np.testing.assert_allclose(found.first_token(), laws[0], rtol=0, atol=1.5 / cells)
    passed = sum(chance for (_, accepted), chance in outcomes.items() if accepted >= 1)
    assert passed == pytest.approx(rates[0], abs=0.5 / cells)
    second = np.zeros(2)
    for (emitted, accepted), chance in outcomes.items():
        if accepted >= 1:
            second[emitted[1]] += chance / passed
    np.testing.assert_allclose(second, laws[1], rtol=0, atol=1.5 / cells)
    mean = sum(chance * len(emitted) for (emitted, _), chance in outcomes.items())
    # d(1 + a + a b) <= 3 half cells.
    assert mean == pytest.approx(block_efficiency(rates), abs=1.5 / cells)


@given(rule=rules(), pair=pairs(), data=st.data())
def test_no_token_outside_the_target_is_ever_emitted(rule, pair, data):
    p, q = pair
    token = data.draw(st.sampled_from(np.nonzero(p)[0].tolist()))
    uniform = st.one_of(
        st.sampled_from([0.0, 0.5, 1 - 2.0**-53]), st.floats(0, 1, exclude_max=True)
    )
    emitted, accepted = verify(
        rule,
        [token],
        draft=p[None],
        target=np.stack([q, q]),
        accept_uniforms=[data.draw(uniform)],
        recover_uniform=data.draw(uniform),
    )
    assert len(emitted) == accepted + 1
    assert (q[emitted] > 0).all()
    if accepted:
        assert emitted[0] == token
    elif np.maximum(rule.shrink(q[token]) * q - p, 0).sum() > 0:  # not emptied by rounding
        assert q[emitted[0]] > p[emitted[0]]  # the residual lives where the draft falls short


def test_an_empty_draft_emits_a_token_of_the_target():
    target = np.array([[0.25, 0.75]])
    for uniform, token in ((0.2, 0), (0.25, 1)):
        assert verify(
            Cactus(1.0),
            [],
            draft=np.empty((0, 2)),
            target=target,
            accept_uniforms=[],
            recover_uniform=uniform,
        ) == ([token], 0)


@pytest.mark.parametrize(
    ("p", "q", "token"),
    [
        ([0.5 + 2.0**-53, 0.5], [0.5, 0.5], 0),
        ([1.0, 1e-17], [1.0, 0.0], 1),  # the drafted token once stood, outside the target's support
    ],
)
def test_a_residual_that_rounds_to_nothing_still_emits_a_token_of_the_target(p, q, token):
    for rule in (SpeculativeSampling(), Cactus(0.0), CactusExact(0.0)):
        emitted, accepted = verify(
            rule,
            [token],
            draft=np.array([p]),
            target=np.array([q, q]),
            accept_uniforms=[1 - 2.0**-53],
            recover_uniform=0.0,
        )
        assert len(emitted) == accepted + 1
        assert all(q[x] > 0 for x in emitted)
        assert (output_distribution(rule, draft=p, target=q)[np.array(q) == 0] == 0).all()


def test_the_inverse_distribution_function_never_draws_a_weight_of_zero():
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    almost_one = 1 - 2.0**-53
    assert [inverse_cdf(weights, u) for u in (0.0, 0.24, 0.25, almost_one)] == [1, 1, 3, 3]
    # A threshold that rounds up to the total is past every sum: the last positive weight is meant.
    awkward = np.array([0.1, 0.2, 0.3, 0.0]) * 2.0**-1070
    assert inverse_cdf(awkward, almost_one) == 2
    assert inverse_cdf(np.array([5e-324, 0.0]), almost_one) == 0
    assert inverse_cdf(np.array([1.0]), 0.0) == 0


@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_the_inverse_distribution_function_draws_in_proportion_exactly(weights):
    total = sum(weights)
    for offset in (Fraction(0), Fraction(1, 2)):  # left ends and midpoints
        drawn = Counter(
            inverse_cdf(as_fractions(*weights), u)
            for u in [(i + offset) / total for i in range(total)]
        )
        assert [drawn[x] for x in range(len(weights))] == weights


# Mutants: one-line changes of verify.


def variant(*, accepts=None, residual=None, invert=inverse_cdf):
    """verify with its acceptance test, residual weights or inversion replaced."""

    def usual_accepts(rule, u, p, q):
        return u * p < rule.boost(q)

    def usual_residual(rule, token, p, q):
        weights = np.maximum(rule.shrink(q[token]) * q - p, 0)
        weights[token] = 0
        return weights

    passes, left = accepts or usual_accepts, residual or usual_residual

    def verifier(rule, tokens, *, draft, target, accept_uniforms, recover_uniform):
        kept: list[int] = []
        for i, (token, u) in enumerate(zip(tokens, accept_uniforms, strict=True)):
            if not passes(rule, u, draft[i][token], target[i][token]):
                weights = left(rule, token, draft[i], target[i])
                if weights.sum() > 0:
                    return [*kept, invert(weights, recover_uniform)], i
            kept.append(token)
        return [*kept, invert(target[len(kept)], recover_uniform)], len(kept)

    return verifier


def inverse_cdf_not_strict(weights, uniform):
    cumulative = np.cumsum(weights)
    return int(np.nonzero(cumulative >= uniform * cumulative[-1])[0][0])


UNRESCALED = variant(residual=lambda rule, token, p, q: np.maximum(q - p, 0))
WITHOUT_BOOST = variant(accepts=lambda rule, u, p, q: u * p < q)
NOT_STRICT = variant(accepts=lambda rule, u, p, q: u * p <= rule.boost(q))
FROM_TARGET = variant(residual=lambda rule, token, p, q: q)
WITHOUT_DRAFT = variant(accepts=lambda rule, u, p, q: u < rule.boost(q))
LOOSE_INVERSE = variant(invert=inverse_cdf_not_strict)


def test_the_unmutated_variant_passes_every_check():
    for p, q in RATIONAL_PAIRS:
        check_rational_speculative_sampling(variant(), p, q)
    check_law_to_one_cell(variant(), Cactus(0.75), *FLOAT_PAIRS[2])
    check_strictness(variant())


# On this pair Cactus's residual and [q - p]_+ differ by far more than a cell: the tokens that are
# under-drafted have ratios p/q of 0 and 0.9, and the shrink puts the second one out of reach.
TELLING = (np.array([0.6, 0.36, 0.04]), np.array([0.2, 0.4, 0.4]))


@pytest.mark.parametrize("rule", [Cactus(0.1), CactusExact(0.1)], ids=repr)
@pytest.mark.parametrize(
    "mutant",
    [UNRESCALED, WITHOUT_BOOST, FROM_TARGET, WITHOUT_DRAFT],
    ids=["residual not rescaled", "no boost", "recovery from the target", "draft ignored"],
)
def test_the_grid_check_rejects_a_wrong_law(mutant, rule):
    check_law_to_one_cell(verify, rule, *TELLING)
    with pytest.raises(AssertionError):
        check_law_to_one_cell(mutant, rule, *TELLING)


@pytest.mark.parametrize(
    "mutant", [NOT_STRICT, LOOSE_INVERSE, FROM_TARGET, WITHOUT_DRAFT], ids=lambda _: "mutant"
)
def test_the_exact_check_rejects_a_wrong_law(mutant):
    def all_pass():
        for p, q in RATIONAL_PAIRS:
            check_rational_speculative_sampling(mutant, p, q)

    with pytest.raises(AssertionError):
        all_pass()


def test_the_strictness_check_rejects_a_weak_inequality():
    with pytest.raises(AssertionError):
        check_strictness(NOT_STRICT)
