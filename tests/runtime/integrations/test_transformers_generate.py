"""`model.generate(..., custom_generate=cactus_generate)`: transformers' interface, our decoder."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    TextStreamer,
    TopKLogitsWarper,
    set_seed,
)

from cactus_runtime import Decoder, Request, SamplingParams, decode
from cactus_runtime.integrations.transformers_generate import CactusOutput, cactus_generate
from cactus_theory import Cactus, SpeculativeSampling, output_distribution
from cactus_theory.testing._gtest import follows, power
from tests.runtime.integrations.generating import (
    EOS,
    PAD,
    PAIR,
    TINY,
    Recorder,
    Sum,
    generate,
    left_padded,
    native,
)
from tests.runtime.integrations.test_transformers_greedy import rows

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


def test_a_configuration_object_is_obeyed():
    config = GenerationConfig(do_sample=True, temperature=0.5, max_new_tokens=5, eos_token_id=None)
    found = generate(PAIR[0], [[1, 2]], generation_config=config, seed=3, draft_model=PAIR[1])
    sampling = SamplingParams(temperature=0.5)
    expected = decode(PAIR[0], [1, 2], draft=PAIR[1], sampling=sampling, max_new_tokens=5, seed=3)
    assert tuple(found[0, 2:].tolist()) == expected.tokens
