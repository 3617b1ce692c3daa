"""Requests that one block program can serve, and all that their decodes say."""

from dataclasses import astuple

import torch

from cactus_runtime import (
    Decoder,
    Request,
    SamplingParams,
)
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    SpeculativeSampling,
)
from tests.runtime.prefix_model import alike
from tests.tiny_models import tiny_llama

RULES = [SpeculativeSampling(), Cactus(0.0), Cactus(0.3), CactusExact(0.1), CactusSafe(0.2)]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=0.9, top_k=5, top_p=0.9, min_p=0.05),
]


def told(result):
    """All that a decode says but its seconds."""
    return (
        result.tokens,
        result.origins,
        result.finish_reason,
        result.blocks,
        [token.logprob for token in result.trace],
        [astuple(verdict) for verdict in result.verdicts],
    )


def decoded(pair, requests, batch_size):
    results = Decoder(pair[0], draft=pair[1]).batch(requests, batch_size=batch_size).finish()
    return [told(result) for result in results], sum(r.seconds.fused > 0 for r in results)


def llama(seed, vocabulary=7, *, layers=1):
    settings = {"num_key_value_heads": 1, "dtype": torch.float64}
    return tiny_llama(seed, layers=layers, vocabulary=vocabulary, **settings)


def batch_of(requests, *, pair=None, batch_size=2):
    target, draft = pair or alike()
    return Decoder(target, draft=draft).batch(requests, batch_size=batch_size)


def requests_alike(count=3, **options):
    options = {"rule": Cactus(0.2), "num_draft_tokens": 3, "max_new_tokens": 25} | options
    return [Request([1, 2 + i], seed=i, **options) for i in range(count)]
