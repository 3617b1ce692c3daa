"""Penalties, forbidden words and filters: at every position, once per model, with the right ids."""

import functools
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

from cactus_runtime import Decoder, PromptLookup, Request, SamplingParams
from cactus_runtime.loop.row import Row
from cactus_runtime.streams import Purpose
from cactus_theory import Cactus, CandidateRule, Lenience, SpeculativeSampling
from tests.runtime.prefix_model import PrefixModel, alike

PROMPT = [1, 2, 3, 1]
V, NEW = 7, 16
TARGET, DRAFT = alike(V)


def decode(target, draft, **options):
    request = Request(PROMPT, **{"max_new_tokens": NEW, "eos_token_id": (), **options})
    return Decoder(target, draft=draft).stream(request).finish()


# Names of ours, and of `generate` where it has them.
SETTINGS = {
    "none": ({}, {}),
    "repetition": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "presence": ({"presence_penalty": 0.8}, None),
    "frequency": ({"frequency_penalty": 0.6}, None),
    "reward": ({"presence_penalty": -0.5, "frequency_penalty": -0.3}, None),
    "bad words": (
        {"bad_words": [[2], [4, 5], [1, 6, 3]]},
        {"bad_words_ids": [[2], [4, 5], [1, 6, 3]]},
    ),
    "bias": (
        {"logit_bias": {0: 1.5, 3: -2.0, 5: -torch.inf}},
        {"sequence_bias": [[[0], 1.5], [[3], -2.0], [[5], float("-inf")]]},
    ),
    "all": (
        {"repetition_penalty": 1.3, "bad_words": [[4, 5]], "logit_bias": {0: 1.5}},
        {
            "repetition_penalty": 1.3,
            "bad_words_ids": [[4, 5]],
            "sequence_bias": [[[0], 1.5]],
        },
    ),
}


@functools.cache
def by_hand(model, name):
    """Greedy decoding written out: token by token, penalties by their formulas."""
    settings = SETTINGS[name][0]
    penalties = [settings.get(f"{x}_penalty", 0.0) for x in ("presence", "frequency")]
    repetition = settings.get("repetition_penalty", 1.0)
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + NEW:
        logits = model(torch.tensor([ids])).logits[0, -1].tolist()
        for token, value in settings.get("logit_bias", {}).items():
            logits[token] += value
        counts = Counter(ids[len(PROMPT) :])
        for token in range(V):
            if token in ids:
                logits[token] *= repetition if logits[token] < 0 else 1 / repetition
            logits[token] -= penalties[0] * (counts[token] > 0) + penalties[1] * counts[token]
        for *head, last in settings.get("bad_words", []):
            if ids[len(ids) - len(head) :] == head:
                logits[last] = -torch.inf
        ids.append(int(np.argmax(logits)))
    return tuple(ids[len(PROMPT) :])


@pytest.mark.parametrize("name", list(SETTINGS)[1:])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4])
def test_greedy_decoding_with_penalties_is_that_of_one_token_at_a_time(
    random_pair, name, num_draft_tokens
):
    ours, theirs = SETTINGS[name]
    expected = by_hand(random_pair[0], name)
    sampling = SamplingParams(temperature=0, **ours)
    for draft in (random_pair[1], PromptLookup()):
        result = decode(
            random_pair[0],
            draft,
            rule=Cactus(1.0),
            sampling=sampling,
            num_draft_tokens=num_draft_tokens,
        )
        assert result.tokens == expected
    if theirs is not None:
        assert generated(random_pair[0], **theirs) == expected
    assert expected != by_hand(random_pair[0], "none")


def generated(model, **options):
    ids = torch.tensor([PROMPT])
    options = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": NEW, **options}
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)
    return tuple(whole[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("least", [1, 3, 8])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 6])
