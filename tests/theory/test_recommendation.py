"""Recommended settings against brute force over delta and the number of drafted tokens."""

from __future__ import annotations

import numpy as np
import pytest

from cactus_theory import TopKAcceptance, emission, kl, output_distribution, recommend, speedup
from cactus_theory.recording import compress_distributions, load_recording
from cactus_theory.rules.registry import RULES

RNG = np.random.default_rng(8)
TARGET = RNG.dirichlet(np.full(8, 0.5), size=6)
DRAFT = 0.6 * TARGET + 0.4 * RNG.dirichlet(np.full(8, 0.5), size=6)
LAWS = compress_distributions(draft=DRAFT, target=TARGET, tolerance=0.0)
COSTS = {"draft_cost": 0.1, "verify_cost": lambda tokens: 1 + 0.02 * tokens}
LONGEST = 6
FINE = np.concatenate([[0.0], np.geomspace(1e-4, 3, 120)])
NAMES = ["cactus", "lenience", "mixture"]
ROUNDING = 1e-12  # of a divergence of 0
DELTA = 2e-4  # relative: the search stops at 1e-4 of delta, and the figures vary no faster


def figures(rule, k):
    """Speed-up and KL per token, from the definitions, for one rule and k."""
    rate = float(emission(rule, draft=DRAFT, target=TARGET).acceptance_rate.mean())
    law = output_distribution(rule, draft=DRAFT, target=TARGET)
    cost = float(kl(law, TARGET).mean())
    # position i is judged if the i - 1 before it passed; each emitted token is kept or the last
    judged = sum(rate**i for i in range(k))
    return float(speedup(rate, k, **COSTS)), cost * judged / (judged + rate**k)


@pytest.fixture(scope="module")
def tried():
    """Speed-up, KL per token, delta and k of every setting of a fine grid, by rule."""
    return {
        name: [
            (*figures(RULES[name].at(delta), k), delta, k)
            for delta in FINE
            for k in range(1, LONGEST + 1)
        ]
        for name in NAMES
    }


@pytest.mark.parametrize("speed", [1.6, 2.0, 2.4])
@pytest.mark.parametrize("name", NAMES)
def test_no_setting_of_that_speed_costs_less(name, speed, tried):
    (best,) = recommend(LAWS, **COSTS, min_speedup=speed, rules=[name], max_draft_tokens=LONGEST)
    assert best.speedup >= speed
    least = min(cost for fast, cost, *_ in tried[name] if fast >= speed)
    assert best.kl_per_token <= least * (1 + DELTA) + 1e-12
    assert figures(best.rule, best.num_draft_tokens) == pytest.approx(
        (best.speedup, best.kl_per_token), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("charge", [0.0, 1e-3, 0.02, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_no_setting_of_that_charge_is_faster(name, charge, tried):
    (best,) = recommend(LAWS, **COSTS, max_kl=charge, rules=[name], max_draft_tokens=LONGEST)
    assert best.kl_per_token <= charge + ROUNDING
    most = max(fast for fast, cost, *_ in tried[name] if cost <= charge + ROUNDING)
    assert best.speedup >= most * (1 - DELTA)


def test_the_best_rule_comes_first():
    found = recommend(LAWS, **COSTS, min_speedup=2.0, max_draft_tokens=LONGEST)
    assert {one.name for one in found} == {name for name, e in RULES.items() if e.at_budget}
    costs = [one.kl_per_token for one in found]
    assert costs == sorted(costs)
    speeds = [one.speedup for one in recommend(LAWS, **COSTS, max_kl=0.01, max_draft_tokens=4)]
    assert speeds == sorted(speeds, reverse=True)


def test_a_rule_without_a_budget_is_taken_as_it_is():
    (best,) = recommend(LAWS, **COSTS, min_speedup=1.1, rules=["top-k:k=2"])
    assert best.delta is None
    assert best.rule == TopKAcceptance(2)


def test_where_no_draft_pays_none_is_recommended():
    (best,) = recommend(LAWS, draft_cost=1.5, max_kl=0.1, rules=["cactus"])
    assert (best.num_draft_tokens, best.speedup, best.kl_per_token) == (0, 1.0, 0.0)


def test_plain_decoding_keeps_any_charge():
    (best,) = recommend(LAWS, **COSTS, max_kl=0.0, rules=["cactus:delta=0.1"])
    assert best.num_draft_tokens == 0


def test_lossless_drafting_costs_nothing():
    (best,) = recommend(load_recording(), draft_cost=0.05, max_kl=0.0, rules=["speculative"])
    assert best.speedup > 1.5
    assert best.kl_per_token <= ROUNDING


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "give one of min_speedup and max_kl"),
        ({"min_speedup": 2.0, "max_kl": 0.1}, "give one of min_speedup and max_kl"),
        ({"min_speedup": 1.0}, "min_speedup must be a finite number > 1, got 1.0"),
        ({"min_speedup": 50.0}, "min_speedup must be at most [0-9.]+ here, got 50.0"),
        ({"max_kl": -0.1}, "max_kl must be"),
        ({"max_kl": 0.1, "max_draft_tokens": 0}, "max_draft_tokens must be"),
        ({"max_kl": 0.1, "rules": ["best"]}, "rule must be one of"),
    ],
)
def test_a_goal_that_is_none_is_refused(goal, message):
    with pytest.raises(ValueError, match=message):
        recommend(LAWS, **COSTS, **goal)
