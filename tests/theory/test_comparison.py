"""Rules beside the best possible: their figures, and bounds that the best must keep."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import (
    Cactus,
    Clamp,
    SpeculativeSampling,
    compare,
    emission,
    expected_tokens,
    output_distribution,
)
from cactus_theory.comparison import block_tokens
from cactus_theory.recording import compress_distributions, load_recording
from cactus_theory.rules.registry import RULES

RNG = np.random.default_rng(4)
TARGET = RNG.dirichlet(np.full(8, 0.5), size=8)
DRAFT = 0.5 * TARGET + 0.5 * RNG.dirichlet(np.full(8, 0.5), size=8)
LAWS = compress_distributions(draft=DRAFT, target=TARGET, tolerance=0.0, about={"tokens": "4"})


@pytest.fixture(scope="module")
def found():
    return {one.name: one for one in compare(LAWS, list(RULES), kl=0.01, num_draft_tokens=3)}


@pytest.mark.parametrize("name", RULES)
def test_no_rule_gains_more_than_the_best_possible(found, name):
    one = found[name]
    assert one.share <= 1 + 1e-6  # the rounding of a ratio of two gains of some 1e-2
    assert one.needed <= one.figures.kl + 1e-9
    if one.delta is not None and one.delta < 99:  # else all that it can spend
        assert one.figures.kl == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("name", RULES)
def test_figures_are_those_of_the_rule(found, name):
    one = found[name]
    cost = emission(one.rule, draft=DRAFT, target=TARGET)
    assert one.figures.acceptance_rate == pytest.approx(cost.acceptance_rate.mean(), abs=1e-12)
    assert one.figures.total_variation == pytest.approx(cost.total_variation.mean(), abs=1e-12)


def test_gains_are_sorted_and_speculative_sampling_gains_nothing(found):
    shares = [one.share for one in found.values()]
    assert shares == sorted(shares, reverse=True)
    assert found["speculative"].share == 0
    assert found["sampler-match"].share == -np.inf  # accepts less, and emits the target


def test_blocks_do_not_cross_the_end_of_a_text(found):
    rates = emission(SpeculativeSampling(), draft=DRAFT, target=TARGET).acceptance_rate
    runs = [rates[i : i + 3] for i in (0, 1, 4, 5)]
    mean = np.mean([1 + np.cumprod(run).sum() for run in runs])
    assert found["speculative"].token_by_token == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.05), Clamp(0.02)], ids=str)
def test_simulated_blocks_agree_with_the_enumeration(rule):
    exact = expected_tokens(
        rule,
        draft=lambda block: DRAFT[len(block)],
        target=lambda block: TARGET[len(block)],
        num_draft_tokens=3,
    )
    law = output_distribution(rule, draft=DRAFT, target=TARGET)
    seen = block_tokens(DRAFT, law, np.tile([0, 1, 2], (40, 1)))
    # 20,000 blocks of three indicators: five deviations are below 5 * 1.5 / sqrt(20,000)
    assert seen == pytest.approx(exact, abs=0.053)


def test_only_ordered_rules_are_verified_by_block(found):
    for name, one in found.items():
        assert np.isnan(one.by_block) == (not RULES[name].ordered)


def test_the_conclusions_of_the_page_hold_for_the_bundled_recording():
    names = ["cactus", "exact", "lenience", "mixture"]
    order = [one.name for one in compare(load_recording(), names, kl=0.02)]
    assert order == ["lenience", "cactus", "exact", "mixture"]


@pytest.mark.parametrize("kl", [0.0, -1.0])
def test_a_kl_that_cannot_be_spent_is_refused(kl):
    with pytest.raises(ValueError, match="kl must be"):
        compare(LAWS, ["cactus"], kl=kl)
