"""Divergences of texts estimated from samples, against those found by following every draft."""

from __future__ import annotations

from itertools import product
from math import inf, log

import numpy as np
import pytest
from scipy.stats import binom, sem, t

from cactus_theory import Cactus, binary_kl, estimate_divergence, kl
from tests.theory.small_trees import by_text, decode, target_probability, tree

LENGTH, DRAFTS = 4, 2


@pytest.fixture(scope="module")
def decoder():
    """Chances of paths, their ledgers, log P and log Q; and the exact divergences."""
    nodes = tree(np.random.default_rng(0), Cactus(0.2), 3, LENGTH)
    paths = decode(nodes, LENGTH, num_drafts=lambda text: DRAFTS)
    texts = by_text(paths)
    target = {text: target_probability(nodes, text) for text in product(range(3), repeat=LENGTH)}
    cost = {text: float(kl(node.emitted, node.target)) for text, node in nodes.items()}
    chances = np.array(list(paths.values()))
    ledgers = np.array(
        [sum(cost[p.text[:i]] for i in range(LENGTH) if p.verified[i]) for p in paths]
    )
    ours = np.log([texts[path.text] for path in paths])
    theirs = np.log([target[path.text] for path in paths])
    true = {
        "kl": sum(p * log(p / target[text]) for text, p in texts.items()),
        "chi_square": sum(p**2 / target[text] for text, p in texts.items()) - 1,
        "total_variation": sum(abs(texts.get(text, 0) - q) for text, q in target.items()) / 2,
        "ledger": float(chances @ ledgers),
    }
    true["ledger_excess"] = true["ledger"] - true["kl"]
    return chances / chances.sum(), ours, theirs, ledgers, true


def estimates(decoder, rng, n, **settings):
    chances, ours, theirs, ledgers, _ = decoder
    drawn = rng.choice(chances.size, size=n, p=chances)
    return estimate_divergence(
        ours[drawn], target_log_likelihood=theirs[drawn], ledger=ledgers[drawn], **settings
    )


def test_estimates_are_of_the_divergences_of_the_texts(decoder):
    found = estimates(decoder, np.random.default_rng(1), 200_000, confidence=1 - 1e-6)
    for name, value in decoder[-1].items():
        interval = getattr(found, name)
        assert interval.low <= value <= interval.high, name
        assert interval.high - interval.low < 0.15 * max(value, 0.1), name
    assert 0 < decoder[-1]["ledger_excess"] < 0.2 * decoder[-1]["ledger"]


def test_intervals_cover_as_often_as_they_say(decoder):
    rng, trials, n, confidence = np.random.default_rng(2), 1000, 200, 0.9
    covered = dict.fromkeys(decoder[-1], 0)
    for _ in range(trials):
        found = estimates(decoder, rng, n, confidence=confidence)
        for name, value in decoder[-1].items():
            covered[name] += getattr(found, name).low <= value <= getattr(found, name).high
    # Student's is asymptotic: at 200 texts of this decoder within 4 points, and 5 standard errors
    # of a thousand trials. Chernoff's covers at least as often as it says.
    low, high = binom.ppf([3e-7, 1 - 3e-7], trials, confidence)
    for name, count in covered.items():
        if name == "total_variation":
            assert count >= low
            assert count / trials > 0.95  # it is conservative
        else:
            assert low - 0.04 * trials <= count <= high + 0.04 * trials, name


def test_terms_are_those_of_the_docstring():
    ours, theirs = np.log([0.3, 0.2, 0.4]), np.log([0.2, 0.3, 0.4])
    found = estimate_divergence(ours, target_log_likelihood=theirs, ledger=[0.5, 0.0, 0.25])
    assert found.kl.estimate == pytest.approx(np.mean(ours - theirs))
    assert found.chi_square.estimate == pytest.approx(np.mean([1.5, 2 / 3, 1]) - 1)
    assert found.total_variation.estimate == pytest.approx(np.mean([1 / 3, 0, 0]))
    assert found.ledger.estimate == pytest.approx(0.25)
    assert found.ledger_excess.estimate == pytest.approx(0.25 - np.mean(ours - theirs))


