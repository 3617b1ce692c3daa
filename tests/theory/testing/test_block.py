"""The checks of whole blocks: right samplers pass, and bounds of the checks are reached."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Lenience,
    output_distribution,
)
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import (
    CATALOGUE,
    ConformanceError,
    all_rules,
    as_sampler,
    block_distribution,
    check_by_enumeration,
    check_by_sampling,
    check_edges,
    pairs,
    samples_needed,
    specification_verifier,
)
from cactus_theory.testing._block import Block, tolerances
from tests.theory.testing.block_samplers import (
    LOSSY,
    PLAIN,
    RULES,
    argmax,
    batched,
    guarded,
    row_of,
)


@pytest.mark.parametrize(("padded", "told"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("rule", [PLAIN, LOSSY, Lenience(0.5)], ids=repr)
def test_a_right_sampler_passes_in_either_convention(rule, padded, told):
    verifier = batched(row_of(rule), padded=padded, told=told)
    found = check_by_enumeration(verifier, rule)
    assert found.reported == told
    report = check_by_sampling(as_sampler(verifier), rule, samples=8000, smallest=0.03)
    assert report.statistic < report.threshold
    assert min(report.power.values()) >= 0.999
    promised = [*report.power, *report.indistinguishable]
    usual = sum(len(mistake.usual) for mistake in CATALOGUE if mistake.scope != "drafting")
    same = {PLAIN: 2, LOSSY: 0, Lenience(0.5): 2}[rule]  # among them the rule itself
    assert len(set(promised)) == len(promised) == usual - 3 * (not told) - same


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_specification_passes_by_enumeration_and_at_the_edges(rule):
    check_by_enumeration(specification_verifier(rule), rule, cells=3)
    check_edges(guarded(specification_verifier(rule)), rule)


def test_plain_speculative_sampling_is_enumerated_exactly_and_nothing_is_left_unresolved():
    found = check_by_enumeration(specification_verifier(PLAIN), PLAIN)
    assert found.unresolved == ()
    for law, slack in zip(found.distributions, found.tolerances, strict=True):
        assert sum(law.values()) == pytest.approx(1, abs=1e-12)  # sums of multiples of 2^-15
        assert max(slack.values()) < 1e-5  # the rounding allowed, 1e-6 for each of three sides


def test_ragged_blocks_of_fractions_are_compared_exactly():
    half, third = Fraction(1, 2), Fraction(1, 3)
    laws = {
        "draft": [[[half, half], [third, 1 - third]], []],
        "target": [[[1 - third, third], [half, half], [third, 1 - third]], [[half, half]]],
    }
    found = check_by_enumeration(specification_verifier(PLAIN), PLAIN, **laws, cells=12)
    for i in range(2):
        right = block_distribution(PLAIN, draft=laws["draft"][i], target=laws["target"][i])
        assert found.distributions[i] == right
        assert sum(right.values()) == 1
        assert all(isinstance(chance, Fraction) for chance in right.values())
        assert not any(found.tolerances[i].values())
    small = row_of(PLAIN, uniform=lambda u, i: u[i] + Fraction(1, 24))
    with pytest.raises(ConformanceError):
        check_by_enumeration(batched(small), PLAIN, **laws, cells=12)


def test_an_outcome_that_cannot_occur_is_not_excused_by_the_tolerance():
    right = row_of(LOSSY)

    def rarely_twice(tokens, draft, target, u, v):
        emitted, accepted = right(tokens, draft, target, u, v)
        # Both drafts may be rejected: the grid misjudges the block by more than one cell in 512.
        rare = tokens == [0, 1] and max(*u, v) < 0.1
        return (emitted + emitted[-1:] if rare else emitted), accepted

    with pytest.raises(ConformanceError):
        check_by_enumeration(batched(rarely_twice), LOSSY)


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("row without drafts", lambda r: lambda x, p, q, u, v: ([argmax(q[0])], 0)),
        ("no chance of acceptance", lambda r: lambda x, p, q, u, v: ([*x, argmax(q[-1])], len(x))),
        ("is always accepted", lambda r: lambda x, p, q, u, v: ([argmax(q[0])], 0)),
        (
            "are not the drafted ones",
            lambda r: lambda x, p, q, u, v: ([*x[::-1], argmax(q[-1])], len(x)),
        ),
        (
            "bonus token 2, whose weight is 0",
            lambda r: row_of(r, bonus=lambda r, x, p, q, v: q.shape[1] - 1),
        ),
        (
            "7 accepted: a block has one token more",
            lambda r: lambda x, p, q, u, v: (row_of(r)(x, p, q, u, v)[0], 7),
        ),
        ("IndexError", lambda r: lambda x, p, q, u, v: ([x[0]], 0)),
    ],
)
def test_the_edge_battery_finds(words, row):
    with pytest.raises(ConformanceError, match=words):
        check_edges(guarded(batched(row(PLAIN))), PLAIN)


def test_a_boosted_rule_leaves_a_row_without_drafts_to_the_plain_target():
    target = [[0.1, 0.2, 0.7]]
    for rule in RULES:
        law = block_distribution(rule, draft=[], target=target)
        assert law == {((0,), 0): 0.1, ((1,), 0): 0.2, ((2,), 0): 0.7}

    def boosted(tokens, draft, target, u, v):
        if len(tokens):
            return row_of(LOSSY)(tokens, draft, target, u, v)
        raised = LOSSY.boost(target[0])
        return [inverse_cdf(raised, v)], 0

    with pytest.raises(ConformanceError, match="row without drafts"):
        check_edges(batched(boosted), LOSSY)
    with pytest.raises(ConformanceError, match=r"row 1 emits"):
        check_by_enumeration(batched(boosted), LOSSY)


@settings(max_examples=60)
@given(rule=all_rules(), first=pairs(min_size=3, max_size=3), second=pairs(min_size=3, max_size=3))
def test_the_law_of_a_block_has_the_output_law_at_every_position(rule, first, second):
    last = np.array([0.2, 0.3, 0.5])
    law = block_distribution(
        rule, draft=[first.draft, second.draft], target=[first.target, second.target, last]
    )
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)  # laws of test pairs sum to 1 +- 1e-9
    shown_first, shown_second, bonus_seen = np.zeros(3), np.zeros(3), np.zeros(3)
    for (emitted, accepted), chance in law.items():
        assert len(emitted) == accepted + 1
        shown_first[emitted[0]] += chance
        if accepted >= 1:
            shown_second[emitted[1]] += chance
        if accepted == 2:
            bonus_seen[emitted[2]] += chance
    kept = rule.accepted_mass(first.draft, first.target).sum()
    both = kept * rule.accepted_mass(second.draft, second.target).sum()
    laws = [
        output_distribution(rule, draft=pair.draft, target=pair.target) for pair in (first, second)
    ]
    # sums of some dozen products, of roots known to 1e-9 where a clamp solves for its level
    np.testing.assert_allclose(shown_first, laws[0], atol=1e-8)
    np.testing.assert_allclose(shown_second, kept * laws[1], atol=1e-8)
    np.testing.assert_allclose(bonus_seen, both * last, atol=1e-8)


@settings(max_examples=25)
@given(rule=all_rules(), pair=pairs(max_size=3), cells=st.integers(2, 7))
def test_a_right_sampler_stays_within_the_tolerance_of_any_grid(rule, pair, cells):
    check_by_enumeration(
        specification_verifier(rule),
        rule,
        draft=[[pair.draft], []],
        target=[[pair.target, pair.target[::-1]], [pair.target]],
        cells=cells,
    )


def test_the_tolerance_is_that_of_the_grid_and_is_reached():
    # Accepted with chance 1/3: four cells give 1/4, which is off by 1/12.
    draft, target = [[0.75, 0.25]], [[0.25, 0.75], [1.0, 0.0]]
    block = Block.of(PLAIN, draft=draft, target=target)
    slack = tolerances(block, cells=4, rounding=0.0)
    found = check_by_enumeration(
        specification_verifier(PLAIN), PLAIN, draft=[draft], target=[target], cells=4
    )
    right = block_distribution(PLAIN, draft=draft, target=target)
    assert slack[(0, 0), 1] == pytest.approx(0.75 / 12)
    assert abs(found.distributions[0][(0, 0), 1] - right[(0, 0), 1]) == pytest.approx(0.75 / 12)


def test_a_hundred_honest_runs_raise_no_alarm():
    sampler = as_sampler(specification_verifier(PLAIN))
    laws = {"draft": [[[0.5, 0.5]], []], "target": [[[0.25, 0.75], [0.5, 0.5]], [[0.5, 0.5]]]}
    for seed in range(100):
        check_by_sampling(sampler, PLAIN, **laws, samples=300, seed=seed, smallest=0.2)


def test_samples_needed_are_enough_and_not_many_more_than_enough():
    needed = samples_needed(LOSSY, smallest=0.1)
    sampler = as_sampler(specification_verifier(LOSSY))
    report = check_by_sampling(sampler, LOSSY, samples=needed, smallest=0.1)
    assert 0.999 <= min(report.power.values()) < 0.9999


def test_too_few_samples_are_refused_and_the_number_needed_is_said():
    sampler = as_sampler(specification_verifier(PLAIN))
    with pytest.raises(ValueError, match=r"100 samples detect .* it takes \d+ for 0.999"):
        check_by_sampling(sampler, PLAIN, samples=100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cells": 1}, "cells must be at least 2"),
        ({"rows": 0}, "rows at least 1"),
        ({"cells": 200}, "more than 1000000"),
        ({"draft": [[]], "target": []}, "one array for each row"),
        ({"draft": [[]]}, "both be given, or neither"),
        ({"draft": [[]], "target": [[[0.5, 0.5], [0.5, 0.5]]]}, r"draft must have shape \(k, V\)"),
        ({"draft": [[]], "target": [[[0.5, 0.4]]]}, "target must sum to 1"),
        ({"draft": [[], []], "target": [[[1.0]], [[0.5, 0.5]]]}, "one vocabulary"),
        ({"draft": [[]], "target": [0.5, 0.5]}, r"target must have shape \(k \+ 1, V\)"),
        ({"draft": [[]], "target": [[0.5, 0.5]]}, r"target must have shape \(k \+ 1, V\)"),
    ],
)
def test_bad_arguments_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        check_by_enumeration(specification_verifier(PLAIN), PLAIN, **options)


def test_a_block_with_too_many_outcomes_is_refused():
    laws = np.full((4, 20), 0.05)
    with pytest.raises(ValueError, match="160000 outcomes, more than 20000"):
        block_distribution(PLAIN, draft=laws[:3], target=laws)


def test_all_outcomes_of_a_small_block_are_listed():
    law = block_distribution(PLAIN, draft=[[0.5, 0.5]], target=[[0.25, 0.75], [0.5, 0.5]])
    assert set(law) == {((1,), 0), *(((x, y), 1) for x, y in product(range(2), repeat=2))}
