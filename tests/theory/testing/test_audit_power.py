"""The number of tokens that an audit needs, and tolerances measured between two runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cactus_theory import Cactus
from cactus_theory.recording import load_recording
from cactus_theory.testing import (
    ALTERNATIVES,
    Alternative,
    Auditor,
    measured_tolerance,
    of_rule,
    tokens_to_tell,
)

LAWS = load_recording()
NAMED = {a.name: a for a in ALTERNATIVES}


@pytest.mark.parametrize("name", ["temperature, times 0.5", "the draft in place of the target"])
def test_the_stated_number_of_tokens_is_enough_nine_times_in_ten(name):
    alternative = NAMED[name]
    catalogue = [alternative, NAMED["temperature, times 2"]]
    settings = {"alternatives": catalogue, "level": 1e-3}
    needed = int(tokens_to_tell(alternative, target=LAWS, power=0.9, **settings))
    rng, told = np.random.default_rng(0), 0
    for _ in range(60):
        auditor = Auditor(**settings)
        for i in rng.integers(len(LAWS), size=needed):
            situation = type("S", (), {"target": LAWS.target[i], "draft": LAWS.draft[i]})
            law = alternative.distribution(situation)
            x = int(rng.choice(law.size, p=law / law.sum()))
            auditor.add(x, target=LAWS.target[i], draft=LAWS.draft[i])
        told += not auditor.result().consistent
    # 54 are expected at least; below 45 happens with chance 2e-4 if the power is .9.
    assert told >= 45


def test_fewer_tokens_are_needed_for_more_different_samplers_and_for_weaker_demands():
    cactus = [of_rule(Cactus(d), "Cactus") for d in (0.01, 0.1, 1.0)]
    numbers = [tokens_to_tell(a, target=LAWS) for a in cactus]
    assert numbers == sorted(numbers, reverse=True)
    assert tokens_to_tell(cactus[1], target=LAWS, level=1e-2) < numbers[1]
    assert tokens_to_tell(cactus[1], target=LAWS, power=0.5) < numbers[1]
    assert tokens_to_tell(cactus[1], target=LAWS, tolerance=0.003) > numbers[1]


@pytest.mark.parametrize("tolerance", [0.0, 0.002])
def test_the_number_is_the_least_that_satisfies_its_inequality(tolerance):
    q, r = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    alternative = Alternative("r", lambda s: r)
    n = tokens_to_tell(alternative, target=q[None], tolerance=tolerance, alternatives=[alternative])
    logs = np.log(0.5 + r / (2 * q))
    mean = r @ logs
    spread = 1.2815515655446004 * math.sqrt(r @ logs**2 - mean**2)  # the normal quantile of .9
    needed = math.log(1e6) * (2 if tolerance else 1)
    reached = [m * (mean - tolerance) - math.sqrt(m) * spread >= needed for m in (n - 1, n)]
    assert reached == [False, True]


def test_what_is_within_the_tolerance_is_never_told():
    assert tokens_to_tell(NAMED["temperature, times 0.95"], target=LAWS, tolerance=0.1) == math.inf


def test_a_token_that_the_target_excludes_tells_at_once():
    outside = of_rule(Cactus(0.1), "unused")
    wide = type(outside)("wide", lambda s: np.array([0.5, 0.0, 0.5]))
    q = np.array([[0.5, 0.5, 0.0]])
    assert tokens_to_tell(wide, target=q, power=0.9) == 4  # 1 - 2^-4 > .9
    with pytest.raises(ValueError, match="draft must be given for 'unused'"):
        tokens_to_tell(outside, target=q)


def test_the_tolerance_covers_the_mean_divergence_and_counts_in_nats():
    q = np.array([[0.5, 0.5]] * 10)
    s = np.array([[0.6, 0.4]] * 10)
    exact = math.log((0.36 + 0.16) / 0.5)
    assert measured_tolerance(s, q) == pytest.approx(exact, rel=1e-12)
    mixed = np.concatenate([s[:5], q[:5]])
    assert measured_tolerance(mixed, q) > exact / 2
    assert measured_tolerance(q[:, ::-1], q) == 0
    assert measured_tolerance(s, np.array([[1.0, 0.0]] * 10)) == math.inf


@pytest.mark.parametrize("rows", [[[0.5, 0.5]], [0.5, 0.5]])
def test_one_position_is_no_measurement(rows):
    with pytest.raises(ValueError, match="first and second must both have shape"):
        measured_tolerance(rows, rows)
