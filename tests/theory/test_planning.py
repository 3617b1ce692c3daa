"""Block law, speed-up, best draft length and break-even against enumeration and closed forms."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import block_efficiency
from cactus_theory.planning import (
    best_num_draft_tokens,
    block_cost,
    block_law,
    break_even_acceptance,
    speedup,
)

EPS = 2.0**-52
RATES = st.floats(0.0, 1.0)
DRAFT_COSTS = st.floats(0.0, 1.5)
VERIFY_COSTS = st.floats(0.5, 3.0)
COUNTS = st.integers(1, 12)


@given(rates=st.lists(RATES, max_size=6))
def test_the_block_law_is_the_law_of_the_first_rejection_by_enumeration(rates):
    expected = np.zeros(len(rates) + 1)
    for passes in product([True, False], repeat=len(rates)):
        chance = np.prod([a if ok else 1 - a for a, ok in zip(rates, passes, strict=True)])
        expected[passes.index(False) if False in passes else len(passes)] += chance
    # 64 products of six roundings each.
    np.testing.assert_allclose(block_law(rates), expected, atol=128 * EPS, rtol=0)


def test_the_block_law_is_exact_for_dyadic_rates():
    law = block_law([0.75, 0.5, 0.25])
    wanted = [Fraction(1, 4), Fraction(3, 8), Fraction(9, 32), Fraction(3, 32)]
    assert [Fraction(x) for x in law] == wanted


@given(rates=st.lists(RATES, max_size=8))
def test_the_block_law_sums_to_one_and_has_the_block_efficiency_as_its_mean(rates):
    law = block_law(rates)
    assert law.shape == (len(rates) + 1,)
    assert (law >= 0).all()
    # Nine terms of nine roundings each.
    assert law.sum() == pytest.approx(1, abs=100 * EPS)
    mean = law @ np.arange(1, len(rates) + 2)
    assert mean == pytest.approx(block_efficiency(rates), abs=1000 * EPS)


def test_block_laws_batch_and_have_their_limits():
    assert block_law([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]).tolist() == [
        [1, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
    ]
    assert block_law(np.empty((4, 0))).tolist() == [[1]] * 4
    batch = np.random.default_rng(1).random((2, 3, 5))
    np.testing.assert_array_equal(block_law(batch)[1, 2], block_law(batch[1, 2]))


@pytest.mark.parametrize("rates", [0.5, [1.1], [-0.1], [np.nan]])
def test_the_block_law_refuses_what_are_no_rates(rates):
    with pytest.raises(ValueError, match="rates must"):
        block_law(rates)


@given(rate=RATES, k=COUNTS, draft_cost=DRAFT_COSTS, verify_cost=VERIFY_COSTS)
def test_the_speedup_is_expected_tokens_per_cost(rate, k, draft_cost, verify_cost):
    tokens = sum(Fraction(rate) ** j for j in range(k + 1))
    cost = k * Fraction(draft_cost) + Fraction(verify_cost)
    # A dozen sums and products, and one quotient.
    assert speedup(rate, k, draft_cost=draft_cost, verify_cost=verify_cost) == pytest.approx(
        float(tokens / cost), rel=64 * EPS
    )


def test_the_speedup_with_free_parallel_verification_is_the_published_one():
    # Leviathan, Kalman and Matias (2023), Theorem 3.8: (1 - a^(k+1)) / ((1 - a) (k c + 1)).
    a, k, c = 0.8, 5, 0.02
    expected = (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1))
    assert speedup(a, k, draft_cost=c) == pytest.approx(expected, rel=16 * EPS)


def test_no_drafts_are_plain_decoding():
    assert speedup(0.3, 0, draft_cost=0.5, verify_cost=2.0) == 1
    assert block_cost(0, draft_cost=0.5, verify_cost=lambda tokens: 7.0 * tokens) == 1


def test_the_cost_of_a_pass_is_a_number_a_function_of_its_tokens_or_a_table():
    table = [1.0, 1.25, 1.5, 4.0]
    for k in (1, 2, 3):
        by_table = block_cost(k, draft_cost=0.125, verify_cost=table)
        assert by_table == 0.125 * k + table[k]
        assert by_table == block_cost(
            k, draft_cost=0.125, verify_cost=lambda tokens: table[tokens - 1]
        )
    assert block_cost(3, draft_cost=0.125, verify_cost=1.5) == 1.875
    with pytest.raises(ValueError, match=r"verify_cost must have entries up to 4 .*shape \(4,\)"):
        block_cost(4, draft_cost=0.1, verify_cost=table)


def test_speedups_batch_over_rates():
    rates = np.array([[0.0, 0.5], [0.75, 1.0]])
    gains = speedup(rates, 3, draft_cost=0.25, verify_cost=1.25)
    assert gains.tolist() == [[0.5, 0.9375], [2.734375 / 2, 2.0]]
    best = best_num_draft_tokens(rates, draft_cost=0.25, max_draft_tokens=5)
    assert best.shape == rates.shape
    assert best[0, 0] == 0
    assert best[1, 1] == 5


@given(rate=RATES, draft_cost=DRAFT_COSTS, slope=st.floats(0.0, 0.3))
def test_the_best_number_of_drafts_beats_every_other_and_never_loses(rate, draft_cost, slope):
    costs = {"draft_cost": draft_cost, "verify_cost": lambda tokens: 1 + slope * (tokens - 1)}
    best = int(best_num_draft_tokens(rate, **costs, max_draft_tokens=12))
    gains = [speedup(rate, k, **costs) for k in range(13)]
    assert gains[best] == max(gains)
    assert gains[best] >= 1
    assert all(gain < gains[best] for gain in gains[:best])


def test_a_step_in_the_cost_of_a_pass_moves_the_best_number_of_drafts_past_a_dip():
    # Free up to 2 tokens, a jump to 1.6 that then is flat to 9 tokens: not unimodal.
    table = [1.0, 1.0] + [1.6] * 7 + [9.0]
    gains = [speedup(0.9, k, draft_cost=0.01, verify_cost=table) for k in range(10)]
    assert gains[2] < gains[1] < gains[8]
    assert best_num_draft_tokens(0.9, draft_cost=0.01, verify_cost=table, max_draft_tokens=9) == 8


@given(k=COUNTS, draft_cost=DRAFT_COSTS, verify_cost=VERIFY_COSTS)
def test_the_speedup_at_the_break_even_acceptance_is_one(k, draft_cost, verify_cost):
    costs = {"draft_cost": draft_cost, "verify_cost": verify_cost}
    cost = block_cost(k, **costs)
    if cost > k + 1:
        with pytest.raises(ValueError, match="no acceptance rate breaks even"):
            break_even_acceptance(k, **costs)
        assert speedup(1.0, k, **costs) < 1
        return
    rate = break_even_acceptance(k, **costs)
    assert 0 <= rate <= 1
    if cost <= 1:
        assert rate == 0
        assert speedup(0.0, k, **costs) >= 1
        return
    # The slope of 1 + a + ... + a^k is at most k (k+1) / 2 = 78: the root's own error times that.
    assert speedup(rate, k, **costs) == pytest.approx(1, abs=1e-12)
    if 1e-6 < rate < 1 - 1e-6:
        assert speedup(rate - 1e-6, k, **costs) < 1 < speedup(rate + 1e-6, k, **costs)


def test_break_even_has_its_closed_forms():
    assert break_even_acceptance(1, draft_cost=0.25, verify_cost=1.25) == 0.5
    assert break_even_acceptance(3, draft_cost=1.0) == 1.0
    # 1 + a + a^2 = 1.75
    assert break_even_acceptance(2, draft_cost=0.375) == pytest.approx(0.5, abs=4e-15)


def test_one_mean_rate_understates_positions_that_differ_by_text():
    # Half of the texts at 0.9, half at 0.5, against every text at 0.7.
    mixed = speedup(np.array([0.9, 0.5]), 6, draft_cost=0.05).mean()
    assert mixed > speedup(0.7, 6, draft_cost=0.05)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: speedup(0.5, -1, draft_cost=0.1), ValueError, "integer >= 0, got -1"),
        (lambda: speedup(0.5, 2.0, draft_cost=0.1), TypeError, "integer >= 0, got 2.0"),
        (lambda: speedup(0.5, True, draft_cost=0.1), TypeError, "got True"),
        (lambda: speedup(1.5, 2, draft_cost=0.1), ValueError, r"in \[0, 1\], got 1.5"),
        (lambda: speedup(0.5, 2, draft_cost=-0.1), ValueError, "draft_cost must be .* got -0.1"),
        (lambda: speedup(0.5, 2, draft_cost="1"), TypeError, "draft_cost must be a number"),
        (
            lambda: speedup(0.5, 2, draft_cost=0.1, verify_cost=np.nan),
            ValueError,
            "verify_cost of 3 tokens must be finite",
        ),
        (
            lambda: speedup(0.5, 2, draft_cost=0.0, verify_cost=0.0),
            ValueError,
            "verify_cost of 3 tokens must be > 0",
        ),
        (lambda: break_even_acceptance(0, draft_cost=0.1), ValueError, "integer >= 1, got 0"),
        (
            lambda: best_num_draft_tokens(0.5, draft_cost=0.1, max_draft_tokens=-1),
            ValueError,
            "max_draft_tokens must be an integer >= 0, got -1",
        ),
        (
            lambda: break_even_acceptance(2, draft_cost=1.5),
            ValueError,
            "costs 4.0 plain passes and emits at most 3 tokens",
        ),
    ],
)
def test_bad_arguments_are_named_with_their_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