def test_the_text_cannot_end_before_its_least_length(random_pair, least, num_draft_tokens):
    ends = [generated(random_pair[0])[0], 4]  # greedy would end at once
    expected = generated(random_pair[0], eos_token_id=ends, min_new_tokens=least)
    result = decode(
        *random_pair,
        sampling=SamplingParams(temperature=0, min_new_tokens=least),
        num_draft_tokens=num_draft_tokens,
        eos_token_id=ends,
    )
    assert result.tokens == expected
    assert len(result.tokens) >= least + 1  # the end itself is a token
    assert not set(result.tokens[:least]) & set(ends)


class Recorder(LogitsProcessor):
    """Writes down the ids it was called with, and by the logits for which model."""

    def __init__(self, **models):
        self.models, self.seen = models, {role: [] for role in models}

    def __call__(self, input_ids, scores):
        (ids,) = input_ids.tolist()
        roles = [r for r, model in self.models.items() if torch.equal(model.after(ids), scores[0])]
        assert len(roles) == 1, "logits of another position, or processed twice"
        self.seen[roles[0]].append(tuple(ids))
        return scores


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 5])
@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.3), Lenience(0.5)], ids=str)
def test_a_processor_sees_every_position_once_per_model_with_the_ids_before_it(
    num_draft_tokens, rule
):
    for seed in range(3):
        recorder = Recorder(target=TARGET, draft=DRAFT)
        result = decode(
            TARGET,
            DRAFT,
            rule=rule,
            seed=seed,
            num_draft_tokens=num_draft_tokens,
            sampling=SamplingParams(processors=[recorder]),
            max_new_tokens=12,
        )
        text, at = (*PROMPT, *result.tokens), len(PROMPT)
        drafting, expected = iter(recorder.seen["draft"]), Counter()
        for block in result.blocks:
            positions = [next(drafting) for _ in range(block.drafted)]
            for j, ids in enumerate(positions):
                assert len(ids) == at + j
                kept = min(j, block.accepted)
                assert ids[: at + kept] == text[: at + kept]
            bonus = [text[: at + block.drafted]] if block.accepted == block.drafted else []
            expected.update(positions + bonus)
            at += block.emitted
        assert next(drafting, None) is None
        seen = Counter(recorder.seen["target"])
        assert set(seen.values()) == {1}
        assert expected <= seen
        if isinstance(rule, CandidateRule):  # others read the bonus position's law anyway
            assert seen == expected


def test_a_processor_of_a_batch_sees_its_own_request_only():
    recorders = [Recorder(target=TARGET, draft=DRAFT) for _ in range(3)]
    batch = [
        Request(
            [i + 1] * (i + 1), seed=i, sampling=SamplingParams(processors=[r]), max_new_tokens=8
        )
        for i, r in enumerate(recorders)
    ]
    results = Decoder(TARGET, draft=DRAFT).batch(batch).finish()
    for request, recorder, result in zip(batch, recorders, results, strict=True):
        prompt = tuple(request.prompt)
        for seen in recorder.seen.values():
            assert {ids[: len(prompt)] for ids in seen} == {prompt}
        for i in range(len(result.tokens)):
            assert (*prompt, *result.tokens[:i]) in recorder.seen["target"]


class Overwriting(LogitsProcessor):
    """Halves the logits it is given, in place."""

    def __call__(self, input_ids, scores):
        return scores.mul_(0.5)


