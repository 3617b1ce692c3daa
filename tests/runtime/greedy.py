"""Greedy decoding by the target alone, and requests in one line."""

import torch

from cactus_runtime import (
    Request,
    SamplingParams,
)
from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
)

GREEDY = SamplingParams(temperature=0)
RULES = [SpeculativeSampling(), Cactus(1.0), CactusExact(1.0)]


def stream(decoder, prompt, **options):
    return decoder.stream(Request(prompt, **options))


def greedy_reference(model, ids, count):
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(output[0, len(ids) :].tolist())
