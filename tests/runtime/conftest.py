"""Pairs to decode with: a random one of seven tokens, and the bundled tiny pair."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network; read when transformers loads

import pytest
import torch

from tests.tiny_models import tiny_llama

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def random_model():
    """The maker itself: seed, layers, vocabulary -> a small random Llama."""
    return tiny_llama


@pytest.fixture(scope="session")
def random_pair():
    return tiny_llama(0, layers=2), tiny_llama(1)


@pytest.fixture(scope="session")
def tiny():
    from cactus_runtime import load_pair

    return load_pair("tiny")


@pytest.fixture(scope="session")
def smollm2():
    from cactus_runtime import load_pair

    return load_pair("smollm2")
