"""What a request takes, and what it refuses by name and value."""

import numpy as np
import pytest
import torch

from cactus_runtime import (
    Decoder,
    Request,
    decode,
)
from tests.runtime.greedy import GREEDY, stream


@pytest.mark.smollm2
def test_a_chat_prompt_goes_through_the_chat_template(smollm2):
    messages = [{"role": "user", "content": "Say hello."}]
    text = smollm2.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    ids = smollm2.tokenizer(text)["input_ids"]
    options = {"sampling": GREEDY, "max_new_tokens": 8}
    assert decode(smollm2, messages, **options).tokens == decode(smollm2, ids, **options).tokens


def test_a_chat_prompt_needs_a_chat_template_and_a_text_prompt_a_tokenizer(random_pair, tiny):
    with pytest.raises(ValueError, match="tokenizer must be given for a text prompt"):
        decode(random_pair[0], "hello")
    with pytest.raises(ValueError, match="chat_template"):
        decode(tiny, [{"role": "user", "content": "hi"}])


def test_numpy_integers_and_arrays_are_taken_as_they_are(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    plain = stream(decoder, [1, 2], max_new_tokens=6, num_draft_tokens=2, seed=3).finish()
    numpy = stream(
        decoder,
        np.array([1, 2]),
        max_new_tokens=np.int64(6),
        num_draft_tokens=np.int64(2),
        seed=np.int64(3),
    ).finish()
    tensor = stream(
        decoder, torch.tensor([1, 2]), max_new_tokens=6, num_draft_tokens=2, seed=3
    ).finish()
    assert plain.tokens == numpy.tokens == tensor.tokens


def options():
    """Arguments that are wrong, and what the message must name."""
    return [
        ({"prompt": []}, ValueError, "prompt must have at least one token"),
        ({"prompt": [7]}, ValueError, r"prompt ids .* \[0, 7\), got 7"),
        ({"prompt": [-1]}, ValueError, "got -1"),
        ({"prompt": [1.5]}, ValueError, "got 1.5"),
        ({"prompt": b"one"}, TypeError, "prompt must be text, a sequence .* got b'one'"),
        ({"prompt": None}, TypeError, "prompt must be text, a sequence .* got None"),
        ({"stop": None}, TypeError, "stop must be a sequence of non-empty strings, got None"),
        ({"eos_token_id": 1.5}, ValueError, "eos_token_id must be token ids, got 1.5"),
        ({"prompt": [1] * 200}, ValueError, r"\(200 tokens\).*context of 128 tokens; at most 0"),
        ({"max_new_tokens": 200}, ValueError, "max_new_tokens=200.*at most 127"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be an integer >= 1, got 0"),
        ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens"),
        ({"num_draft_tokens": -1}, ValueError, "num_draft_tokens must be an integer >= 0, got -1"),
        ({"num_draft_tokens": True}, TypeError, "num_draft_tokens"),
        ({"rule": 0.5}, TypeError, "rule must be one of cactus_theory's rules, got 0.5"),
        ({"sampling": 0.7}, TypeError, "sampling must be SamplingParams, got 0.7"),
        ({"seed": -1}, ValueError, r"seed must lie in \[0, 2\*\*64\), got -1"),
        ({"seed": "x"}, TypeError, "seed must be an integer, got 'x'"),
        ({"max_kl": -1.0}, ValueError, "max_kl must be a number >= 0, got -1.0"),
        ({"max_kl": float("nan")}, ValueError, "max_kl must be a number >= 0, got nan"),
        ({"max_total_variation": "x"}, TypeError, "max_total_variation must be .* got 'x'"),
        ({"stop": "END"}, TypeError, "stop must be a sequence of non-empty strings, got 'END'"),
        ({"stop": [""]}, TypeError, "stop"),
        ({"stop": ["x"]}, ValueError, "tokenizer must be given for stop strings"),
        ({"eos_token_id": "x"}, ValueError, "eos_token_id must be token ids, got 'x'"),
    ]


@pytest.mark.parametrize(("wrong", "error", "words"), options(), ids=lambda x: str(x)[:40])
def test_a_wrong_argument_is_named_with_its_value(random_pair, wrong, error, words):
    arguments = {"prompt": [1], "max_new_tokens": 5, **wrong}
    with pytest.raises(error, match=words):
        decode(random_pair[0], arguments.pop("prompt"), draft=random_pair[1], **arguments)


def test_a_role_that_the_chat_template_refuses_is_told_of():
    decoder = Decoder("tiny")
    decoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    system = [{"role": "system", "content": "dog:"}]
    with pytest.raises(ValueError, match=r"chat template takes: System role .*'role': 'system'"):
        decoder.stream(Request(system))
    user = [{"role": "user", "content": "dog:"}]
    assert decoder.stream(Request(user, max_new_tokens=2)).finish().prompt_tokens > 0
