"""Block programs on fake CUDA tensors: one device, and nothing that a graph cannot contain.

A fake tensor has no values, so that a read of one raises an error; so does an operation on tensors
of two devices. `HostReads` sees copies between devices, which a fake allows.
"""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from cactus_runtime import SamplingParams
from cactus_runtime.loop.block_program import BlockProgram
from cactus_runtime.loop.drafting import ModelDrafts, NoDrafts
from cactus_runtime.models.cuda_graphs import HostReads
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.static_kv_cache import StaticContext, open_context
from cactus_runtime.verification.judge import judged_in_torch
from cactus_runtime.verification.method import Method
from cactus_theory import Cactus, SpeculativeSampling
from cactus_theory.rules.registry import RULES

ROWS, K = 2, 3
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
MODELS = {
    "CohereForCausalLM": {},
    "Cohere2ForCausalLM": TWO_KINDS,
    "Gemma2ForCausalLM": TWO_KINDS,
    "Gemma3ForCausalLM": TWO_KINDS,
    "GraniteForCausalLM": {},
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": 8},
    "Olmo2ForCausalLM": {},
    "Phi3ForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "SmolLM3ForCausalLM": {},
}
KERNELS = SamplingParams(temperature=0.7)  # judged by Triton
SAMPLINGS = {
    "temperature": KERNELS,
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(temperature=0.8, top_k=3),
    "top-p": SamplingParams(top_p=0.9),
    "min-p": SamplingParams(temperature=0.7, min_p=0.01),
    "all filters": SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01),
}
CAPTURED = {name: entry for name, entry in RULES.items() if judged_in_torch(entry.example())}


def computed(target, draft, method, sampling, *, k=K):
    """What a block program returns, and the operations in it that no graph can contain."""
    context = open_context(target, rows=ROWS, slots=40)
    assert isinstance(context, StaticContext)
    drafter = NoDrafts(target.device)
    if draft is not None:
        drafter = ModelDrafts(draft, rows=ROWS, slots=40, vocabulary=vocabulary_size(target))
    program = BlockProgram(context, drafter, method, sampling, k)
    for _ in range(2):  # the first makes the caches
        with HostReads() as reads:
            found = program._compute()
    return found, reads.found


def assert_captured(target, draft, method, sampling, *, k=K):
    (packed, drafts, normaliser), reads = computed(target, draft, method, sampling, k=k)
    assert reads == []
    assert packed.is_cuda
    assert drafts.tokens.is_cuda
    assert normaliser.is_cuda
    assert packed.dtype == torch.float64
    assert drafts.tokens.shape == (ROWS, k if draft is not None else 0)


@pytest.mark.parametrize("kind", MODELS)
def test_a_block_of_two_models_of_this_class_can_be_captured(kind, fake, launches):
    target, draft = (fake(kind, **MODELS[kind]) for _ in range(2))
    assert_captured(target, draft, Method(Cactus(0.1)), KERNELS)
    assert launches


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("rule", CAPTURED)
def test_a_block_of_this_rule_and_sampling_can_be_captured(rule, sampling, fake, launches):
    """With either verification, with and without a ledger and emitted log-probabilities."""
    target, draft = (fake("Qwen3ForCausalLM") for _ in range(2))
    rule = CAPTURED[rule].example()
    verifications = ("token", "block") if rule.ordered else ("token",)
    for ways in itertools.product(verifications, (False, True), (False, True)):
        launches.clear()
        assert_captured(target, draft, Method(rule, *ways), sampling)
        assert bool(launches) == (sampling is KERNELS and ways[0] == "token")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_block_of_one_model_alone_can_be_captured(sampling, fake, launches):
    target = fake("Qwen3ForCausalLM")
    assert_captured(target, None, Method(SpeculativeSampling()), sampling, k=0)


@pytest.mark.parametrize("width", [5, 9])
def test_a_block_of_a_draft_with_another_vocabulary_can_be_captured(width, fake, launches):
    target = fake("Qwen3ForCausalLM")
    draft = fake("LlamaForCausalLM", vocab_size=width)
    assert_captured(target, draft, Method(Cactus(0.1)), SAMPLINGS["all filters"])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_pass_in_one_launch_can_be_captured(attention, fake):
    model = fake("Gemma3ForCausalLM", attention=attention, **TWO_KINDS)
    context = open_context(model, rows=ROWS, slots=40)
    tokens = torch.zeros(ROWS, 2, dtype=torch.int64, device=model.device)
    for _ in range(2):
        with HostReads() as reads:
            logits = context.read_at(tokens, tokens + torch.arange(2, device=model.device), keep=1)
    assert reads.found == []
    assert logits.is_cuda
    assert logits.shape == (ROWS, 1, 7)


@dataclass(frozen=True)
class Asking(Cactus):
    """Asks the host, or another device, for what its formula needs."""

    how: str = "value"

    def shrink(self, target_prob, *, xp):
        found = super().shrink(target_prob, xp=xp)
        if self.how == "value":
            return found * (1 if bool((found > 0).all()) else 0)
        if self.how == "device":
            return found * torch.ones(found.shape, device="cpu")
        return found.cpu().to(found.device)


def test_a_rule_that_reads_a_value_is_seen(fake, launches):
    target, draft = (fake("LlamaForCausalLM") for _ in range(2))
    with pytest.raises(DataDependentOutputException):
        computed(target, draft, Method(Asking(0.1, how="value")), KERNELS)


def test_a_rule_that_mixes_devices_is_seen(fake, launches):
    target, draft = (fake("LlamaForCausalLM") for _ in range(2))
    with pytest.raises(RuntimeError, match="on the same device"):
        computed(target, draft, Method(Asking(0.1, how="device")), KERNELS)


def test_a_rule_that_goes_by_way_of_the_host_is_seen(fake, launches):
    target, draft = (fake("LlamaForCausalLM") for _ in range(2))
    _, reads = computed(target, draft, Method(Asking(0.1, how="copies")), KERNELS)
    assert reads == ["aten._to_copy.default"] * 2