@pytest.mark.parametrize("n", [2, 5, 100])
def test_student_s_interval_is_that_of_the_textbook(n):
    rng = np.random.default_rng(n)
    ours, theirs = -rng.random((2, n))
    found = estimate_divergence(ours, target_log_likelihood=theirs, confidence=0.8).kl
    low, high = t.interval(0.8, n - 1, loc=(ours - theirs).mean(), scale=sem(ours - theirs))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.confidence, found.method) == (0.8, "student")


@pytest.mark.parametrize("n", [2, 40, 10_000])
@pytest.mark.parametrize("hits", [0.0, 0.01, 0.5, 1.0])
def test_ends_of_the_chernoff_interval_are_where_its_bound_is_spent(n, hits):
    k = round(hits * n)
    theirs = np.where(np.arange(n) < k, -1e9, -1.0)  # a text that the target hardly emits: TV 1
    found = estimate_divergence(np.full(n, -1.0), target_log_likelihood=theirs).total_variation
    mean, allowed = k / n, log(2 / 0.05) / n
    assert found.estimate == pytest.approx(mean)
    for end, outer in ((found.low, 0.0), (found.high, 1.0)):
        if end == outer:
            assert mean == outer
        else:
            assert float(binary_kl(mean, end)) == pytest.approx(allowed, rel=1e-6)
    # For counts it contains the exact (Clopper-Pearson) probabilities of both tails.
    assert k == 0 or binom.sf(k - 1, n, found.low) <= 0.025 + 1e-9
    assert k == n or binom.cdf(k, n, found.high) <= 0.025 + 1e-9


def test_texts_of_the_target_itself_have_no_divergence():
    logs = np.linspace(-9.0, -1.0, 50)
    found = estimate_divergence(logs, target_log_likelihood=logs)
    for interval in (found.kl, found.chi_square):
        assert interval.estimate == interval.low == interval.high == 0
    assert found.total_variation.estimate == found.total_variation.low == 0
    assert 0 < found.total_variation.high < 0.1
    assert found.ledger is None
    assert found.ledger_excess is None


def test_a_text_that_the_target_excludes_proves_the_divergence_infinite():
    found = estimate_divergence([-1.0, -1.0], target_log_likelihood=[-inf, -1.0], ledger=[inf, 0.5])
    assert found.kl.estimate == found.kl.low == inf
    assert found.chi_square.low == inf
    assert found.total_variation.estimate == 0.5
    assert found.ledger.estimate == inf


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        (
            {"log_likelihood": [-1.0]},
            ValueError,
            r"log_likelihood must have shape \(n,\) with n >= 2",
        ),
        ({"log_likelihood": [-1.0, -inf]}, ValueError, "the decoder drew text 1"),
        ({"log_likelihood": [-1.0, 0.5]}, ValueError, "log-probabilities, got 0.5 at index 1"),
        ({"log_likelihood": [-1.0, np.nan]}, ValueError, "log-probabilities, got nan at index 1"),
        ({"target_log_likelihood": [-1.0] * 3}, ValueError, "with n = 2, got"),
        ({"ledger": [0.5]}, ValueError, r"ledger must have shape \(2,\)"),
        ({"ledger": [0.5, -0.5]}, ValueError, "ledger must hold nats >= 0, got -0.5"),
        ({"confidence": 1.0}, ValueError, r"confidence must lie in \(0, 1\), got 1.0"),
        ({"confidence": "95 %"}, TypeError, r"confidence must be a number in \(0, 1\)"),
    ],
)
def test_what_is_refused_is_said(changed, error, said):
    arguments = {"log_likelihood": [-1.0, -2.0], "target_log_likelihood": [-1.0, -2.0], **changed}
    with pytest.raises(error, match=said):
        estimate_divergence(arguments.pop("log_likelihood"), **arguments)
