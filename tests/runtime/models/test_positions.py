"""Rotary frequencies that change with the length, against reading the whole text anew.

Greedy tokens and log-probabilities of every block length must be those of uncached passes over
the text so far. Float32 passes of different shapes differ by some 1e-6 in a log-probability; at a
switch that is overlooked it moves by tenths.
"""

import pytest
import torch

from cactus_runtime import Decoder, PromptLookup, Request, SamplingParams
from cactus_runtime.models.positions import context_length, switches
from tests.tiny_models import tiny_model

SWITCH = 16
SMALL = {"vocab_size": 11, "num_hidden_layers": 2, "pad_token_id": 0}


def longrope(seed=0, *, switch=SWITCH, kind="Phi3ForCausalLM"):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": switch,
    }
    options = {"original_max_position_embeddings": switch} if kind.startswith("Phi") else {}
    if kind == "PhimoeForCausalLM":
        rope |= {"short_mscale": 1.1, "long_mscale": 1.2}
        options |= {"num_local_experts": 2, "num_key_value_heads": 2}
    return tiny_model(
        kind,
        seed,
        std=0.4,
        max_position_embeddings=64,
        rope_parameters=rope,
        **SMALL,
        **options,
    )


def decode(target, draft, prompt, k, tokens=20):
    sampling = SamplingParams(temperature=0)
    request = Request(prompt, num_draft_tokens=k, max_new_tokens=tokens, sampling=sampling)
    return Decoder(target, draft=draft).stream(request).finish()


def check_reads_anew(model, prompt, result):
    for place, token in enumerate(result.trace):
        ids = [*prompt, *result.tokens[:place]]
        logprobs = model(torch.tensor([ids]), use_cache=False).logits[0, -1].log_softmax(-1)
        assert token.id == int(logprobs.argmax())
        assert token.logprob == pytest.approx(float(logprobs[token.id]), abs=1e-4)


@pytest.mark.parametrize("k", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("length", [1, 5, 12, 15, 16, 17, 18, 30])
def test_a_row_that_crosses_the_switch_is_read_anew(length, k):
    target, draft = longrope(0), longrope(1)
    prompt = [1 + i % 9 for i in range(length)]
    for drafts in (draft, target):
        check_reads_anew(target, prompt, decode(target, drafts, prompt, k))


@pytest.mark.parametrize("kind", ["Phi3ForCausalLM", "LlamaForCausalLM", "PhimoeForCausalLM"])
def test_every_class_with_such_frequencies_is_read_anew(kind):
    target = longrope(0, kind=kind)
    check_reads_anew(target, [3, 1, 4], decode(target, longrope(1), [3, 1, 4], 4))


@pytest.mark.parametrize("switch", [9, 12, 40])
def test_target_and_draft_may_switch_at_different_lengths(switch):
    target, draft = longrope(0), longrope(1, switch=switch)
    result = decode(target, draft, [2, 7, 1], 4, tokens=30)
    check_reads_anew(target, [2, 7, 1], result)
    itself = decode(target, target, [2, 7, 1], 4)
    assert all(block.accepted == block.drafted for block in itself.blocks)


def test_drafts_of_an_object_do_not_straddle_the_switch():
    target = longrope(0)
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    check_reads_anew(target, prompt, decode(target, PromptLookup(), prompt, 5))


def test_phi_3_gives_what_generate_gives():
    target = longrope(0)
    prompt = [5, 1, 3, 2, 8]
    wanted = target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20)
    for k in (0, 4):
        assert list(decode(target, longrope(1), prompt, k).tokens) == wanted[0, 5:].tolist()


def test_a_decoder_that_is_kept_begins_again_below_the_switch():
    target = longrope(0)
    decoder = Decoder(target, draft=longrope(1))
    for length in (20, 3, 16):
        prompt = [1 + i % 9 for i in range(length)]
        request = Request(prompt, max_new_tokens=12, sampling=SamplingParams(temperature=0))
        check_reads_anew(target, prompt, decoder.stream(request).finish())


def rope(**parameters):
    return tiny_model(
        "MistralForCausalLM",
        max_position_embeddings=16,
        num_key_value_heads=2,
        rope_parameters=parameters,
        **SMALL,
    )


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({"rope_type": "default"}, 16),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2}, 16),
        ({"rope_type": "linear", "factor": 4.0}, 16),
        ({"rope_type": "dynamic", "factor": 4.0}, 16),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else str(list(value.values())),
)
def test_the_context_is_what_the_rope_settings_make_of_it(parameters, length):
    model = rope(**{"rope_theta": 1e4, **parameters})
    assert context_length(model) == length
    assert not switches(model)
    with pytest.raises(ValueError, match=f"context of {length} tokens"):
        Decoder(model).stream(Request([1, 2], max_new_tokens=length - 1))


@pytest.mark.parametrize("k", [0, 4])
def test_under_yarn_positions_beyond_those_of_the_pretraining_are_decoded(k):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    target = rope(rope_theta=1e4, **yarn)
    result = decode(target, rope(rope_theta=1e4, **yarn), [1, 2], k, tokens=62)
    check_reads_anew(target, [1, 2], result)
    results = Decoder(target).batch(
        [Request([1, 2], max_new_tokens=n, sampling=SamplingParams(temperature=0)) for n in (62, 9)]
    )
    check_reads_anew(target, [1, 2], results.finish()[0])
