"""Mutants of our own decoder are accused from the texts that they write."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cactus_runtime.verification.candidates as candidates
from cactus_runtime import Decoder, Request, SamplingParams
from cactus_runtime.audit.judging import audit_samples
from cactus_runtime.audit.scoring import EDGE, Scorer
from cactus_runtime.audit.transcripts import Scorable
from cactus_runtime.verification.acceptance import accept

WARM = SamplingParams(temperature=0.7)


def without_the_draft(rule, target_prob, draft_prob, **options):
    return accept(rule, target_prob, torch.ones_like(draft_prob), **options)


def everything(rule, target_prob, draft_prob, **options):
    return accept(rule, target_prob, torch.zeros_like(draft_prob), **options)


def lenient(rule, target_prob, draft_prob, **options):
    return accept(rule, target_prob, draft_prob / 4, **options)


def audited(tiny):
    decoder = Decoder(tiny)
    requests = [
        request
        for prompt in ("dog:", "kindness:", "river:", "to run:", "music:", "winter:")
        for request in Request(
            prompt,
            num_draft_tokens=3,
            sampling=WARM,
            max_new_tokens=24,
            seed=5,
            eos_token_id=(),
        ).samples(4)
    ]
    samples = [
        Scorable(tiny.tokenizer(request.prompt)["input_ids"], list(result.tokens))
        for request, result in zip(
            requests, decoder.batch(requests, batch_size=24).finish(), strict=True
        )
    ]
    return audit_samples(samples, Scorer(tiny.target, draft=tiny.draft, sampling=WARM), level=1e-3)[
        0
    ]


def test_with_a_tolerance_the_edge_of_a_filter_is_soft(tiny):
    cut = SamplingParams(temperature=0.7, top_k=2)
    rows = {
        edge: next(Scorer(tiny.target, sampling=cut, edge=edge).score(Scorable([5], [9]))).target
        for edge in (False, True)
    }
    assert (rows[False] > 0).sum() == 2
    assert 0 < np.sort(rows[True])[:-2].sum() <= EDGE


def test_the_decoder_itself_is_consistent(tiny):
    assert audited(tiny).consistent


@pytest.mark.parametrize(
    ("mutant", "looks"),
    [
        (without_the_draft, "acceptance without the draft's probability"),
        (everything, "mixture"),  # of the draft, and of the target at each bonus token
    ],
)
def test_a_mutant_is_accused_and_named(tiny, monkeypatch, mutant, looks):
    monkeypatch.setattr(candidates, "accept", mutant)
    found = audited(tiny)
    assert not found.consistent
    assert found.likely.name.startswith(looks)


def test_lenience_is_named_among_the_rules_that_emit_nearly_the_same(tiny, monkeypatch):
    monkeypatch.setattr(candidates, "accept", lenient)
    found = audited(tiny)
    assert not found.consistent
    names = {name.partition(",")[0] for name in (found.likely.name, *found.alike)}
    assert "lenience" in names
    assert names <= {"lenience", "clamp", "rollout reuse 0.5"}
