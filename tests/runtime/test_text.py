"""Text that comes token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime.text import TextStream


class Bytes:
    """One token per byte: characters arrive in pieces."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")


def stream(text, stop=()):
    ids = list(text.encode())
    out = TextStream(Bytes(), [65], stop)
    pieces = []
    for i, token in enumerate(ids):
        pieces.append(out.push(token, last=i == len(ids) - 1))
        if out.stopped:
            break
    return out, pieces


@given(st.text(min_size=1).filter(lambda text: "\ufffd" not in text))
def test_pieces_add_up_to_the_text(text):
    out, pieces = stream(text)
    assert "".join(pieces) == out.text == text


class Words:
    """One token per word, joined by spaces; token 0 is special and skipped."""

    def decode(self, ids, **_):
        return " ".join("w" * token for token in ids if token)


def test_a_special_token_does_not_swallow_the_space_after_it():
    out = TextStream(Words(), [1], ())
    assert [out.push(token) for token in (2, 0, 3)] == [" ww", "", " www"]


def test_a_character_waits_until_it_is_whole():
    assert stream("aé")[1] == ["a", "", "é"]


letters = st.text("ab", min_size=1, max_size=12)


@given(letters, st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_to_be_completed(text, stop):
    out, pieces = stream(text, stop)
    ends = [i for i in range(len(text) + 1) if any(text[:i].endswith(s) for s in stop)]
    if ends:
        head = text[: ends[0]]
        want = min(head.find(s) for s in stop if s in head)
        assert out.stopped
        assert out.text == text[:want]
    else:
        assert not out.stopped
        assert out.text == text
    assert "".join(pieces) == out.text


def test_text_that_may_begin_a_stop_string_is_held_back():
    assert stream("xENDING", ["ENDE"])[1] == ["x", "", "", "", "ENDI", "N", "G"]


@pytest.mark.parametrize("stop", [["é"], ["aé"]])
def test_a_stop_string_of_several_bytes_is_found(stop):
    assert stream("xaéb", stop)[0].stopped


def test_without_a_tokenizer_there_is_no_text():
    assert TextStream(None, [1], ()).push(3) == ""
