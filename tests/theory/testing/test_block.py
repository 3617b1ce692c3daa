"""The checks of whole blocks: right samplers pass, each usual mistake is rejected and named.

A wrong sampler here is the loop of one, written out below with its steps replaceable: none of them
uses the laws of the catalogue that has to name it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    Lenience,
    Mixture,
    OneLevelRecovery,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
    output_distribution,
)
from cactus_theory.specification import inverse_cdf, verify
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
from cactus_theory.testing._block_mistakes import replayed
from cactus_theory.testing._calls import outcomes

PLAIN, LOSSY = SpeculativeSampling(), Cactus(0.05)
RULES = [
    PLAIN,
    LOSSY,
    CactusExact(0.1),
    CactusSafe(0.2),
    Clamp(0.05),
    OneLevelRecovery(Cactus(0.1)),
    Lenience(0.5),
    Mixture(0.7),
    TypicalAcceptance(),
    TopKAcceptance(2),
]


def recovered(rule, tokens, draft, target, place, v):
    weights = rule.recovery_weights(tokens[place], draft[place], target[place])
    return inverse_cdf(weights if weights.sum() > 0 else target[place], v)


def bonus(rule, tokens, draft, target, v):
    return inverse_cdf(target[-1], v)


def row_of(rule, *, recovered=recovered, bonus=bonus, uniform=lambda u, i: u[i]):
    """Verifies one row: (tokens emitted, accepted)."""

    def row(tokens, draft, target, u, v):
        for i, token in enumerate(tokens):
            if not uniform(u, i) * draft[i][token] < rule.threshold(token, draft[i], target[i]):
                return [*tokens[:i], recovered(rule, tokens, draft, target, i, v)], i
        return [*tokens, bonus(rule, tokens, draft, target, v)], len(tokens)

    return row


def batched(row, *, padded=False, told=True):
    """Rows verified one by one, in either convention of output."""

    def verifier(tokens, draft, target, accept, recover):
        blocks = [row(*each) for each in zip(tokens, draft, target, accept, recover, strict=True)]
        emitted = [block for block, _ in blocks]
        if padded:
            width = 1 + max(map(len, tokens))
            emitted = np.array([[*block, *[-1] * (width - len(block))] for block in emitted])
        return emitted, [accepted for _, accepted in blocks] if told else None

    return verifier


def shown(rule, show):
    """The right row, and what `show` makes of its result."""
    right = row_of(rule)

    def row(tokens, draft, target, u, v):
        return show(list(tokens), *right(tokens, draft, target, u, v), draft, target, u)

    return row


def flags(rule, tokens, draft, target, u):
    rows = zip(u, tokens, draft, target, strict=False)
    return [a * p[x] < rule.threshold(x, p, q) for a, x, p, q in rows]


def verified_on(rule):
    def row(tokens, draft, target, u, v):
        passed = flags(rule, tokens, draft, target, u)
        emitted = [
            # another number for each, that the one given only sets in motion
            token if kept else recovered(rule, tokens, draft, target, i, v * (i + 3) * 7.3 % 1)
            for i, (token, kept) in enumerate(zip(tokens, passed, strict=True))
        ]
        return [*emitted, *([inverse_cdf(target[-1], v)] if all(passed) else [])], sum(passed)

    return row


def elsewhere(place):
    def at(rule, tokens, draft, target, i, v):
        j = place(i, len(tokens))
        return recovered(rule, {j: tokens[i]}, draft, target, j, v)

    return at


def rolled(rule, order):
    right = row_of(rule)
    return lambda tokens, draft, target, u, v: right(tokens, draft, order(target), u, v)


def argmax(law):
    return int(np.argmax(law))


def wrong_rows(rule):
    """Name of the mistake, and a row verified with it."""
    cut = slice(None, -1)
    return {
        "the count includes the recovered or bonus token": shown(
            rule, lambda x, out, n, *_: (out, n + 1)
        ),
        "the count is one too small": shown(rule, lambda x, out, n, *_: (out, max(n - 1, 0))),
        "the count goes on after the first rejection": shown(
            rule, lambda x, out, n, p, q, u: (out, sum(flags(rule, x, p, q, u)))
        ),
        "drafted tokens after the rejection are not cut": shown(
            rule, lambda x, out, n, *_: (out + x[n + 1 :], n)
        ),
        "positions after the rejection are verified on": verified_on(rule),
        "off by one: the rejected token is kept": shown(
            rule, lambda x, out, n, *_: (x[: n + 1] + out[-1:], n)
        ),
        "off by one: the last accepted token is lost": shown(
            rule, lambda x, out, n, *_: (x[: max(n - 1, 0)] + out[-1:], n)
        ),
        "no bonus token": shown(
            rule, lambda x, out, n, *_: (out[cut] if n == len(x) > 0 else out, n)
        ),
        "no token after a rejection": shown(
            rule, lambda x, out, n, *_: (out if n == len(x) else out[cut], n)
        ),
        "bonus drawn from the draft at the last position": row_of(
            rule, bonus=lambda r, x, p, q, v: inverse_cdf(p[-1] if len(x) else q[-1], v)
        ),
        "bonus drawn from the target one position early": row_of(
            rule, bonus=lambda r, x, p, q, v: inverse_cdf(q[max(len(x) - 1, 0)], v)
        ),
        "bonus drawn from a residual": row_of(
            rule,
            bonus=lambda r, x, p, q, v: inverse_cdf(
                np.maximum(q[-1] - p[-1], 0) if len(x) else q[-1], v
            ),
        ),
        "bonus is the target's argmax": row_of(
            rule, bonus=lambda r, x, p, q, v: argmax(q[-1]) if len(x) else inverse_cdf(q[-1], v)
        ),
        "residual of the first position": row_of(rule, recovered=elsewhere(lambda i, k: 0)),
        "residual of the last position": row_of(rule, recovered=elsewhere(lambda i, k: k - 1)),
        "residual of the next position": row_of(
            rule, recovered=elsewhere(lambda i, k: min(i + 1, k - 1))
        ),
        "residual of the position before": row_of(
            rule, recovered=elsewhere(lambda i, k: max(i - 1, 0))
        ),
        "target one position late": rolled(rule, lambda q: q[[0, *range(len(q) - 1)]]),
        "target one position early": rolled(rule, lambda q: q[[*range(1, len(q)), len(q) - 1]]),
        "one uniform for the whole block": row_of(rule, uniform=lambda u, i: u[0]),
        "recovery from the target": row_of(
            rule, recovered=lambda r, x, p, q, i, v: inverse_cdf(q[i], v)
        ),
        "everything accepted (the draft itself)": row_of(rule, uniform=lambda u, i: -1.0),
    } | ({"plain speculative sampling (no boost)": row_of(PLAIN)} if rule != PLAIN else {})


def reused(rule):
    def row(tokens, draft, target, u, v):
        emitted, n = row_of(rule)(tokens, draft, target, u, v)
        if n < len(tokens):
            emitted[-1] = recovered(rule, tokens, draft, target, n, u[n])
        return emitted, n

    return row


REUSED = "the uniform that rejected also draws the recovered token"
MISTAKES = [(name, PLAIN, row) for name, row in wrong_rows(PLAIN).items()]
MISTAKES += [(name, LOSSY, row) for name, row in wrong_rows(LOSSY).items()]
MISTAKES += [(REUSED, rule, reused(rule)) for rule in (PLAIN, LOSSY)]
COUNTS = {name for name, _, _ in MISTAKES if name.startswith("the count ")}
NAMES = [f"{rule!r}, {name}" for name, rule, _ in MISTAKES]
OF_PLAIN = [item for item in MISTAKES if item[1] == PLAIN or "no boost" in item[0]]


def test_every_mistake_of_the_catalogue_is_made_here():
    of_blocks = {mistake.name for mistake in CATALOGUE if mistake.scope == "block"}
    assert of_blocks < {name for name, _, _ in MISTAKES}


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


def guarded(verifier):
    """The specification, which takes its laws as valid, behind a check that they are."""

    def checked(tokens, draft, target, accept, recover):
        if not all(np.isfinite(row).all() for row in target):
            raise ValueError("target is not finite")
        return verifier(tokens, draft, target, accept, recover)

    return checked


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


@pytest.mark.parametrize(("name", "rule", "row"), MISTAKES, ids=NAMES)
def test_each_mistake_is_rejected_by_enumeration_and_named(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_enumeration(batched(row), rule)
    assert name in str(caught.value).split("it matches ")[1]


@pytest.mark.parametrize(("name", "rule", "row"), OF_PLAIN)
def test_each_mistake_is_rejected_by_counts_and_named(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_sampling(as_sampler(batched(row)), rule, samples=2500, smallest=0.1)
    assert name in str(caught.value).split("it matches ")[1]
    assert "false-alarm level 1e-06" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "rule", "row"), [item for item in OF_PLAIN if item[0] not in COUNTS]
)
def test_each_mistake_of_the_tokens_is_named_though_no_count_is_told(name, rule, row):
    with pytest.raises(ConformanceError, match="it matches") as caught:
        check_by_enumeration(batched(row, told=False), rule)
    assert name in str(caught.value).split("it matches ")[1]


@pytest.mark.parametrize(
    ("rule", "expected", "words"),
    [
        (Mixture(0.5), PLAIN, r": it matches mixture w = 0\.[45]"),
        (Cactus(0.3), LOSSY, r": it matches Cactus, delta = 0\.[23]"),
        (
            (Mixture(0.5), PLAIN),
            PLAIN,
            "the first token of row 0 is wrong by itself: it matches mix",
        ),
    ],
)
def test_a_mistake_at_one_position_is_named_with_its_parameter(rule, expected, words):
    def verifier(tokens, *rest):
        rows = zip(tokens, *rest, strict=True)
        return zip(*(block(*row) for row in rows), strict=True)

    def block(x, p, q, u, v):
        rules = rule[: len(x)] if isinstance(rule, tuple) else [rule] * len(x)
        return verify(rules, x, draft=p, target=q, accept_uniforms=u, recover_uniform=v)

    with pytest.raises(ConformanceError, match=words):
        check_by_enumeration(verifier, expected)
    with pytest.raises(ConformanceError, match=words):
        check_by_sampling(as_sampler(verifier), expected, samples=5000, smallest=0.1)


def test_a_law_that_nothing_explains_is_not_given_a_name():
    def odd(tokens, draft, target, accept, recover):
        return [[2] if len(row) else [argmax(q[0])] for row, q in zip(tokens, target)], None  # noqa: B905

    with pytest.raises(ConformanceError, match=r"nothing|wrong by itself"):
        check_by_enumeration(odd, PLAIN)


def test_rows_that_read_the_uniforms_of_another_row_are_found():
    right = specification_verifier(PLAIN)

    def first_for_all(tokens, draft, target, accept, recover):
        return right(tokens, draft, target, accept, [recover[0]] * len(tokens))

    with pytest.raises(
        ConformanceError, match="it reads the distributions or uniforms of other rows"
    ):
        check_by_enumeration(first_for_all, PLAIN)


def test_rows_that_share_their_random_numbers_are_found_by_counts():
    right = specification_verifier(PLAIN)

    def one_stream(tokens, draft, target, seed):
        u, v = np.random.default_rng(seed).random((2, 4))
        accept = [u[: len(row)] for row in tokens]
        return right(tokens, draft, target, accept, [v[0]] * len(tokens))

    with pytest.raises(ConformanceError, match="rows of one call share their random numbers"):
        check_by_sampling(one_stream, PLAIN, samples=5000, smallest=0.1)


def test_rows_offset_by_a_row_without_drafts_are_found():
    right = specification_verifier(PLAIN)

    def packed(tokens, draft, target, accept, recover):
        """The k-th row of all laws that are drafted from, as if every row had as many."""
        flat = np.concatenate([*target])
        longest = max(len(row) for row in tokens) + 1
        shifted = [
            flat[min(i * longest, len(flat) - len(q)) :][: len(q)] for i, q in enumerate(target)
        ]
        return right(tokens, draft, shifted, accept, recover)

    with pytest.raises(ConformanceError, match="other rows"):
        check_by_enumeration(packed, PLAIN)
    with pytest.raises(ConformanceError):
        check_edges(packed, PLAIN)


def test_a_verifier_with_random_numbers_of_its_own_is_sent_to_the_other_check():
    rng = np.random.default_rng(0)
    sampler = as_sampler(specification_verifier(PLAIN))

    def own(tokens, draft, target, accept, recover):
        return sampler(tokens, draft, target, int(rng.integers(1000)))

    with pytest.raises(ConformanceError, match="check it by check_by_sampling"):
        check_by_enumeration(own, PLAIN)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([[0], [1]], r"returns \(emitted, accepted\)"),
        (([[0]], None), "2 rows went in; 1 rows of tokens and none accepted counts came out"),
        (([[0], [1]], [0]), "1 accepted counts came out"),
        (([[0, -1, 1], [1]], None), r"row 0 has tokens after its padding of -1"),
        (([[0], [7]], None), "row 1 emits 7, outside a vocabulary of 2"),
        (([[0], [-2]], None), "row 1 emits -2, outside"),
    ],
)
def test_what_is_no_batch_of_blocks_is_said_so(returned, words):
    with pytest.raises(ConformanceError, match=words):
        outcomes(returned, rows=2, vocabulary=2)


def test_an_empty_row_is_a_block_without_a_token_and_is_rejected():
    right = specification_verifier(PLAIN)

    def silent(tokens, *rest):
        emitted, accepted = right(tokens, *rest)
        return [row if len(x) else [] for row, x in zip(emitted, tokens, strict=True)], accepted

    for check in (check_by_enumeration, check_edges):
        with pytest.raises(ConformanceError, match=r"\[\]"):
            check(silent, PLAIN)


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


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_product_over_positions_is_the_replay_of_all_drafts_and_decisions(rule):
    laws = np.array([[0.5, 0.25, 0.25], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    block = Block.of(rule, draft=laws[[0, 2]], target=laws[[1, 0, 2]])
    product, replay = block.distribution(), replayed(block)
    assert set(product) == set(replay)
    assert product == pytest.approx(replay, abs=1e-15)  # sums of a few products


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
