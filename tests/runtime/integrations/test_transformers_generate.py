"""`model.generate(..., custom_generate=cactus_generate)`: transformers' interface, our decoder."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network; read when transformers loads

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    TextStreamer,
    TopKLogitsWarper,
    WatermarkingConfig,
    set_seed,
)
from transformers.generation.streamers import BaseStreamer

from cactus_runtime import Decoder, PromptLookup, Request, SamplingParams, decode, load_pair
from cactus_runtime.integrations.transformers_generate import CactusOutput, cactus_generate
from cactus_theory import Cactus, SpeculativeSampling, output_distribution
from cactus_theory.testing._gtest import follows, power
from tests.runtime.conftest import make_random_model

EOS, PAD = 6, 0
PAIR = make_random_model(0, layers=2), make_random_model(1)
TINY = load_pair("tiny")
TINY.tokenizer.padding_side = "left"


def generate(model, ids, **options):
    """Ours; a row of padding is told by the mask alone."""
    ids = torch.tensor(ids)
    options = {"attention_mask": torch.ones_like(ids), "pad_token_id": PAD, **options}
    options.setdefault("custom_generate", cactus_generate)
    return model.generate(ids, **options)


def native(model, ids, **options):
    return generate(model, ids, custom_generate=None, **options)


def left_padded(rows):
    width = max(map(len, rows))
    ids = [[PAD] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {"ids": ids, "attention_mask": torch.tensor(mask)}


# Greedy: token for token what generate itself returns -------------------------------------------

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


# Sampling: token for token what our decoder returns ---------------------------------------------

SAMPLINGS = [
    ({}, SamplingParams()),
    ({"temperature": 0.7}, SamplingParams(temperature=0.7)),
    (
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    ),
    ({"min_p": 0.1, "top_p": 0.9}, SamplingParams(min_p=0.1, top_p=0.9)),
]


@pytest.mark.parametrize(("theirs", "ours"), SAMPLINGS, ids=lambda x: str(x)[:40])
def test_a_seed_gives_the_tokens_of_decode(theirs, ours):
    for prompt in ("dog:", "kindness:"):
        batch = TINY.tokenizer([prompt], return_tensors="pt")
        output = TINY.target.generate(
            **batch,
            custom_generate=cactus_generate,
            draft_model=TINY.draft,
            rule=Cactus(0.2),
            num_draft_tokens=3,
            seed=5,
            do_sample=True,
            max_new_tokens=20,
            return_dict_in_generate=True,
            **{"top_k": 0, **theirs},
        )
        expected = decode(
            TINY,
            prompt,
            rule=Cactus(0.2),
            num_draft_tokens=3,
            seed=5,
            sampling=ours,
            max_new_tokens=20,
        )
        (result,) = output.results
        assert isinstance(output, CactusOutput)
        assert result.trace == expected.trace or [
            (token.id, token.origin, token.verdict) for token in result.trace
        ] == [(token.id, token.origin, token.verdict) for token in expected.trace]
        assert result.finish_reason == expected.finish_reason
        length = batch["input_ids"].shape[1]
        assert tuple(output.sequences[0, length:].tolist()) == expected.tokens


def sampled(prompts, **options):
    return generate(
        PAIR[0],
        **left_padded(prompts),
        draft_model=PAIR[1],
        do_sample=True,
        top_k=0,
        return_dict_in_generate=True,
        **{"max_new_tokens": 12, "rule": Cactus(0.3), "eos_token_id": EOS, **options},
    )


@settings(max_examples=settings.default.max_examples // 10)
@given(rows, st.integers(0, 2**64 - 1), st.integers(1, 3), st.integers(1, 4))
def test_row_i_is_the_decode_of_the_seed_and_number_i(prompts, seed, copies, batch_size):
    """Padding, copies and batch size are nothing to a row but its number.

    Uniforms that fall into the last bits in which batch shapes differ would change tokens; none
    of these examples, which are always the same, has one.
    """
    output = sampled(prompts, seed=seed, num_return_sequences=copies, batch_size=batch_size)
    decoder = Decoder(PAIR[0], draft=PAIR[1])
    repeated = [prompt for prompt in prompts for _ in range(copies)]
    width = max(map(len, prompts))
    assert len(output.results) == len(output.sequences) == len(repeated)
    for number, prompt in enumerate(repeated):
        request = Request(
            prompt,
            rule=Cactus(0.3),
            max_new_tokens=12,
            seed=seed,
            number=number,
            eos_token_id=EOS,
        )
        expected = decoder.stream(request).finish().tokens
        row = output.sequences[number].tolist()
        assert output.results[number].tokens == expected
        assert row[:width] == [PAD] * (width - len(prompt)) + prompt
        assert tuple(row[width : width + len(expected)]) == expected
        assert set(row[width + len(expected) :]) <= {PAD}


def test_an_unseeded_call_is_repeated_by_set_seed():
    def call():
        return sampled([[1, 2]]).sequences.tolist()

    set_seed(3)
    first, second = call(), call()
    set_seed(3)
    assert call() == first != second


class Flat(LogitsProcessor):
    """All that is left becomes equally probable."""

    def __call__(self, input_ids, scores):
        return scores.where(scores == -torch.inf, 0.0)


@pytest.mark.parametrize("copies", [1, 2])
def test_processors_apply_in_the_order_of_generate_and_to_both_models(copies):
    """Top-k keeps three tokens before all are made equal, and all of them, as ties, after that."""
    prompts = [[1, 2, 3], [4]]
    for order, most in (([TopKLogitsWarper(3), Flat()], 3), ([Flat(), TopKLogitsWarper(3)], 7)):
        output = sampled(
            prompts,
            rule=SpeculativeSampling(),
            logits_processor=order,
            max_new_tokens=40,
            num_return_sequences=copies,
            eos_token_id=None,
            seed=1,
        )
        for number, result in enumerate(output.results):
            ids, ranks = list(prompts[number // copies]), set()
            for token in result.tokens:
                logits = PAIR[0](torch.tensor([ids])).logits[0, -1]
                ranks.add(logits.argsort(descending=True).tolist().index(token))
                ids.append(token)
            assert max(ranks) + 1 == most
            draft_probs = {verdict.draft_prob for verdict in result.verdicts}
            assert max(abs(p * most - 1) for p in draft_probs) < 1e-5  # float32


# The law -----------------------------------------------------------------------------------------


def law(model, ids, temperature):
    logits = model(torch.tensor([ids])).logits[0, -1].double() / temperature
    return logits.softmax(-1).detach().numpy()


def joint(rule, prompt, temperature):
    def emitted(ids):
        p, q = (law(model, ids, temperature) for model in (PAIR[1], PAIR[0]))
        return output_distribution(rule, draft=p, target=q)

    return emitted(prompt)[:, None] * np.array([emitted([*prompt, x]) for x in range(7)])


@pytest.mark.parametrize(
    ("rule", "through"),
    [
        (SpeculativeSampling(), "parameters"),
        (Cactus(0.5), "parameters"),
        (Cactus(0.5), "processors"),
    ],
    ids=str,
)
def test_the_first_two_tokens_of_a_batch_follow_the_exact_law(rule, through):
    """A G-test at level 1e-6, of power > .999 against the other rule's law, on 2 x 200 rows.

    The two prompts of the batch differ in length, so that one of them is padded.
    """
    prompts, copies, temperature = [[1, 2, 3], [5]], 200, 0.8
    wanted = [joint(rule, prompt, temperature).ravel() for prompt in prompts]
    other = Cactus(0.5) if rule == SpeculativeSampling() else SpeculativeSampling()
    wrong = [joint(other, prompt, temperature).ravel() for prompt in prompts]
    assert power(wanted, wrong, copies, 1e-6) > 0.999
    warped = {"temperature": temperature}
    if through == "processors":
        warped["renormalize_logits"] = True  # comes last, so that none is a parameter
    # Two drafts are asked of the first token and, after a rejection, of the second.
    output = sampled(
        prompts,
        rule=rule,
        seed=11,
        num_draft_tokens=2,
        max_new_tokens=4,
        num_return_sequences=copies,
        batch_size=64,
        eos_token_id=None,
        **warped,
    )
    counts = np.zeros((2, 7, 7))
    for number, result in enumerate(output.results):
        counts[number // copies][result.tokens[:2]] += 1
    assert follows(list(counts.reshape(2, 49)), wanted, 1e-6)


# How a text ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draft_tokens", [0, 5])
def test_stop_strings_end_a_text_where_generate_itself_ends_it(num_draft_tokens):
    batch = TINY.tokenizer(["dog:", "kindness: a"], return_tensors="pt", padding=True)
    options = {**batch, "do_sample": False, "max_new_tokens": 24}
    free = TINY.target.generate(**options)
    width = batch["input_ids"].shape[1]
    ends = 0
    for text in TINY.tokenizer.batch_decode(free[:, width:], skip_special_tokens=True):
        for stop in (text[3:5], text[7:12], [text[5:8], text[2:20]], text[-4:]):
            found = TINY.target.generate(
                **options,
                custom_generate=partial(cactus_generate, tokenizer=TINY.tokenizer),
                draft_model=TINY.draft,
                num_draft_tokens=num_draft_tokens,
                stop_strings=stop,
                return_dict_in_generate=True,
            )
            theirs = TINY.target.generate(**options, stop_strings=stop, tokenizer=TINY.tokenizer)
            assert found.sequences.tolist() == theirs.tolist()
            ends += sum(result.finish_reason == "stop" for result in found.results)
    assert ends >= 8


class Sum(StoppingCriteria):
    """Ends where the ids, padding included, sum to a multiple of five."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.tolist())
        return input_ids.sum(1) % 5 == 0


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 6])
def test_a_stopping_criterion_is_asked_after_every_token_with_all_ids(num_draft_tokens):
    options = {
        **left_padded([[1, 2, 3], [5, 1], [4], [2, 2], [3, 1, 4, 1], [1]]),
        "do_sample": False,
        "max_new_tokens": 12,
        "eos_token_id": 1,
        "pad_token_id": 5,  # counts nothing towards the sums
    }
    options["ids"] = [[id or 5 for id in row] for row in options["ids"]]
    ours = Sum()
    found = generate(
        PAIR[0],
        **options,
        stopping_criteria=[ours],
        draft_model=PAIR[1],
        num_draft_tokens=num_draft_tokens,
        return_dict_in_generate=True,
    )
    theirs = native(PAIR[0], **options, stopping_criteria=[Sum()])
    assert found.sequences.tolist() == theirs.tolist()
    assert {result.finish_reason for result in found.results} & {"stop"}
    asked = {tuple(ids[0]) for ids in ours.seen}
    for row, result in zip(options["ids"], found.results, strict=True):
        for count in range(1, len(result.tokens) + 1):
            assert (*row, *result.tokens[:count]) in asked


