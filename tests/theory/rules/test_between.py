"""A rule between two markers: which rule a position has, however the text is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_theory import BetweenMarkers, Cactus, Clamp, SpeculativeSampling

tokens = st.lists(st.integers(0, 2), max_size=12)
markers = st.one_of(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=3))


def by_text(rule, ids):
    """The same by a scan of its own: a text of letters, cut at each marker that ends somewhere."""
    text, inside = "".join(map(str, ids)), False
    start, end = ("".join(map(str, marker)) for marker in (rule.start, rule.end))
    for length in range(1, len(text) + 1):
        if text[:length].endswith(end if inside else start):
            inside = not inside
    return inside


@given(tokens, markers, markers, st.data())
def test_a_text_read_in_parts_is_where_it_is_when_read_at_once(ids, start, end, data):
    rule = BetweenMarkers(Cactus(0.1), start, end)
    begun = data.draw(st.integers(0, len(ids)))
    inside = rule.is_inside(ids)
    assert inside == by_text(rule, ids)
    assert rule.is_inside(ids, begun=begun, inside=rule.is_inside(ids[:begun])) == inside
    assert rule.rule_at(ids) == (Cactus(0.1) if inside else SpeculativeSampling())


@given(tokens, tokens, markers, markers)
def test_a_block_ends_with_the_first_draft_that_changes_the_rule(ids, drafted, start, end):
    rule = BetweenMarkers(Cactus(0.1), start, end, outside=Clamp(0.1))
    count = rule.steps(ids, drafted, inside=rule.is_inside(ids))
    assert 0 <= count <= len(drafted)
    for i in range(count):  # positions that are verified
        assert rule.rule_at([*ids, *drafted[:i]]) == rule.rule_at(ids)
    if count < len(drafted):
        assert rule.rule_at([*ids, *drafted[:count]]) != rule.rule_at(ids)


def test_text_becomes_ids():
    rule = BetweenMarkers(Cactus(0.1), "<think>", 9).with_ids(lambda text: [len(text)])
    assert rule == BetweenMarkers(Cactus(0.1), [7], [9])
    assert rule.is_inside([7])
    assert not rule.is_inside([7, 9])


def test_what_is_wrong_is_named():
    with pytest.raises(TypeError, match=r"^rule must be one of cactus_theory's rules, got 0\.1$"):
        BetweenMarkers(0.1, 1, 2)
    with pytest.raises(TypeError, match=r"^outside must be one of"):
        BetweenMarkers(Cactus(0.1), 1, 2, outside=None)
    with pytest.raises(ValueError, match=r"^start must not be empty, got ''$"):
        BetweenMarkers(Cactus(0.1), "", 2)
    with pytest.raises(ValueError, match=r"^end must have at least one token, got \[\]$"):
        BetweenMarkers(Cactus(0.1), 1, [])
    with pytest.raises(ValueError, match=r"^end must be an integer >= 0, got -1$"):
        BetweenMarkers(Cactus(0.1), 1, -1)
    with pytest.raises(ValueError, match=r"^start must be token ids before a text can be read"):
        BetweenMarkers(Cactus(0.1), "a", 2).rule_at([1])
