"""Likelihoods of texts against decoders whose every draft is followed."""

from __future__ import annotations

import tracemalloc
from itertools import product
from math import log, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    Clamp,
    SpeculativeSampling,
    TopKAcceptance,
    kl,
    output_distribution,
    prefix_log_likelihood,
    text_log_likelihood,
    token_probabilities,
    total_variation,
)
from cactus_theory._forward import EXACT, prefix_totals
from cactus_theory.testing import pairs
from tests.theory.small_trees import (
    OUTCOMES,
    RULES,
    Bent,
    along,
    block_outcomes,
    by_text,
    decode,
    node,
    of_tokens,
    rational_tree,
    target_probability,
    tree,
)

# Texts of at most 5 tokens are sums of some hundred products of a dozen roundings each, of numbers
# known to an ulp of 1; the logarithms of the smallest of them, about 1e-6, multiply that by 1e6.
ROUNDING = 1e-9


def exact_prefixes(nodes, text, drafts, *, verification="token"):
    """Chances that the text begins with its first tokens, by the recursion, in Fractions."""
    columns = {name: of_tokens(nodes, text, name) for name in ("draft", "target", "emitted")}
    totals = prefix_totals(
        **columns,
        accepted=of_tokens(nodes, text, "kept"),
        drafts=np.array(drafts),
        block=verification == "block",
        numbers=EXACT,
    )
    return list(totals)


def shortened(num_drafts, length):
    return lambda text: [
        max(min(num_drafts(text[:i]), length - i - 1), 0) for i in range(len(text))
    ]


def log_likelihood(nodes, text, **settings):
    rows = {"draft": along(nodes, text, "draft"), "target": along(nodes, text, "target")}
    return text_log_likelihood(text, **rows, **settings)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize(("size", "length", "k"), [(2, 4, 1), (2, 5, 2), (2, 5, 3), (3, 4, 2)])
@pytest.mark.parametrize("eos", [None, 0])
def test_the_recursion_is_the_sum_over_all_paths_exactly(size, length, k, eos, verification):
    drafts, several = shortened(lambda text: k, length), 0
    for seed in range(2):
        nodes = rational_tree(np.random.default_rng(seed), Bent(), size, length)
        outcomes = OUTCOMES[verification]
        paths = decode(nodes, length, num_drafts=lambda text: k, outcomes=outcomes, eos=eos)
        texts = by_text(paths)
        assert sum(texts.values()) == 1
        several += len(paths) - len(texts)
        for text in product(range(size), repeat=length):
            found = exact_prefixes(nodes, text, drafts(text), verification=verification)
            ended = text.index(eos) + 1 if eos in text else length
            for i in range(1, ended + 1):
                begins = sum(p for other, p in texts.items() if other[:i] == text[:i])
                assert found[i - 1] == begins
    assert several > 0 or eos is not None  # or there is nothing to sum


