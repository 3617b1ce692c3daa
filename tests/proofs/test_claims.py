"""Every claim gives its verdict, every false variant of it does not, and proofs are no circles."""

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest

from proofs_check import claims
from proofs_check.claims import Kind, Step

REGISTRY = claims.load()
VARIANTS = [
    pytest.param(item, variant, id=f"{item.name}-{place}")
    for item in REGISTRY.values()
    for place, variant in enumerate(item.false)
]


@pytest.mark.parametrize("item", REGISTRY.values(), ids=lambda item: item.name)
def test_a_claim_gives_the_verdict_that_is_stated(item):
    done = claims.run(item)
    assert done.as_expected, done.note


@pytest.mark.parametrize(("item", "variant"), VARIANTS)
def test_a_false_variant_of_a_claim_is_not_accepted(item, variant):
    done = claims.run(item, **variant)
    assert not any(found.note.startswith("error") for _, found in done.results), done.note
    assert done.verdict == "failed", "a false variant must be refuted, not left undecided"


@pytest.mark.parametrize("item", REGISTRY.values(), ids=lambda item: item.name)
def test_a_claim_can_fail_and_says_why_it_holds(item):
    assert item.false
    assert item.statement
    assert item.tex
    for step in item.steps():
        assert step.says.endswith(".")
        assert step.tex
        assert step.kind in claims.KINDS


def test_no_claim_rests_on_itself():
    order = TopologicalSorter({item.name: item.uses for item in REGISTRY.values()})
    assert set(order.static_order()) == set(REGISTRY)


def test_a_proved_claim_rests_on_no_evidence():
    for item in REGISTRY.values():
        if item.expected == "proved":
            assert {REGISTRY[name].expected for name in item.uses} <= {"proved"}, item.name


def made_of(*steps, expected="proved"):
    item = REGISTRY["tangent-of-log"]
    return replace(item, build=lambda: iter(steps), expected=expected)


def step(holds: bool, kind: Kind = "symbolic") -> Step:
    return Step("A step.", "x", lambda: holds, kind)


@pytest.mark.parametrize(
    ("steps", "expected", "verdict"),
    [
        ([step(True), step(True, "interval"), step(True, "exhaustive")], "proved", "proved"),
        ([step(True), step(True, "evidence")], "proved", "supported"),
        ([step(True), step(True, "evidence")], "open", "open"),
        ([step(True)], "open", "proved"),
        ([step(True, "counterexample"), step(True, "evidence")], "refuted", "refuted"),
        ([step(True), step(False)], "proved", "failed"),
        ([step(False, "counterexample")], "refuted", "failed"),
        ([Step("A step.", "x", lambda: bool(1 / 0))], "proved", "undecided"),
        ([], "proved", "undecided"),
    ],
)
def test_the_verdict_follows_from_the_steps(steps, expected, verdict):
    assert claims.run(made_of(*steps, expected=expected)).verdict == verdict


def test_the_note_names_the_step_that_does_not_hold():
    assert claims.run(made_of(step(True), step(False))).note == "step 2 fails: A step."
