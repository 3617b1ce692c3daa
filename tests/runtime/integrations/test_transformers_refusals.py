"""What `cactus_generate` cannot serve is named."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import (
    DynamicCache,
)

from cactus_runtime.integrations.transformers_generate import cactus_generate
from tests.runtime.integrations.generating import PAIR, Recorder, Sum, generate

RIGHT = torch.tensor([[1, 1, 0], [1, 1, 1]])
FULL = DynamicCache()
REFUSED = {
    "beams": ({"num_beams": 2}, "num_beams=2 cannot be served: beams are not sampled"),
    "an assistant": ({"assistant_model": PAIR[1]}, "assistant_model does not reach .* draft_model"),
    "a loose streamer": ({"streamer": Recorder()}, "streamer does not reach .* bind it"),
    "step": ({"synced_gpus": True}, "synced_gpus does not reach"),
    "no cache": ({"use_cache": False}, "use_cache=False cannot be served"),
    "contrast": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6 .* another method"),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale=1.5 cannot be served"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, r"draft_model=PromptLookup\(\)"),
    "scores": (
        {"output_scores": True, "return_dict_in_generate": True},
        "output_scores=True cannot be served: a result's trace",
    ),
    "a cache": ({"cache": FULL}, "cache cannot be served: the decoder keeps"),
    "padding on the right": ({"attention_mask": RIGHT}, "attention_mask must hide padding on the"),
    "positions": (
        {"position_ids": torch.tensor([[1, 2, 3], [0, 1, 2]])},
        r"position_ids must count from 0 in each row, got \[\[1, 2, 3\]",
    ),
    "stop strings": ({"stop_strings": "a"}, "stop_strings='a' need a tokenizer"),
    "a streamer of two": (
        {"custom_generate": partial(cactus_generate, streamer=Recorder())},
        "streamer must be None for more than one row, got 2 rows",
    ),
    "no padding": (
        {"stopping_criteria": [Sum()], "pad_token_id": None},
        "pad_token_id must be given where rows may end at different lengths, got None",
    ),
    "no number": ({"num_draft_tokens": -1}, "num_draft_tokens must be an integer >= 0, got -1"),
    "typing error": ({"num_draft_token": 3}, "num_draft_token"),
    "too long": ({"max_new_tokens": 500}, "must fit the target's context of 128 tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_named(name):
    options, words = REFUSED[name]
    options = {"max_new_tokens": 4, "draft_model": PAIR[1], **options}
    with pytest.raises(ValueError, match=words):
        generate(PAIR[0], [[1, 2, 3], [4, 5, 6]], **options)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_streamer_is_ended_by_whatever_is_refused(name):
    """Where a reader in another thread waited for ever."""
    options, _ = REFUSED[name]
    recorder = Recorder()
    bound = {"custom_generate": partial(cactus_generate, streamer=recorder)}
    if name == "a loose streamer":
        bound = {"streamer": recorder}
    options = {"max_new_tokens": 4, "draft_model": PAIR[1], **options, **bound}
    with pytest.raises(ValueError, match=r"\w"):
        generate(PAIR[0], [[1, 2, 3], [4, 5, 6]], **options)
    # what `generate` itself refuses never reaches us, nor its streamer
    assert recorder.events.count("end") == (name != "typing error")


def test_a_processor_with_a_state_is_refused():
    from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor

    guide = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, PAIR[0])
    with pytest.raises(ValueError, match=r"UnbatchedClassifier.* carries a state"):
        generate(PAIR[0], [[1]], logits_processor=[guide], max_new_tokens=2)


def test_an_unknown_input_of_a_model_is_refused():
    with pytest.raises(TypeError, match="cactus_generate takes no inputs_embeds, got Tensor"):
        generate(PAIR[0], [[1, 2]], inputs_embeds=torch.zeros(1, 2, 16), max_new_tokens=2)