@pytest.mark.parametrize("verification", ["token", "block"])
def test_the_number_of_drafts_may_depend_on_the_text_before_the_block(verification):
    rng = np.random.default_rng(7)
    length, num_drafts = 4, lambda text: (sum(text) + len(text)) % 3
    nodes = rational_tree(rng, Bent(), 2, length)
    paths = decode(nodes, length, num_drafts=num_drafts, outcomes=OUTCOMES[verification])
    texts = by_text(paths)
    drafts = shortened(num_drafts, length)
    for text in product(range(2), repeat=length):
        found = exact_prefixes(nodes, text, drafts(text), verification=verification)
        assert found[-1] == texts.get(text, 0)
        by_log = log_likelihood(
            {
                prefix: node(Bent(), *(row.astype(float) for row in n[:2]))
                for prefix, n in nodes.items()
            },
            text,
            rule=Bent(),
            num_draft_tokens=[num_drafts(text[:i]) for i in range(length)],
            max_new_tokens=length,
            verification=verification,
        )
        assert np.exp(by_log) == pytest.approx(float(found[-1]), rel=ROUNDING, abs=1e-15)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_likelihoods_of_all_texts_are_the_decoder_s_and_sum_to_one(rule, k):
    rng = np.random.default_rng(3)
    length = 4
    nodes = tree(rng, rule, 3, length)
    texts = list(product(range(3), repeat=length))
    expected = by_text(decode(nodes, length, num_drafts=lambda text: k))
    rows = [np.array([along(nodes, text, name) for text in texts]) for name in ("draft", "target")]
    found = np.exp(
        text_log_likelihood(
            texts,
            draft=rows[0],
            target=rows[1],
            rule=rule,
            num_draft_tokens=k,
            max_new_tokens=length,
        )
    )
    assert found.sum() == pytest.approx(1, abs=ROUNDING)
    np.testing.assert_allclose(
        found, [expected.get(text, 0) for text in texts], rtol=ROUNDING, atol=1e-15
    )


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.ordered], ids=repr)
def test_likelihoods_under_block_verification_are_the_decoder_s_and_sum_to_one(rule):
    rng = np.random.default_rng(4)
    length, k = 4, 2
    nodes = tree(rng, rule, 3, length)
    expected = by_text(decode(nodes, length, num_drafts=lambda text: k, outcomes=block_outcomes))
    settings = {"rule": rule, "num_draft_tokens": k, "max_new_tokens": length}
    found = {
        text: np.exp(log_likelihood(nodes, text, **settings, verification="block"))
        for text in product(range(3), repeat=length)
    }
    assert sum(found.values()) == pytest.approx(1, abs=ROUNDING)
    for text, chance in found.items():
        assert chance == pytest.approx(expected.get(text, 0), rel=ROUNDING, abs=1e-15)


def test_block_verification_changes_the_distribution_of_texts_of_a_lossy_rule_only():
    for rule, differs in ((Cactus(0.05), True), (SpeculativeSampling(), False)):
        nodes = tree(np.random.default_rng(17), rule, 3, 4)
        settings = {"rule": rule, "num_draft_tokens": 2, "max_new_tokens": 4}
        token, block = (
            [
                np.exp(log_likelihood(nodes, text, **settings, verification=verification))
                for text in product(range(3), repeat=4)
            ]
            for verification in OUTCOMES
        )
        distance = np.abs(np.array(token) - block).sum()
        assert distance > 1e-3 if differs else distance < ROUNDING


def test_texts_that_end_early_have_the_probability_of_their_own_tokens():
    rng = np.random.default_rng(5)
    rule, length, k, eos = Cactus(0.3), 4, 2, 1
    nodes = tree(rng, rule, 3, length)
    expected = by_text(decode(nodes, length, num_drafts=lambda text: k, eos=eos))
    assert {len(text) for text in expected} == {1, 2, 3, 4}
    settings = {"rule": rule, "num_draft_tokens": k, "max_new_tokens": length}
    found = {text: float(np.exp(log_likelihood(nodes, text, **settings))) for text in expected}
    assert sum(found.values()) == pytest.approx(1, abs=ROUNDING)
    assert found == pytest.approx(expected, rel=ROUNDING)

    padded = np.full((len(expected), length), 0)
    rows = np.full((2, len(expected), length, 3), np.nan)  # not looked at after the end
    for i, text in enumerate(expected):
        padded[i, : len(text)] = text
        rows[0, i, : len(text)] = along(nodes, text, "draft")
        rows[1, i, : len(text)] = along(nodes, text, "target")
    together = text_log_likelihood(
        padded, draft=rows[0], target=rows[1], lengths=[len(text) for text in expected], **settings
    )
    assert np.exp(together) == pytest.approx(list(expected.values()), rel=ROUNDING)


def test_the_last_blocks_are_shortened_as_the_decoder_shortens_them():
    rng = np.random.default_rng(6)
    rule, length, k = Cactus(0.5), 4, 3
    nodes = tree(rng, rule, 2, 2 * length)
    settings = {"rule": rule, "num_draft_tokens": k}
    changed = 0.0
    far = by_text(decode(nodes, length + k, num_drafts=lambda text: k))
    for text in product(range(2), repeat=length):
        begins = sum(p for other, p in far.items() if other[:length] == text)
        unlimited = np.exp(log_likelihood(nodes, text, **settings, max_new_tokens=None))
        assert unlimited == pytest.approx(begins, rel=ROUNDING)
        limited = np.exp(log_likelihood(nodes, text, **settings, max_new_tokens=length))
        changed += abs(limited - begins)
    assert changed > 0.01


