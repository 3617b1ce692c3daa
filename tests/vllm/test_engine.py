"""The plugin in vLLM's engine, on two random models of eight tokens; a fault of the CPU build.

Needs the C++ kernels of the CPU build: skipped where Triton is interpreted.
"""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import pytest
import torch

from cactus_runtime.integrations.vllm.cpu_build import expand, repair_expansion
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    SpeculativeSampling,
    output_distribution,
)
from cactus_theory.rules.registry import RULES
from cactus_theory.testing import check_counts, samples_needed

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


def register(kernel):
    from vllm.triton_utils.dispatcher import register_kernels

    register_kernels({EXPAND: kernel})


@pytest.fixture
def stock(rejection_sampler):
    """The kernel of the CPU build, which the plugin replaces where it is in use."""
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    register(_expand_kernel_impl)
    yield
    register(expand)


def expanded(rejection_sampler, values):
    output = torch.full((3,), 9, dtype=values.dtype)
    rejection_sampler._expand(output, values, torch.tensor([1, 3], dtype=torch.int32), 0, 1)
    return output.tolist()


def test_the_cpu_build_leaves_the_temperature_of_drafted_tokens_uninitialised(
    rejection_sampler, stock
):
    # It writes to a copy made for its int64 kernel: only int64 values arrive.
    assert expanded(rejection_sampler, torch.tensor([0.5, 0.25])) == [9, 9, 9]
    assert expanded(rejection_sampler, torch.tensor([2, 0], dtype=torch.int32)) == [9, 9, 9]
    assert expanded(rejection_sampler, torch.tensor([2, 0])) == [2, 1, 1]


def test_so_it_divides_the_logits_by_what_the_memory_held(
    rejection_sampler, sampling_metadata, stock
):
    held = lambda tensor, size: tensor.new_full((size,), 4.0)  # noqa: E731
    batch = sampling_metadata(torch.tensor([0.5, 0.5]))
    with mock.patch.object(torch.Tensor, "new_empty", held):
        logits = rejection_sampler.apply_sampling_constraints(
            torch.ones(3, 2), torch.tensor([1, 3], dtype=torch.int32), batch
        )
    assert (logits == 0.25).all()  # 1 / 4, not 1 / 0.5


def test_the_plugin_repairs_it_and_says_so_once(rejection_sampler, stock):
    sampler = type("RejectionSampler", (), {"__module__": rejection_sampler.__name__})()
    with mock.patch("cactus_runtime.integrations.vllm.cpu_build.logger") as logger:
        repair_expansion(sampler)
        repair_expansion(sampler)
    assert logger.warning.call_count == 1
    assert expanded(rejection_sampler, torch.tensor([0.5, 0.0])) == [0.5, 1, 1]
    assert expanded(rejection_sampler, torch.tensor([2, 0], dtype=torch.int32)) == [2, 1, 1]


def test_top_k_raises_where_no_row_has_drafts(rejection_sampler, sampling_metadata, stock):
    register(expand)
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
            disable_log_stats=False,
            logprobs_mode="processed_logprobs",
            kv_cache_memory_bytes=2**26,
            speculative_config={
                "method": "draft_model",
                "model": folders[1],
                "num_speculative_tokens": 1,
                "draft_sample_method": "probabilistic",
            },
            additional_config={"cactus": {"delta": 0.5}},
            worker_extension_cls="cactus_runtime.integrations.vllm.CactusExtension",
        )


def configure(engine, rule, **settings):
    name = next(name for name, entry in RULES.items() if type(rule) is entry.kind)
    settings |= {"rule": name, "delta": rule.epsilon if isinstance(rule, Clamp) else rule.delta}
    (ended,) = engine.collective_rpc("cactus_configure", args=(settings,))
    return ended


def generated(engine, count, **params):
    from vllm import SamplingParams

    outputs = engine.generate(
        [{"prompt_token_ids": PROMPT}] * count,
        SamplingParams(detokenize=False, ignore_eos=True, **params),
        use_tqdm=False,
    )
    return [output.outputs[0] for output in outputs]


