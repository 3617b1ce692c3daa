"""Pairs to decode with: a random one of seven tokens, and the bundled tiny pair."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network; read when transformers loads

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def make_random_model(seed: int, *, layers: int = 1, vocabulary: int = 7) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def random_model():
    """The maker itself: seed, layers, vocabulary -> a small random Llama."""
    return make_random_model


@pytest.fixture(scope="session")
def random_pair():
    return make_random_model(0, layers=2), make_random_model(1)


@pytest.fixture(scope="session")
def tiny():
    from cactus_runtime import load_pair

    return load_pair("tiny")


@pytest.fixture(scope="session")
def smollm2():
    from cactus_runtime import load_pair

    return load_pair("smollm2")