class Halving(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores * 0.5


@pytest.mark.parametrize("num_draft_tokens", [0, 3])
def test_a_processor_that_writes_into_its_logits_does_no_harm(num_draft_tokens):
    """They were the target's own: log-probabilities were then of the processed ones."""
    first, second = (
        decode(
            TARGET,
            DRAFT,
            sampling=SamplingParams(processors=[kind()]),
            seed=1,
            num_draft_tokens=num_draft_tokens,
        )
        for kind in (Overwriting, Halving)
    )
    assert first.trace == second.trace


def test_processors_that_leave_no_token_are_told_with_request_and_place():
    class Nothing(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores if input_ids.shape[1] < 6 else torch.full_like(scores, -torch.inf)

    sampling = SamplingParams(processors=[Nothing()])
    with pytest.raises(ValueError, match="request 0 left no token to follow its 6 tokens"):
        decode(TARGET, DRAFT, sampling=sampling, num_draft_tokens=1)


class NothingAfter(LogitsProcessor):
    """Leaves no token once the text holds one."""

    def __init__(self, token, prompt_tokens):
        self.token, self.prompt_tokens = token, prompt_tokens

    def __call__(self, input_ids, scores):
        ended = self.token in input_ids[0, self.prompt_tokens :]
        return torch.full_like(scores, -torch.inf) if ended else scores


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4])
def test_a_position_without_a_token_is_no_error_if_the_text_ends_before_it(num_draft_tokens):
    free = decode(TARGET, DRAFT, seed=2, num_draft_tokens=num_draft_tokens)
    eos = free.tokens[5]
    prompt = free.prompt_tokens
    sampling = SamplingParams(processors=[NothingAfter(eos, prompt)])
    options = {"sampling": sampling, "seed": 2, "num_draft_tokens": num_draft_tokens}
    ended = decode(TARGET, DRAFT, eos_token_id=eos, **options)
    assert ended.finish_reason == "eos"
    with pytest.raises(ValueError, match="left no token to follow"):
        decode(TARGET, DRAFT, **options)


# The law, by enumeration ------------------------------------------------------------------------

OUT, MASS = 3, 0.16  # the token that every filter below excludes; its mass before
FILTERS = [
    {"min_p": 0.45},
    {"top_p": 0.8},
    {"logit_bias": {OUT: -torch.inf}},
    {"bad_words": [[OUT]]},
]
ORDERS = [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)]


def tabled(law, orders):
    """A model whose every law is this one, less what is left for OUT, in some order."""
    model = PrefixModel(4, seed=0)
    for row in range(len(model.table)):
        order = [*orders[row % len(orders)], 3]
        model.table[row] = torch.tensor([*(x * (1 - MASS) for x in law), MASS]).log()[order]
    return model


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_hold_at_the_drafted_and_the_bonus_position_of_a_block_exactly(
    filters, monkeypatch
):
    """All midpoints of a grid on which every threshold of the filtered laws lies between two.

    Draft 1/2, 1/2; target 1/2, 1/4, 1/4: acceptance is 1/2 or 1, residuals are one-hot. So counts
    over the grid are the law, and two tokens must follow the filtered target's; where a filter is
    left out, the last midpoint of each draw picks the token that it excludes.
    """
    target = tabled([1 / 2, 1 / 4, 1 / 4], ORDERS)
    draft = tabled([1 / 2, 1 / 2, 0.0], ORDERS[::-1])
    grid = list(product(range(8), range(4), range(4), range(4)))

    def uniforms(row, count):
        drawn, accept, first, second = grid[row.streams.request]
        found = np.zeros((count, 3))
        found[:, Purpose.DRAFT] = (drawn + 0.5) / 8
        found[:, Purpose.ACCEPT] = (accept + 0.5) / 4
        found[:, Purpose.RECOVER] = ((second if row.trace else first) + 0.5) / 4
        return found

    monkeypatch.setattr(Row, "uniforms", uniforms)
    request = Request(
        PROMPT,
        num_draft_tokens=1,
        max_new_tokens=2,
        sampling=SamplingParams(**filters),
        eos_token_id=(),
    )
    batch = request.samples(len(grid))
    results = Decoder(target, draft=draft).batch(batch, batch_size=len(grid)).finish()
    law = np.zeros((4, 4))
    for result in results:
        law[result.tokens] += 1 / len(grid)
    assert {origin for r in results for origin in r.origins} >= {"accepted", "bonus", "recovered"}

    def filtered(ids):
        exact = target.after(ids).double().exp()
        exact[OUT] = 0
        return (exact / exact.sum()).numpy()

    first = filtered(PROMPT)
    expected = first[:, None] * np.array([filtered([*PROMPT, x]) for x in range(4)])
    assert np.abs(law - expected).max() < 1e-6  # of float32 logits; a grid cell is 2e-3
