"""Transformers' `generate` with our decoder and without, on small models."""

from __future__ import annotations

import torch
from transformers import (
    StoppingCriteria,
)
from transformers.generation.streamers import BaseStreamer

from cactus_runtime import load_pair
from cactus_runtime.integrations.transformers_generate import cactus_generate
from tests.tiny_models import tiny_llama

EOS, PAD = 6, 0
PAIR = tiny_llama(0, layers=2), tiny_llama(1)
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


class Sum(StoppingCriteria):
    """Ends where the ids, padding included, sum to a multiple of five."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.tolist())
        return input_ids.sum(1) % 5 == 0


class Recorder(BaseStreamer):
    def __init__(self):
        self.events = []

    def put(self, value):
        self.events.append(value.tolist())

    def end(self):
        self.events.append("end")
