"""Verification allocates rows of the vocabulary, never a tensor of the size of the logits."""

import tracemalloc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cactus_runtime import Request, SamplingParams, judge
from cactus_runtime.loop.drafting import Drafts
from cactus_runtime.loop.judging import judge_rows
from cactus_runtime.loop.row import Row
from cactus_theory import Cactus, CactusExact, SpeculativeSampling

B, K, V = 4, 4, 50_000
RULES = [SpeculativeSampling(), Cactus(0.5), CactusExact(0.5)]


class Allocations(TorchDispatchMode):
    """Elements of the largest new tensor: an output whose storage no input had."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
        for tensor in tensors(result):
            if tensor.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, tensor.numel())
        return result


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def block():
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(B, K + 1, V, generator=rng)
    probs = (logits[:, :K] + 0.7 * torch.randn(B, K, V, generator=rng)).softmax(-1)
    return {
        "tokens": probs.flatten(0, 1).multinomial(1, generator=rng).view(B, K),
        "draft_probs": probs,
        "target_logits": logits,
        "uniforms": torch.rand(B, K + 1, 3, generator=rng, dtype=torch.float64),
    }


def uniforms_of(block):
    return {
        "accept_uniforms": block["uniforms"][:, :K, 1],
        "recover_uniforms": block["uniforms"][:, 0, 2],
    }


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_verify_allocates_at_most_one_row_of_the_vocabulary_per_request(rule, block):
    with Allocations() as allocations:
        judge(
            rule,
            block["tokens"],
            draft_probs=block["draft_probs"],
            target_logits=block["target_logits"],
            **uniforms_of(block),
        )
    assert allocations.largest <= B * V


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)],
    ids=["plain", "filtered"],
)
@pytest.mark.parametrize("max_kl", [torch.inf, 0.3])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_judge_allocates_at_most_one_row_of_the_vocabulary_per_request(
    rule, max_kl, sampling, block
):
    request = Request([1], rule=rule, sampling=sampling, max_kl=max_kl, seed=0)
    rows = [Row(request, [1], None, ()) for _ in range(B)]
    drafts = Drafts(block["tokens"], block["draft_probs"], [K] * B)
    with Allocations() as allocations:
        tracemalloc.start()
        judge_rows(rows, drafts, block["target_logits"], block["uniforms"])
        _, host = tracemalloc.get_traced_memory()  # numpy's arrays, the temporary ones too
        tracemalloc.stop()
    assert allocations.largest <= B * V
    assert host < B * K * V * 8


def test_a_copy_of_the_logits_or_of_the_draft_laws_would_be_seen(block):
    for name in ("target_logits", "draft_probs"):
        with Allocations() as allocations:
            block[name].double()
        assert allocations.largest == block[name].numel() >= B * K * V
