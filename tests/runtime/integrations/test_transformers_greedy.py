"""Greedy: token for token what `generate` itself returns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    WatermarkingConfig,
)

from cactus_runtime import PromptLookup, load_pair
from cactus_runtime.integrations.transformers_generate import cactus_generate
from cactus_theory import Cactus
from tests.runtime.integrations.generating import EOS, PAIR, TINY, generate, left_padded, native

rows = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=3)
GREEDY_OPTIONS = {
    "bare": {},
    "repetition penalty": {"repetition_penalty": 1.8},
    "n-grams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[2], [4, 5]]},
    "bias": {"sequence_bias": [[[0], 1.5], [[3], -2.0], [[1, 5], 3.0]]},
    "least new": {"min_new_tokens": 5},
    "least length": {"min_length": 9},
    "forced end": {"forced_eos_token_id": EOS},
    "decay": {"exponential_decay_length_penalty": (2, 1.4)},
    "suppressed": {"suppress_tokens": [1, 3], "begin_suppress_tokens": [2]},
    "prompt's tokens": {"encoder_repetition_penalty": 4.0},
    "prompt's n-grams": {"encoder_no_repeat_ngram_size": 1},
    "by row": {"prefix_allowed_tokens_fn": lambda row, ids: [row % 4, row % 4 + 2, 5, EOS]},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.5)},
    "normalised": {"renormalize_logits": True, "remove_invalid_values": True},
    "several": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 3},
    "ends": {"eos_token_id": [2, EOS]},
    "no end": {"eos_token_id": None},
}


@pytest.mark.parametrize("name", GREEDY_OPTIONS)
@settings(max_examples=settings.default.max_examples // 10)
@given(rows, st.integers(0, 5))
def test_greedy_rows_are_those_of_generate_itself(name, prompts, num_draft_tokens):
    options = {
        **left_padded(prompts),
        "do_sample": False,
        "max_new_tokens": 10,
        "eos_token_id": EOS,
        **GREEDY_OPTIONS[name],
    }
    found = generate(
        PAIR[0],
        **options,
        draft_model=PAIR[1],
        rule=Cactus(1.0),
        num_draft_tokens=num_draft_tokens,
    )
    assert found.tolist() == native(PAIR[0], **options).tolist()


@pytest.mark.parametrize("name", sorted({*GREEDY_OPTIONS} - {"bare", "normalised"}))
def test_each_of_these_options_changes_something(name):
    prompts = [[1, 2, 3], [5, 1], *([i] for i in range(6))]
    options = {**left_padded(prompts), "do_sample": False, "max_new_tokens": 6}
    bare = generate(PAIR[0], **options, eos_token_id=EOS)
    changed = generate(PAIR[0], **options, **{"eos_token_id": EOS, **GREEDY_OPTIONS[name]})
    assert bare.tolist() != changed.tolist()


@pytest.mark.parametrize("draft", ["none", "lookup", "pair"])
def test_greedy_text_of_the_tiny_pair_is_that_of_generate_itself(draft):
    batch = TINY.tokenizer(["dog: a dog is a dog", "kindness:"], return_tensors="pt", padding=True)
    options = {**batch, "do_sample": False, "max_new_tokens": 24}
    drafts = {"none": None, "lookup": PromptLookup(), "pair": TINY.draft}
    found = TINY.target.generate(
        **options, custom_generate=cactus_generate, draft_model=drafts[draft]
    )
    assert found.tolist() == TINY.target.generate(**options).tolist()


@pytest.mark.smollm2
def test_greedy_text_of_smollm2_is_that_of_generate_itself():
    smollm2 = load_pair("smollm2")
    batch = smollm2.tokenizer(["The three primary colours are"], return_tensors="pt")
    options = {**batch, "do_sample": False, "max_new_tokens": 8}
    found = smollm2.target.generate(
        **options, custom_generate=cactus_generate, draft_model=smollm2.draft
    )
    assert found.tolist() == smollm2.target.generate(**options).tolist()
