"""Which samples of a transcript can be scored, and which are dropped and counted."""

from __future__ import annotations

import pytest

from cactus_runtime.audit.transcripts import prepare, read_transcripts


def ready(tiny, **told):
    return prepare([told], tiny.tokenizer, vocabulary=tiny.target.config.vocab_size)


def test_ids_that_give_the_text_are_kept_and_ids_that_lack_one_are_dropped(tiny):
    ids = tiny.tokenizer(" a large animal")["input_ids"]
    text = tiny.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert ready(tiny, prompt="dog:", token_ids=ids, text=text).samples[0].token_ids == ids
    lost = ready(tiny, prompt="dog:", token_ids=ids[:-1], text=text)
    assert lost.samples == []
    assert lost.dropped == {"the ids do not decode to the text": 1}


def test_text_alone_is_tokenised_after_its_prompt(tiny):
    found = ready(tiny, prompt="dog:", text=" a cat").samples[0]
    whole = tiny.tokenizer("dog: a cat")["input_ids"]
    assert [*found.prompt_ids, *found.token_ids] == whole


def test_a_text_that_merges_with_its_prompt_is_dropped(tiny):
    assert tiny.tokenizer("ri")["input_ids"] != tiny.tokenizer("river:")["input_ids"][:1]
    dropped = ready(tiny, prompt="ri", text="ver:").dropped
    assert dropped == {"the text changes the ids of its prompt": 1}


def test_an_empty_text_is_dropped(tiny):
    assert ready(tiny, prompt="dog:", text="").dropped == {"the text is empty": 1}
    assert ready(tiny, prompt="dog:", token_ids=[]).dropped == {"the text is empty": 1}


def test_an_id_beyond_the_vocabulary_tells_of_another_tokenizer(tiny):
    with pytest.raises(ValueError, match="with another tokenizer"):
        ready(tiny, prompt="dog:", token_ids=[10**6])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 must be a JSON object"),
        ("[]", "line 1 must be a JSON object"),
        ('{"text": "a"}', "line 1 must have prompt or prompt_ids, got text"),
        ('{"prompt": "a"}', "line 1 must have token_ids or text"),
        ('{"prompt": 1, "text": "a"}', "prompt of line 1 must be a text, got 1"),
        ('{"prompt": "a", "token_ids": [-1]}', "token_ids of line 1 must be a list of token ids"),
    ],
)
def test_a_line_that_is_no_transcript_is_named(line, message):
    with pytest.raises(ValueError, match=message):
        read_transcripts([line])