def law(model, ids, *, temperature=TEMPERATURE):
    logits = model(torch.tensor([ids])).logits[0, -1].double()
    return (logits / temperature).softmax(-1).numpy()


@pytest.mark.parametrize(
    "rule", [Cactus(0.0), Cactus(0.1), Cactus(1.0), CactusExact(0.1), CactusSafe(0.5)], ids=repr
)
def test_the_engine_emits_the_law_of_the_rule(engine, models, rule):
    # The first token comes from the prompt alone, the second is the first one verified.
    configure(engine, rule)
    first = int(law(models[0], PROMPT).argmax())
    target, draft = (law(model, [*PROMPT, first]) for model in models)
    laws = {"draft": draft, "target": target, "smallest": 0.05}

    # float32 logits are right to some 1e-6
    judged = SpeculativeSampling() if rule.delta == 0 else rule
    count = samples_needed(judged, **laws)  # 1200 tokens take 4 seconds
    torch.manual_seed(0)
    seconds = []
    while len(seconds) < count:
        texts = generated(engine, 2_000, max_tokens=2, temperature=TEMPERATURE)
        pairs = (text.token_ids for text in texts)
        seconds += [second for token, second in pairs if token == first]
    check_counts(np.bincount(seconds[:count], minlength=target.size), judged, **laws)


MIXED = {
    CactusSafe(0.5): None,
    Cactus(1.0): {"cactus_rule": "cactus", "cactus_delta": 1},
    Clamp(0.1): {"cactus_rule": "clamp", "cactus_delta": 0.1},
    SpeculativeSampling(): {"cactus_rule": "speculative"},
}


def requested(engine, own, **given):
    """Token ids of one request for each of `own`, served as one batch."""
    from vllm import SamplingParams

    common = {"detokenize": False, "ignore_eos": True, "temperature": TEMPERATURE, **given}
    outputs = engine.generate(
        [{"prompt_token_ids": PROMPT}] * len(own),
        [SamplingParams(extra_args=extra_args, **common) for extra_args in own],
        use_tqdm=False,
    )
    return [output.outputs[0].token_ids for output in outputs]


def test_each_request_of_a_mixed_batch_follows_its_own_rule(engine, models):
    configure(engine, CactusSafe(0.5))
    first = int(law(models[0], PROMPT).argmax())
    target, draft = (law(model, [*PROMPT, first]) for model in models)
    laws = {"draft": draft, "target": target, "smallest": 0.2}
    count = max(samples_needed(rule, **laws) for rule in MIXED)
    torch.manual_seed(0)
    seconds = {rule: [] for rule in MIXED}
    while min(map(len, seconds.values())) < count:
        texts = requested(engine, list(MIXED.values()) * 500, max_tokens=2)
        for (token, second), rule in zip(texts, list(MIXED) * 500, strict=True):
            if token == first:
                seconds[rule].append(second)
    for rule, found in seconds.items():
        check_counts(np.bincount(found[:count], minlength=target.size), rule, **laws)


def test_wrong_settings_of_a_request_are_refused_and_the_engine_goes_on(engine):
    from vllm.exceptions import VLLMValidationError

    for own, message in (
        ({"cactus_delta": -1}, "cactus_delta: delta must be .*got -1"),
        ({"cactus_epsilon": 1}, "cactus_epsilon: rule cactus takes delta, got epsilon=1"),
        ({"cactus_rule": "typical"}, "cactus_rule: rule must be one of"),
    ):
        with pytest.raises(VLLMValidationError, match=message):
            requested(engine, [own], max_tokens=2)
    assert len(requested(engine, [{"cactus_delta": 1}], max_tokens=5)[0]) == 5


def counted(engine):
    """Drafted and accepted tokens by vLLM's own metrics."""
    values = {metric.name: getattr(metric, "value", None) for metric in engine.get_metrics()}
    names = ("num_draft_tokens", "num_accepted_tokens")
    return np.array([values[f"vllm:spec_decode_{name}"] for name in names])


