"""Every claim gives its verdict, and every false variant of it does not."""

import pytest

from proofs_check import claims

REGISTRY = claims.load()
VARIANTS = [
    pytest.param(item, variant, id=f"{item.name}-{place}")
    for item in REGISTRY.values()
    for place, variant in enumerate(item.false)
]
QUICK = [item for item in REGISTRY.values() if item.quick]


@pytest.mark.parametrize("item", QUICK, ids=lambda item: item.name)
def test_a_claim_gives_the_verdict_that_is_stated(item):
    done = claims.run(item)
    assert done.as_expected, done.finding.note


@pytest.mark.parametrize(("item", "variant"), VARIANTS)
def test_a_false_variant_of_a_claim_is_not_accepted(item, variant):
    done = claims.run(item, **variant)
    assert not done.finding.note.startswith("error"), done.finding.note
    assert done.verdict == ("undecided" if done.finding.outcome == "undecided" else "false")
    if item.kind == "interval":
        assert done.verdict == "false", "an interval claim's false variant must be refuted"


@pytest.mark.parametrize("item", REGISTRY.values(), ids=lambda item: item.name)
def test_a_claim_can_fail_and_says_what_it_rests_on(item):
    assert item.false
    assert set(item.depends) <= set(REGISTRY)
    assert item.statement
    assert item.tex
    assert item.kind in claims.KINDS


def test_only_machine_checked_kinds_are_called_proved():
    for item in REGISTRY.values():
        if item.expected == "proved":
            assert item.kind in {"symbolic", "interval", "exhaustive"}
