"""The table of rules says what the rules do: every entry has a check, and no entry goes without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import (
    Cactus,
    SpeculativeSampling,
)
from cactus_theory.rules.registry import RULES as REGISTERED
from cactus_theory.rules.registry import budgeted_candidates
from cactus_theory.testing import pairs
from cactus_theory.testing.strategies import rules_of
from tests.theory.rules.fact_checks import (
    CHECKS,
    NOTHING_OF_OUT,
    READS,
    RULES,
    check_of,
    formula,
    strays,
)


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("column", CHECKS)
@given(data=st.data())
def test_an_entry_of_the_table_describes_what_the_rule_does(column, kind, data):
    check = check_of(column, getattr(kind.facts, column))
    rule = data.draw(rules_of(kind))
    draft, target = data.draw(pairs(min_size=2))
    assert np.all(check(rule, draft, target))


@pytest.mark.parametrize(
    "kind", [kind for kind in RULES if kind.facts.reads in READS], ids=lambda kind: kind.__name__
)
@given(data=st.data())
def test_a_rule_reads_no_more_of_the_target_than_the_table_says(kind, data):
    rule = data.draw(rules_of(kind))
    draft, target = data.draw(pairs(min_size=2))
    assert np.all(READS[kind.facts.reads](rule, draft, target))


@pytest.mark.parametrize(
    "name", [name for name, entry in REGISTERED.items() if entry.facts.reads != "q(n)"]
)
def test_a_rule_said_to_read_more_than_one_probability_does(name):
    draft, target = np.random.default_rng(0).dirichlet(np.ones(16), size=(2, 50))
    rule = REGISTERED[name].example()
    assert not np.all([READS["q(n)"](rule, *pair) for pair in zip(draft, target, strict=True)])


def test_what_a_rule_reads_is_one_of_what_is_checked():
    assert {kind.facts.reads for kind in RULES} == {*READS, "all of q"}


@pytest.mark.parametrize("name", [n for n, e in budgeted_candidates().items() if not e.bounds_kl])
def test_delta_bounds_nothing_of_what_a_rule_with_candidates_emits_and_its_entry_says_so(name):
    assert REGISTERED[name].facts.guarantees.endswith(NOTHING_OF_OUT)
    assert strays(REGISTERED[name].at(1.0))


def test_every_check_belongs_to_an_entry():
    for column, checks in CHECKS.items():
        assert set(checks) <= {getattr(kind.facts, column) for kind in RULES}


class Numbers(SpeculativeSampling):
    """A rule with parameters of any name."""

    def __init__(self, **values):
        vars(self).update(values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("min(q + sqrt(2 a q (1-q)), 1)", 0.25 + np.sqrt(0.3 * 0.1875)),
        ("1 if q >= a, else min(q/b, 1)", 1),
        ("1 if q >= b, else min(q/b, 1)", 0.25 / 0.5),
        ("(e^a - 1) q/(2 b)", (np.exp(0.15) - 1) * 0.25),
        ("log(1/min(a, b))", -np.log(0.15)),
    ],
)
def test_a_formula_is_read_as_it_is_written(text, expected):
    value = formula(text)(Numbers(a=0.15, b=0.5), np.array([0.25]))
    assert value == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("column", "text", "holds"),
    [
        ("accepts", "min(1, g/p), g = min(q + sqrt(2 delta q (1-q)), 1)", True),
        ("accepts", "min(1, g/p), g = min(q + sqrt(3 delta q (1-q)), 1)", False),
        ("guarantees", "KL(h||q) <= log(1 + 2 delta), chi2(h||q) <= 2 delta", True),
        ("guarantees", "KL(h||q) <= log(1 + 2 delta), chi2(h||q) <= delta", False),
        ("guarantees", "chi2(h||q) and KL(h||q) <= delta/2" + NOTHING_OF_OUT, False),
        ("guarantees", "TV(h, q) <= sqrt(delta/2)", True),
        ("guarantees", "TV(h, q) <= delta", False),
        ("guarantees", "TV(out, q) <= min(delta, 1)", False),
        ("guarantees", "KL(out||q) <= delta", False),
    ],
)
def test_a_false_formula_is_found_out(column, text, holds):
    draft, target = np.array([0.5, 0.4, 0.1]), np.array([0.1, 0.2, 0.7])
    assert np.all(check_of(column, text)(Cactus(0.1), draft, target)) == holds


@pytest.mark.parametrize("text", ["nearly nothing", "KL(h||q) <= as much as it likes"])
def test_words_without_a_check_are_refused(text):
    with pytest.raises(AssertionError, match="neither a formula nor has a check"):
        check_of("guarantees", text)