def test_the_statistics_are_those_of_vllm_itself_and_rise_with_the_budget(engine):
    accepted = []
    for delta in (0.0, 1.0):
        configure(engine, Cactus(delta))
        before = counted(engine)
        generated(engine, 500, max_tokens=9, temperature=TEMPERATURE)
        drafted, kept = counted(engine) - before
        (found,) = engine.collective_rpc("cactus_statistics")
        assert (found["drafted_tokens"], found["accepted_tokens"]) == (drafted, kept)
        assert found["rejected_tokens"] == drafted - kept  # one draft per block
        assert found["blocks"] == drafted
        accepted.append(found["acceptance_rate"])
    assert accepted[1] > accepted[0] + 0.1  # by 0.2 or more on this pair; 500 x 4 draws or more


def test_greedy_the_engine_follows_the_argmax_and_nothing_is_counted(engine, models):
    configure(engine, Cactus(1.0))
    ids = list(PROMPT)
    for _ in range(8):
        ids.append(int(law(models[0], ids).argmax()))
    texts = generated(engine, 3, max_tokens=8, temperature=0)
    assert [text.token_ids for text in texts] == [ids[len(PROMPT) :]] * 3
    assert configure(engine, Cactus(1.0))["blocks"] == 0


def test_log_probabilities_are_those_of_the_target(engine, models):
    configure(engine, Cactus(1.0))
    with mock.patch.object(torch._dynamo.config, "disable", True):  # else half a minute
        texts = generated(engine, 20, max_tokens=6, temperature=TEMPERATURE, logprobs=8)
    for text in texts:
        ids = list(PROMPT)
        for token, reported in zip(text.token_ids, text.logprobs, strict=True):
            expected = np.log(law(models[0], ids))
            found = [reported[x].logprob for x in range(expected.size)]
            assert found == pytest.approx(expected, abs=1e-5)  # two float32 models
            ids.append(token)


@pytest.mark.parametrize("rule", [Cactus(0.5), Clamp(0.2)], ids=repr)
def test_emitted_log_probabilities_are_those_that_tokens_were_drawn_from(engine, models, rule):
    configure(engine, rule, logprobs="emitted")
    with mock.patch.object(torch._dynamo.config, "disable", True):  # else half a minute
        texts = generated(engine, 40, max_tokens=2, temperature=TEMPERATURE, logprobs=8)
    for text in texts:
        plain, judged = ([at[x].logprob for x in range(8)] for at in text.logprobs)
        ids = [*PROMPT, text.token_ids[0]]
        out = output_distribution(rule, draft=law(models[1], ids), target=law(models[0], ids))
        assert plain == pytest.approx(np.log(law(models[0], PROMPT)), abs=1e-5)
        assert judged == pytest.approx(np.log(out), abs=1e-4)  # two float32 models


def test_a_budget_of_a_request_is_kept_and_expected_acceptance_is_met(engine):
    configure(engine, Cactus(1.0), ledger=True)
    own = [{"cactus_max_kl": 0.2}, None] * 250
    requested(engine, own, max_tokens=9)
    (found,) = engine.collective_rpc("cactus_statistics")
    ledger = found["ledger"]
    latest = list(ledger["requests"].values())[-500:]
    spent = sorted(each["kl"] for each in latest)
    assert sum(kl <= 0.2 for kl in spent) >= 250
    assert spent[-1] > 0.4  # of requests without a budget
    assert ledger["judged_tokens"] == found["accepted_tokens"] + found["rejected_tokens"]
    # the standard deviation of a token is at most 1/2; six of them
    off = ledger["accepted_tokens"] - ledger["expected_accepted_tokens"]
    assert abs(off) < 3 * ledger["judged_tokens"] ** 0.5
    assert ledger["kl"] == pytest.approx(sum(spent), rel=1e-9)


def test_a_running_engine_refuses_wrong_settings_and_goes_on(engine):
    configure(engine, Cactus(0.5))
    with pytest.raises(ValueError, match="got dleta=1"):
        engine.collective_rpc("cactus_configure", args=({"dleta": 1},))
    assert configure(engine, Cactus(0.5))["delta"] == 0.5