def test_differences_of_prefixes_are_the_decoder_s_next_token_probabilities():
    rng = np.random.default_rng(8)
    rule, length, k = Clamp(0.2), 4, 2
    nodes = tree(rng, rule, 2, length)
    paths = by_text(decode(nodes, length, num_drafts=lambda text: k))
    text = (0, 1, 1, 0)
    found = token_probabilities(
        text, draft=along(nodes, text, "draft"), target=along(nodes, text, "target"), rule=rule
    )
    logs = prefix_log_likelihood(found, num_draft_tokens=k, max_new_tokens=length)
    for i in range(1, length):
        before, after = (
            sum(p for other, p in paths.items() if other[:n] == text[:n]) for n in (i, i + 1)
        )
        assert np.exp(logs[i] - logs[i - 1]) == pytest.approx(after / before, rel=ROUNDING)


def test_the_ledger_of_a_text_exceeds_its_divergence():
    rng = np.random.default_rng(1)
    for rule in (Cactus(0.2), Clamp(0.1)):
        for outcomes in OUTCOMES.values():
            nodes = tree(rng, rule, 3, 5)
            paths = decode(nodes, 5, num_drafts=lambda text: 2, outcomes=outcomes)
            texts = by_text(paths)
            true = sum(p * log(p / target_probability(nodes, text)) for text, p in texts.items())
            charged = sum(
                chance * kl(nodes[path.text[:i]].emitted, nodes[path.text[:i]].target)
                for path, chance in paths.items()
                for i in range(5)
                if path.verified[i]
            )
            assert 0.01 < true < charged < 1.2 * true


def test_what_a_position_costs_is_told_beside_its_probabilities():
    p, q = np.array([[0.6, 0.3, 0.1]]), np.array([[0.3, 0.4, 0.3]])
    out = output_distribution(Cactus(0.1), draft=p, target=q)
    found = token_probabilities([1], draft=p, target=q, rule=Cactus(0.1))
    assert found.kl == kl(out, q)
    assert found.total_variation == total_variation(out, q)
    assert (found.draft, found.target, found.emitted) == (p[0, 1], q[0, 1], out[0, 1])
    assert found.accepted == p[0, 1]


@settings(max_examples=25)
@given(data=st.data(), k=st.integers(0, 4), length=st.integers(1, 4))
def test_a_budget_of_zero_gives_the_target_s_own_likelihood(data, k, length):
    rows = data.draw(st.lists(pairs(min_size=3, max_size=3), min_size=length, max_size=length))
    draft, target = np.array(rows).swapaxes(0, 1)
    text = data.draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    chance = prod(target[i, x] for i, x in enumerate(text))
    for verification in ("token", "block"):
        logs = text_log_likelihood(
            text,
            draft=draft,
            target=target,
            rule=Cactus(0.0),
            num_draft_tokens=k,
            max_new_tokens=length,
            verification=verification,
        )
        # out is q up to an ulp of 1, which is what the smallest probabilities here are
        assert np.exp(logs) == pytest.approx(chance, rel=ROUNDING, abs=1e-14)


@pytest.mark.parametrize("verification", ["token", "block"])
def test_limits(verification):
    settings = {"num_draft_tokens": 2, "max_new_tokens": 3, "verification": verification}
    q = np.array([[0.2, 0.3, 0.5]] * 3)
    target = float(np.log(0.2 * 0.3 * 0.5))

    def found(draft, text=(0, 1, 2), rule=RULES[1], target=q):
        return text_log_likelihood(text, draft=draft, target=target, rule=rule, **settings)

    assert found(q) == pytest.approx(target, abs=1e-14)  # p = q
    only = np.ones((3, 1))
    assert found(only, (0, 0, 0), target=only) == 0  # V = 1
    hot = np.eye(3)[[0, 1, 2]]
    sure = log(Cactus(0.2).boost(0.2)) + log(Cactus(0.2).boost(0.3)) + log(0.5)
    assert found(hot) == pytest.approx(sure, abs=1e-14)  # a one-hot draft emits h
    assert found(hot, rule=SpeculativeSampling(), target=hot) == 0
    assert found(q, (1, 1, 2), target=hot) == -np.inf  # of a one-hot target


