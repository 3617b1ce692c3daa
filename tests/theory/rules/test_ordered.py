"""Which rules are ordered is said of each, and is what each does."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cactus_theory.rules
from cactus_theory import (
    CandidateRule,
    Rule,
    TopKAcceptance,
    TypicalAcceptance,
    acceptance_rate,
    output_distribution,
)
from cactus_theory.rules.registry import RULES as REGISTERED
from cactus_theory.testing import pairs
from cactus_theory.testing.strategies import rules_of

RULES = [
    rule
    for rule in vars(cactus_theory.rules).values()
    if isinstance(rule, type) and issubclass(rule, Rule) and not inspect.isabstract(rule)
]
ORDERED = [kind for kind in RULES if kind.ordered]
SLACK = 1e-12  # sums over at most 8 tokens err by some 1e-15, a level solved by bracketing by more


def named(kind: type) -> str:
    return kind.__name__


def excess_over_the_order(rule, p, q) -> float:
    """How far the emitted distribution or the accepted mass is from what an ordered rule has."""
    out, mass = output_distribution(rule, draft=p, target=q), rule.accepted_mass(p, q)
    low, high = np.where(p > q, q, p), np.where(p > q, p, q)
    return max(*(low - out), *(out - high), *np.abs(mass - np.where(p > q, out, p)))


@pytest.mark.parametrize("kind", ORDERED, ids=named)
@given(data=st.data())
def test_an_ordered_rule_emits_between_draft_and_target_and_accepts_all_it_can(kind, data):
    rule, (p, q) = data.draw(rules_of(kind)), data.draw(pairs(min_size=1))
    assert excess_over_the_order(rule, p, q) <= SLACK


@pytest.mark.parametrize("kind", ORDERED, ids=named)
@given(data=st.data())
def test_the_acceptance_of_an_ordered_rule_is_the_overlap_of_draft_and_emitted(kind, data):
    rule, (p, q) = data.draw(rules_of(kind)), data.draw(pairs(min_size=1))
    out = output_distribution(rule, draft=p, target=q)
    assert acceptance_rate(rule, draft=p, target=q) == pytest.approx(
        np.minimum(p, out).sum(), abs=SLACK
    )


@pytest.mark.parametrize(
    ("rule", "p", "q"),
    [
        # kept is only a target's argmax: the second token is emitted less than by either model
        (TopKAcceptance(1), [0.3, 0.7], [0.6, 0.4]),
        (TypicalAcceptance(0.5, 1.0), [0.3, 0.7], [0.6, 0.4]),
    ],
    ids=repr,
)
def test_such_a_rule_may_leave_the_order_by_far(rule, p, q):
    assert excess_over_the_order(rule, np.array(p), np.array(q)) > 0.1


@pytest.mark.parametrize("kind", [kind for kind in RULES if not kind.ordered], ids=named)
def test_a_rule_not_said_to_be_ordered_is_seen_not_to_be(kind):
    (rule,) = (entry.example() for entry in REGISTERED.values() if entry.kind is kind)
    p, q = np.random.default_rng(0).dirichlet(np.full(16, 0.5), size=(2, 50))
    assert max(map(excess_over_the_order, [rule] * 50, p, q)) > 0.01


def test_a_rule_of_ones_own_is_ordered_by_its_kind_or_if_it_says_so():
    class Mine(Rule):
        def accepted_mass(self, draft, target, *, xp=np):
            return draft

        def recovery_weights(self, token, draft, target):
            return target

    class Boosting(CandidateRule):
        def boost(self, target_prob, *, xp=np):
            return (1 + target_prob) / 2

        def shrink(self, target_prob, *, xp=np):
            return 0.5 + 0 * target_prob

    assert not Mine.ordered
    assert Boosting.ordered
    assert excess_over_the_order(Boosting(), np.array([0.9, 0.1]), np.array([0.4, 0.6])) <= SLACK
