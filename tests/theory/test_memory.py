"""Peak memory, as multiples of one float64 array of the input's size: nothing grows faster."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    ChiSquare,
    Clamp,
    JensenShannon,
    Lenience,
    Mixture,
    OneLevelRecovery,
    SpeculativeSampling,
    TopKAcceptance,
    TotalVariation,
    TypicalAcceptance,
    exact_optimum,
    optimum_gap,
    output_distribution,
    second_order_optimum,
)

VOCABULARY = 151_936
# The law itself and the accepted mass are two arrays; each bound has about one to spare.
LAWS = [
    (SpeculativeSampling(), 7.5),
    (Cactus(0.001), 7.5),
    (Cactus(1.0), 7.5),
    (CactusExact(1e-4), 7.5),
    (CactusExact(1.0), 7.5),
    (CactusSafe(0.1), 7.5),
    (CactusExact(0.1, TotalVariation()), 9.5),
    (CactusExact(0.01, ChiSquare()), 12.5),
    (CactusExact(0.01, JensenShannon()), 25),  # roots by bisection of all that is rejected
    (Clamp(0.05), 15),
    (Clamp(20.0), 15),
    (Clamp(0.05, ChiSquare()), 15),
    (OneLevelRecovery(Cactus(0.01)), 9),
    (Lenience(0.5), 5),
    (Mixture(0.5), 5),
    (TypicalAcceptance(), 5),
    (TopKAcceptance(20), 5),
]


def peak(call: Callable[[], object]) -> int:
    """Bytes held at most at one time, beyond those held before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def laws(noise: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    logits = spread * rng.standard_normal(VOCABULARY)
    weights = np.exp([logits + noise * rng.standard_normal(VOCABULARY), logits])
    draft, target = weights / weights.sum(axis=1, keepdims=True)
    return draft, target


@pytest.mark.parametrize(("noise", "spread"), [(1, 3), (5, 1)])
@pytest.mark.parametrize(("rule", "multiple"), LAWS, ids=[str(rule) for rule, _ in LAWS])
def test_an_output_law_takes_a_small_multiple_of_the_vocabulary(rule, multiple, noise, spread):
    draft, target = laws(noise, spread)
    used = peak(lambda: output_distribution(rule, draft=draft, target=target))
    assert used <= multiple * draft.nbytes


@pytest.mark.parametrize("rule", [Cactus(0.001), CactusExact(1e-4), Clamp(0.05)], ids=str)
def test_a_batch_takes_no_more_for_each_position(rule):
    draft, target = laws(5, 1)
    one = peak(lambda: output_distribution(rule, draft=draft, target=target))
    targets = np.stack([target] * 4)
    four = peak(lambda: output_distribution(rule, draft=draft, target=targets))
    assert four <= 4 * one


@pytest.mark.parametrize("delta", [1e-4, 0.03, 1.0])
def test_a_million_optima_take_their_results_and_little_more(delta):
    q = np.random.default_rng(3).random(1_000_000)
    # Results and 2 MB of temporaries: three arrays for `boost`, one for the closed form. Five for
    # the optimum with its bracket and gap, .4 of one for iterations and status, and some seventy
    # pieces of 32,768 elements that scipy's root finder holds.
    assert peak(lambda: CactusExact(delta).boost(q)) <= 4 * q.nbytes
    assert peak(lambda: exact_optimum(q, delta)) <= 8.5 * q.nbytes
    assert peak(lambda: optimum_gap(q, delta)) <= 8.5 * q.nbytes
    assert peak(lambda: second_order_optimum(q, delta)) <= 1.5 * q.nbytes


def test_memory_that_grows_faster_would_be_seen():
    q = np.random.default_rng(3).random(1_000)
    assert peak(lambda: q[:, None] * q) > 900 * q.nbytes
