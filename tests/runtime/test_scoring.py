"""Likelihoods of given texts under the decoder, from one pass of each model."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from cactus_runtime import AdaptiveDraft, Decoder, PromptLookup, Request, SamplingParams, score
from cactus_runtime.teacher_forcing import logits_of_text
from cactus_theory import Cactus, Lenience, SpeculativeSampling, TypicalAcceptance
from tests.runtime.prefix_model import alike

PROMPT = [0, 1, 2]
PAIR = alike(vocabulary=3, seed=3)
LENGTH = 4


def likelihoods(rule, verification, *, num_draft_tokens=2, **options):
    return {
        text: np.exp(
            score(
                PAIR[0], text, prompt=PROMPT, draft=PAIR[1], rule=rule,
                num_draft_tokens=num_draft_tokens, max_new_tokens=LENGTH,
                verification=verification, **options,
            ).log_likelihood
        )
        for text in product(range(3), repeat=LENGTH)
    }  # fmt: skip


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("rule", [Cactus(0.1), Lenience(0.6)])
def test_all_texts_together_are_certain_and_come_as_often_as_their_likelihoods_say(
    rule, verification
):
    n = 4000
    found = likelihoods(rule, verification)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    request = Request(PROMPT, rule=rule, num_draft_tokens=2, max_new_tokens=LENGTH, seed=5,
                      eos_token_id=[], verification=verification)  # fmt: skip
    results = Decoder(PAIR[0], draft=PAIR[1]).batch(request.samples(n), batch_size=500).finish()
    counts = Counter(result.tokens for result in results)
    statistic = sum((counts[text] - n * p) ** 2 / (n * p) for text, p in found.items())
    assert statistic < 80 + 4.5 * np.sqrt(160)  # chi-square of 80 degrees: one in 10^5


def test_plain_speculative_sampling_gives_texts_the_targets_likelihood():
    for verification in ("token", "block"):
        found = score(PAIR[0], [0, 2, 1, 1, 0], prompt=PROMPT, draft=PAIR[1],
                      rule=SpeculativeSampling(), verification=verification)  # fmt: skip
        assert found.log_likelihood == pytest.approx(found.target_log_likelihood, abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_chunks_do_not_change_a_score(chunk):
    text, told = [0, 2, 1, 1, 0, 2], []
    options = {"prompt": PROMPT, "draft": PAIR[1], "rule": Cactus(0.2),
               "sampling": SamplingParams(temperature=0.7, repetition_penalty=1.3)}  # fmt: skip
    whole = score(PAIR[0], text, **options)
    parts = score(PAIR[0], text, **options, chunk=chunk,
                  on_progress=lambda *progress: told.append(progress))  # fmt: skip
    np.testing.assert_allclose(parts.log_likelihoods, whole.log_likelihoods, atol=1e-12)
    assert told[-1] == (6, 6)
    assert parts.log_probabilities.sum() == pytest.approx(whole.log_likelihood)


def test_a_text_that_a_model_cannot_read_is_refused_before_it_is_read(tiny):
    with pytest.raises(ValueError, match=r"ids below 3, the width of PrefixModel, got 3"):
        logits_of_text(PAIR[0], [0], [3], width=3)
    length = tiny.target.config.max_position_embeddings
    with pytest.raises(ValueError, match=rf"context of {length} tokens .* got {length + 1}"):
        logits_of_text(tiny.target, [5], [5] * length, width=3)


def test_what_has_no_likelihood_is_refused():
    options = {"prompt": PROMPT, "draft": PAIR[1]}
    with pytest.raises(TypeError, match="only paths have probabilities"):
        score(PAIR[0], [0], **options, num_draft_tokens=AdaptiveDraft(draft_cost=0.1))
    with pytest.raises(TypeError, match="draft must be a model"):
        score(PAIR[0], [0], prompt=PROMPT, draft=PromptLookup())
    with pytest.raises(ValueError, match="ordered rule"):
        score(PAIR[0], [0], **options, rule=TypicalAcceptance(0.1, 0.3), verification="block")
    with pytest.raises(ValueError, match="text must have at least one token"):
        score(PAIR[0], [], **options)
