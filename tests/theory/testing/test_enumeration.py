"""The conformance kit at one position, by enumeration: right samplers pass, mistakes are named."""

from __future__ import annotations

import doctest
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from cactus_theory import (
    acceptance_rate,
)
from cactus_theory.specification import inverse_cdf
from cactus_theory.testing import (
    ConformanceError,
    OnePosition,
    all_rules,
    check_by_enumeration,
    check_counts,
    diagnose,
    pairs,
    specification_verifier,
)
from tests.theory.testing.position_samplers import (
    CANDIDATES,
    MISTAKES,
    PLAIN,
    SHARED,
    P,
    Q,
    as_verifier,
    made,
    specified,
)


@pytest.mark.parametrize("rule", [*CANDIDATES, *SHARED], ids=repr)
@pytest.mark.parametrize("adapted", [True, False], ids=["one token", "blocks"])
def test_the_specification_passes_by_enumeration(rule, adapted):
    for cells in (8, 13):
        found = check_by_enumeration(
            OnePosition(specified(rule)) if adapted else specification_verifier(rule),
            rule,
            draft=np.array([0.7, 0.2, 0.1]),
            target=np.array([0.1, 0.3, 0.6]),
            cells=cells,
        )
        rate = acceptance_rate(
            rule, draft=np.array([0.7, 0.2, 0.1]), target=np.array([0.1, 0.3, 0.6])
        )
        assert found.accepted_mass().sum() == pytest.approx(float(rate), abs=0.5 / cells)


@settings(max_examples=30, deadline=None)
@given(rule=all_rules(), pair=pairs(max_size=4))
def test_the_specification_stays_within_the_proved_tolerance_everywhere(rule, pair):
    verifier = as_verifier(lambda p, q: specification_parts(rule, p, q))
    check_by_enumeration(verifier, rule, draft=pair.draft, target=pair.target, cells=9)


def specification_parts(rule, p, q):
    chance = np.array([_chance(rule, n, p, q) for n in range(p.size)])
    weights = [rule.recovery_weights(n, p, q) for n in range(p.size)]
    return p, chance, np.array([w if w.sum() > 0 else q for w in weights])


def _chance(rule, token, p, q):
    return 0.0 if p[token] == 0 else min(rule.threshold(token, p, q) / p[token], 1.0)


def test_plain_speculative_sampling_on_fractions_is_compared_exactly():
    p = np.array([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)])
    q = np.array([Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)])
    found = check_by_enumeration(specification_verifier(PLAIN), PLAIN, draft=p, target=q, cells=12)
    assert list(found.first_token()) == list(q)
    assert list(found.accepted_mass()) == list(np.minimum(p, q))
    assert not any(found.tolerances[0].values())
    coarse = check_by_enumeration(specification_verifier(PLAIN), PLAIN, draft=p, target=q, cells=3)
    assert any(coarse.tolerances[0].values())  # the thresholds do not lie on thirds

    def a_little_off(token, draft, target, accept, recover):
        if accept * draft[token] < target[token] + Fraction(1, 24):
            return token, True
        return inverse_cdf(np.maximum(target - draft, 0), recover), False

    with pytest.raises(ConformanceError, match=r"with probability 0\.\d+ instead of"):
        check_by_enumeration(OnePosition(a_little_off), PLAIN, draft=p, target=q, cells=12)


@pytest.mark.parametrize(("name", "rule", "solve"), MISTAKES)
def test_each_mistake_is_rejected_by_enumeration_and_named(name, rule, solve):
    with pytest.raises(ConformanceError) as caught:
        check_by_enumeration(as_verifier(made(name, solve)), rule, draft=P, target=Q, cells=120)
    assert f"it matches {name}" in str(caught.value)


def test_the_right_law_with_the_wrong_acceptance_is_told_apart():
    def never(token, p, q, accept, recover):
        return inverse_cdf(q, recover), False

    with pytest.raises(ConformanceError, match=r"drafted token \d is accepted with mass 0 instead"):
        check_by_enumeration(OnePosition(never), PLAIN, draft=P, target=Q, cells=100)


def test_bad_arguments_are_refused():
    verifier = specification_verifier(PLAIN)
    with pytest.raises(ValueError, match="cells"):
        check_by_enumeration(verifier, PLAIN, draft=P, target=Q, cells=1)
    with pytest.raises(ValueError, match="vocabulary"):
        check_by_enumeration(verifier, PLAIN, draft=P, target=Q[1:] / Q[1:].sum())
    with pytest.raises(ValueError, match="false_alarm"):
        check_counts([1] * 5, PLAIN, draft=P, target=Q, false_alarm=0.0)
    with pytest.raises(ValueError, match=r"shape \(V,\)"):
        check_counts([1] * 5, PLAIN, draft=[P], target=[Q, Q])
    with pytest.raises(ValueError, match="observed"):
        diagnose([1, 2], PLAIN, draft=P, target=Q)


def test_the_checks_need_no_hypothesis():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from cactus_theory.testing import check_edges, specification_verifier, diagnose\n"
        "from cactus_theory import SpeculativeSampling\n"
        "diagnose([1, 2], SpeculativeSampling(), draft=[0.5, 0.5], target=[0.5, 0.5])\n"
        "from cactus_theory.testing._hypothesis_plugin import register; register()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_examples_of_the_page_on_samplers_run():
    page = Path(__file__).parents[3] / "docs" / "samplers.md"
    result = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    assert result.attempted == 16
    assert result.failed == 0
