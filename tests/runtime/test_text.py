"""Text that comes token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


def byte_fallback():
    """As Llama 2's: pieces of text, and 256 tokens for the bytes of what is none of them."""
    vocabulary = {"<unk>": 0, "</s>": 1, "<s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    for piece in ("▁", "a", "b", "\ufffd"):
        vocabulary[piece] = len(vocabulary)
    core = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="</s>")


def byte_level():
    """As GPT-2's: a token for every byte, and one merge inside a character."""
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["ðŁ"] = len(vocabulary)  # the first two bytes of most emoji
    core = Tokenizer(models.BPE(vocabulary, [("ð", "Ł")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


TOKENIZERS = {"byte fallback": byte_fallback(), "byte-level": byte_level()}
written = st.text("a b\u00e9\u20ac\ufffd\U0001f600\U0001f601", max_size=8)


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def streamed(tokenizer, prompt, ids, stop=()):
    out = TextStream(tokenizer, prompt, stop)
    for i, token in enumerate(ids):
        out.push(token, last=i == len(ids) - 1)
        if out.stopped:
            break
    return out


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(prompt=written, text=written.filter(bool), beyond=st.integers(0, 3))
def test_the_text_is_what_whole_characters_follow_the_prompt(kind, prompt, text, beyond):
    """Also where the prompt's last tokens are the first of the text's first character."""
    tokenizer = TOKENIZERS[kind]
    ids = ids_of(tokenizer, f"a{prompt}{text}")
    own = len(ids_of(tokenizer, f"a{prompt}"))
    inside = len(ids_of(tokenizer, f"a{prompt}{text[0]}")) - own
    own += min(beyond, inside - 1)
    out = streamed(tokenizer, ids[:own], ids[own:])
    assert out.text == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("cut", range(8))
def test_a_prompt_that_begins_inside_a_character_spoils_no_text(kind, cut):
    tokenizer = TOKENIZERS[kind]
    prompt = ids_of(tokenizer, "\U0001f600\U0001f600")[-8 + cut :]
    out = streamed(tokenizer, prompt, ids_of(tokenizer, "b\U0001f601b")[-6:], ["\U0001f601"])
    assert out.stopped
    assert out.text.endswith("b")
    assert "\ufffd" not in out.text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_bytes_that_are_no_character_spoil_none_before_them(kind):
    tokenizer = TOKENIZERS[kind]
    prompt = ids_of(tokenizer, "a\U0001f600")
    broken = ids_of(tokenizer, "\U0001f601")[-4:][:1]
    assert streamed(tokenizer, prompt, broken).text == "\ufffd"
    letter = ids_of(tokenizer, "ab")[-1:]
    assert streamed(tokenizer, prompt, [*broken, *letter]).text == "\ufffdb"