def test_max_time_and_max_length_hold():
    slow = sampled([[1, 2]], max_time=0.0, max_new_tokens=50, eos_token_id=None)
    assert len(slow.results[0].tokens) == 1
    short = sampled([[1, 2], [3]], max_new_tokens=None, max_length=7, eos_token_id=None)
    assert short.sequences.shape == (2, 7)


# Streaming ---------------------------------------------------------------------------------------


class Recorder(BaseStreamer):
    def __init__(self):
        self.events = []

    def put(self, value):
        self.events.append(value.tolist())

    def end(self):
        self.events.append("end")


def test_a_streamer_gets_the_prompt_then_each_token_then_the_end():
    recorder, theirs = Recorder(), Recorder()
    options = {"do_sample": False, "max_new_tokens": 9}
    found = generate(
        PAIR[0],
        [[1, 2, 3]],
        **options,
        custom_generate=partial(cactus_generate, streamer=recorder),
        draft_model=PAIR[1],
        num_draft_tokens=3,
    )
    native(PAIR[0], [[1, 2, 3]], **options, streamer=theirs)
    assert recorder.events == theirs.events
    assert recorder.events == [[[1, 2, 3]], *[[x] for x in found[0, 3:].tolist()], "end"]


def test_a_text_streamer_prints_the_text(capsys):
    batch = TINY.tokenizer(["dog:"], return_tensors="pt")
    streamer = TextStreamer(TINY.tokenizer, skip_prompt=True)
    found = TINY.target.generate(
        **batch,
        custom_generate=partial(cactus_generate, streamer=streamer),
        draft_model=TINY.draft,
        do_sample=False,
        max_new_tokens=12,
    )
    text = TINY.tokenizer.decode(found[0, batch["input_ids"].shape[1] :])
    assert capsys.readouterr().out.strip() == text.strip()


def test_a_streamer_is_ended_when_decoding_fails():
    class Failing(LogitsProcessor):
        def __call__(self, input_ids, scores):
            raise RuntimeError("no")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no"):
        generate(
            PAIR[0],
            [[1, 2]],
            custom_generate=partial(cactus_generate, streamer=recorder),
            logits_processor=[Failing()],
            max_new_tokens=3,
        )
    assert recorder.events == [[[1, 2]], "end"]


# What cannot be served ---------------------------------------------------------------------------

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


def test_a_configuration_object_is_obeyed():
    config = GenerationConfig(do_sample=True, temperature=0.5, max_new_tokens=5, eos_token_id=None)
    found = generate(PAIR[0], [[1, 2]], generation_config=config, seed=3, draft_model=PAIR[1])
    sampling = SamplingParams(temperature=0.5)
    expected = decode(PAIR[0], [1, 2], draft=PAIR[1], sampling=sampling, max_new_tokens=5, seed=3)
    assert tuple(found[0, 2:].tolist()) == expected.tokens