def test_a_long_text_neither_underflows_nor_overflows():
    rng = np.random.default_rng(12)
    draft, target = rng.dirichlet(np.ones(4), size=(2, 1500))
    text = rng.integers(0, 4, size=1500)
    found = token_probabilities(text, draft=draft, target=target, rule=Cactus(0.1))
    for verification in ("token", "block"):
        logs = prefix_log_likelihood(
            found, num_draft_tokens=4, max_new_tokens=1500, verification=verification
        )
        assert logs[-1] < -1500  # far below the smallest float
        assert (np.diff(logs) <= 1e-9).all()


def test_rows_of_a_whole_vocabulary_are_read_one_at_a_time():
    size, length = 151_936, 6
    rng = np.random.default_rng(13)

    def rows(seed):
        own = np.random.default_rng(seed)
        for _ in range(length):
            weights = own.lognormal(sigma=3.0, size=size)
            yield (weights / weights.sum()).astype(np.float32)

    text = rng.integers(0, size, size=length)
    tracemalloc.start()
    try:
        found = text_log_likelihood(
            text,
            draft=rows(1),
            target=rows(2),
            rule=Cactus(0.1),
            num_draft_tokens=3,
            max_new_tokens=length,
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.isfinite(found)
    assert peak < 14 * 8 * size  # about twice what one position takes, whatever the length
    stacked = text_log_likelihood(
        text,
        draft=np.array(list(rows(1))),
        target=np.array(list(rows(2))),
        rule=Cactus(0.1),
        num_draft_tokens=3,
        max_new_tokens=length,
    )
    assert found == stacked


SETTINGS = {"rule": Cactus(0.1), "num_draft_tokens": 1, "max_new_tokens": 2}
ROWS = {"draft": [[0.5, 0.5]] * 2, "target": [[0.5, 0.5]] * 2}


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"draft": None}, TypeError, "no probabilities leaves texts without a likelihood"),
        ({"draft": [[0.5, 0.6]] * 2}, ValueError, "draft must sum to 1"),
        ({"draft": [[0.5, 0.5]] * 3}, ValueError, r"draft must have shape \(..., 2, V\)"),
        ({"target": iter([[0.5, 0.5]])}, ValueError, "target must have 2 rows, one a token, got 1"),
        ({"target": [[[0.5, 0.5]] * 2] * 3}, ValueError, "a row of target must have shape"),
        ({"rule": "cactus"}, TypeError, "rule must be a Rule, got 'cactus'"),
        ({"num_draft_tokens": -1}, ValueError, "num_draft_tokens must be >= 0, got -1"),
        ({"num_draft_tokens": object}, TypeError, "only paths have probabilities"),
        ({"num_draft_tokens": [1, 1, 1]}, ValueError, "num_draft_tokens must broadcast"),
        ({"max_new_tokens": 1}, ValueError, "got 1 for a text of 2 tokens"),
        ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens must be an integer or None"),
        ({"verification": "tree"}, ValueError, "verification must be 'token' or 'block'"),
        (
            {"verification": "block", "rule": TopKAcceptance(1)},
            ValueError,
            r"needs an ordered rule, got TopKAcceptance\(k=1\)",
        ),
        ({"lengths": 3}, ValueError, r"lengths must lie in \[1, 2\], got 3"),
        ({"lengths": 0}, ValueError, r"lengths must lie in \[1, 2\], got 0"),
        ({"lengths": [1]}, ValueError, r"lengths must have shape \(\), got \(1,\)"),
        ({"lengths": 1.0}, TypeError, "lengths must be integers"),
        ({"tokens": [0, 2]}, ValueError, r"tokens must lie in \[0, 2\), got 2"),
        ({"tokens": [0.0, 1.0]}, TypeError, "tokens must be integers"),
        ({"tokens": 1}, ValueError, r"tokens must have shape \(..., T\)"),
    ],
)
def test_what_is_refused_is_said(changed, error, said):
    arguments = {"tokens": [0, 1], **ROWS, **SETTINGS, **changed}
    with pytest.raises(error, match=said):
        text_log_likelihood(arguments.pop("tokens"), **arguments)
