"""vLLM's engine on two random models of eight tokens, and the fault of its CPU build.

Needs the C++ kernels of the CPU build: skipped where Triton is interpreted.
"""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import pytest
import torch

from cactus_theory import Cactus, SpeculativeSampling
from cactus_theory.testing import check_by_sampling, samples_needed

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"
PROMPT = [1, 3, 5]
TEMPERATURE = 0.7


@pytest.fixture(scope="module", autouse=True)
def _compiled(interpreted):
    if interpreted:
        pytest.skip("the CPU build's kernels: needs TRITON_INTERPRET unset")


def expand(output, values, cumulative, replace_from, replace_to, tile=None):
    """What the kernel is meant to do: each row's value, once for every drafted token of the row."""
    counts = torch.diff(cumulative, prepend=cumulative.new_zeros(1)).long()
    replaced = torch.where(values == replace_from, replace_to, values)
    output.copy_(replaced.repeat_interleave(counts))


@pytest.fixture
def repaired(rejection_sampler):
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    register_kernels({EXPAND: expand})
    yield
    register_kernels({EXPAND: _expand_kernel_impl})


def expanded(rejection_sampler, values):
    output = torch.full((3,), 9, dtype=values.dtype)
    rejection_sampler._expand(output, values, torch.tensor([1, 3], dtype=torch.int32), 0, 1)
    return output.tolist()


def test_the_cpu_build_leaves_the_temperature_of_drafted_tokens_uninitialised(rejection_sampler):
    # It writes to a copy made for its int64 kernel: only int64 values arrive.
    assert expanded(rejection_sampler, torch.tensor([0.5, 0.25])) == [9, 9, 9]
    assert expanded(rejection_sampler, torch.tensor([2, 0], dtype=torch.int32)) == [9, 9, 9]
    assert expanded(rejection_sampler, torch.tensor([2, 0])) == [2, 1, 1]


def test_so_it_divides_the_logits_by_what_the_memory_held(rejection_sampler, sampling_metadata):
    held = lambda tensor, size: tensor.new_full((size,), 4.0)  # noqa: E731
    batch = sampling_metadata(torch.tensor([0.5, 0.5]))
    with mock.patch.object(torch.Tensor, "new_empty", held):
        logits = rejection_sampler.apply_sampling_constraints(
            torch.ones(3, 2), torch.tensor([1, 3], dtype=torch.int32), batch
        )
    assert (logits == 0.25).all()  # 1 / 4, not 1 / 0.5


def test_registered_anew_the_kernel_is_right(rejection_sampler, repaired):
    assert expanded(rejection_sampler, torch.tensor([0.5, 0.0])) == [0.5, 1, 1]
    assert expanded(rejection_sampler, torch.tensor([2, 0], dtype=torch.int32)) == [2, 1, 1]


def test_top_k_raises_where_no_row_has_drafts(rejection_sampler, sampling_metadata, repaired):
    top_k = torch.tensor([2, 2], dtype=torch.int32)
    batch = sampling_metadata(torch.tensor([0.5, 0.5]), top_k=top_k)
    with pytest.raises(RuntimeError, match="max"):
        rejection_sampler.apply_sampling_constraints(
            torch.empty(0, 4), torch.tensor([0, 0], dtype=torch.int32), batch
        )


@pytest.fixture(scope="module")
def models():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    target, draft = (LlamaForCausalLM(config).float().eval() for _ in range(2))
    return target.requires_grad_(False), draft.requires_grad_(False)


@pytest.fixture(scope="module")
def engine(models, tmp_path_factory, rejection_sampler):
    from vllm import LLM

    folders = [str(tmp_path_factory.mktemp(name)) for name in ("target", "draft")]
    for model, folder in zip(models, folders, strict=True):
        model.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LLM(
            folders[0],
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=32,
            enforce_eager=True,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=2**26,
            speculative_config={
                "method": "draft_model",
                "model": folders[1],
                "num_speculative_tokens": 1,
                "draft_sample_method": "probabilistic",
            },
        )


def generated(engine, count, **params):
    from vllm import SamplingParams

    outputs = engine.generate(
        [{"prompt_token_ids": PROMPT}] * count,
        SamplingParams(detokenize=False, ignore_eos=True, **params),
        use_tqdm=False,
    )
    return [output.outputs[0].token_ids for output in outputs]


def law(model, ids):
    logits = model(torch.tensor([ids])).logits[0, -1].double()
    return (logits / TEMPERATURE).softmax(-1).numpy()


def check_second_token(engine, models, rule):
    """The first token comes from the prompt alone, the second is the first one verified."""
    first = int(law(models[0], PROMPT).argmax())
    target, draft = (law(model, [*PROMPT, first]) for model in models)
    laws = {"draft": draft, "target": target, "smallest": 0.05}

    def sampler(draft, target, count, seed):
        torch.manual_seed(seed)
        seconds = []
        while len(seconds) < count:
            pairs = generated(engine, 2_000, max_tokens=2, temperature=TEMPERATURE)
            seconds += [second for token, second in pairs if token == first]
        return np.bincount(seconds[:count], minlength=target.size)

    # a law of 1200 tokens takes 4 seconds; float32 logits are right to some 1e-6
    check_by_sampling(sampler, rule, samples=samples_needed(rule, **laws), **laws)


def test_repaired_the_engine_emits_the_law_of_the_target(engine, models, repaired):
    check_second_token(engine, models, SpeculativeSampling())


@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_repaired_and_with_one_logit_shifted_the_engine_is_cactus(
    engine, models, repaired, rejection_sampler, shifted, delta
):
    stock = rejection_sampler.rejection_sample

    def shifting(tokens, lengths, longest, ends, draft, logits, *rest, **options):
        logits = shifted(logits, tokens.long(), Cactus(delta))
        return stock(tokens, lengths, longest, ends, draft, logits, *rest, **options)

    with mock.patch.object(rejection_sampler, "rejection_sample", shifting):
        check_second_token(engine, models, Cactus(delta))


def test_greedy_the_engine_follows_the_argmax_without_any_repair(engine, models):
    ids = list(PROMPT)
    for _ in range(8):
        ids.append(int(law(models[0], ids).argmax()))
    assert generated(engine, 3, max_tokens=8, temperature=0) == [ids[len(PROMPT) :]] * 3
