"""The plugin in vLLM's workers and in front of the samplers that they make, without an engine."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import entry_points
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from cactus_runtime.integrations.vllm import register
from cactus_runtime.integrations.vllm.runners import V1, V2
from cactus_theory import Cactus, Clamp, output_distribution

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
        "ignore::RuntimeWarning:triton.runtime.interpreter",
    ),
]

SIZE = 6
STEPS = 2


def sampler_of_the_first_runner(module, mode="raw_logprobs"):
    from vllm.v1.sample.sampler import Sampler

    return module.RejectionSampler(Sampler(logprobs_mode=mode))


def sampler_of_the_second_runner(module):
    states = SimpleNamespace(
        temperature=SimpleNamespace(gpu=torch.tensor([1.0, 0.0])),
        seeds=SimpleNamespace(gpu=torch.tensor([1, 2])),
    )
    sampler = SimpleNamespace(
        sampling_states=states,
        use_fp64_gumbel=False,
        apply_sampling_params=lambda logits, *rest: logits,
    )
    config = SimpleNamespace(
        num_speculative_tokens=STEPS,
        enable_adaptive_verification=False,
        rejection_sample_method="standard",
    )
    return module.RejectionSampler(sampler, config, torch.device("cpu"))


@pytest.fixture(params=["first", "second"])
def sampler(request, rejection_sampler):
    if request.param == "first":
        return sampler_of_the_first_runner(rejection_sampler)
    return sampler_of_the_second_runner(import_module(V2.module))


class Worker:
    """What the plugin sees of a worker."""

    def __init__(self, sampler):
        self.model_runner = SimpleNamespace(
            rejection_sampler=sampler,
            input_batch=SimpleNamespace(req_ids=[]),
            requests={},
            sampler=SimpleNamespace(add_request=lambda req_idx, sampling_params: req_idx),
            req_states=SimpleNamespace(index_to_req_id={}),
        )

    def load_model(self, **given):
        return given

    def compile_or_warm_up_model(self):
        booster = getattr(self.model_runner.rejection_sampler, "cactus", None)
        if booster:
            booster._counts += 5
        return 7


@pytest.fixture
def wrapper(rejection_sampler):
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    register()
    register()
    return WorkerWrapperBase()


def started(
    wrapper, sampler, *, cactus=None, method="probabilistic", stages=1, mode="raw_logprobs"
):
    wrapper.worker = Worker(sampler)
    wrapper.vllm_config = SimpleNamespace(
        additional_config={} if cactus is None else {"cactus": cactus},
        speculative_config=SimpleNamespace(
            rejection_sample_method="standard", draft_sample_method=method
        ),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        model_config=SimpleNamespace(logprobs_mode=mode),
    )
    assert wrapper.load_model(load_dummy_weights=True) == {"load_dummy_weights": True}
    assert wrapper.compile_or_warm_up_model() == 7


def test_vllm_finds_the_plugin():
    (found,) = entry_points(group="vllm.general_plugins", name="cactus")
    assert found.load() is register


def test_without_settings_nothing_changes(wrapper, sampler):
    before = dict(vars(sampler))
    with mock.patch("cactus_runtime.integrations.vllm.plugin.logger") as logger:
        started(wrapper, sampler)
    assert vars(sampler) == before
    assert not logger.mock_calls


def test_with_settings_the_sampler_is_boosted_and_the_warm_up_is_not_counted(wrapper, sampler):
    started(wrapper, sampler, cactus={"delta": 0.5})
    assert sampler.cactus.settings.rule == Cactus(0.5)
    assert sampler.cactus.statistics()["blocks"] == 0


def test_two_engines_of_one_process_keep_their_own_settings(wrapper, rejection_sampler):
    samplers = [sampler_of_the_first_runner(rejection_sampler) for _ in range(3)]
    for sampler, settings in zip(samplers, [{"delta": 0.5}, None, {"delta": 1}], strict=True):
        started(wrapper, sampler, cactus=settings)
    assert [getattr(sampler, "cactus", None) is None for sampler in samplers] == [0, 1, 0]
    assert samplers[0].cactus.settings.rule == Cactus(0.5)


def test_wrong_settings_are_refused_before_a_model_is_loaded(wrapper, sampler):
    with (
        mock.patch.object(Worker, "load_model") as load_model,
        pytest.raises(ValueError, match="got dleta=1"),
    ):
        started(wrapper, sampler, cactus={"dleta": 1})
    assert not load_model.called


@pytest.mark.parametrize(("method", "warned"), [("greedy", True), ("probabilistic", False)])
def test_greedy_drafts_are_warned_of(wrapper, sampler, method, warned):
    with mock.patch("cactus_runtime.integrations.vllm.plugin.logger") as logger:
        started(wrapper, sampler, cactus={"delta": 0.5}, method=method)
    assert ["drafts are greedy" in call.args[0] for call in logger.warning.mock_calls] == [
        True
    ] * warned


def test_a_missing_or_unknown_sampler_is_refused_unless_another_stage_samples(wrapper):
    with pytest.raises(RuntimeError, match=r"does not know .*NoneType.*This is vLLM 0"):
        started(wrapper, None, cactus={"delta": 0.5})
    with pytest.raises(
        RuntimeError, match=r"does not know .*Mock.*install one of these, or remove"
    ):
        started(wrapper, mock.Mock(), cactus={"delta": 0.5})
    started(wrapper, None, cactus={"delta": 0.5}, stages=2)


def test_another_call_of_the_sampler_is_refused(wrapper, sampler):
    runner = V1 if type(sampler).__module__ == V1.module else V2
    with (
        mock.patch.object(type(sampler), runner.method, register),
        pytest.raises(RuntimeError, match="does not use rejection_sample"),
    ):
        started(wrapper, sampler, cactus={"delta": 0.5})


def log_probabilities_of_the_first_runner(sampler, logits, batch, draft):
    """Tokens of two requests with two and one drafts, and log-probabilities of each place."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    drafts = SpecDecodeMetadata(
        draft_token_ids=torch.tensor([1, 2, 3], dtype=torch.int32),
        num_draft_tokens=[2, 1],
        cu_num_draft_tokens=torch.tensor([2, 3], dtype=torch.int32),
        cu_num_sampled_tokens=torch.tensor([3, 5], dtype=torch.int32),
        target_logits_indices=torch.tensor([0, 1, 3]),
        bonus_logits_indices=torch.tensor([2, 4]),
        logits_indices=torch.arange(5),
    )
    with mock.patch.object(torch._dynamo.config, "disable", True):  # else half a minute
        output = sampler(drafts, draft, logits, batch)
    rows = [0, 1, 2, 3, 4]  # the last request's second place is padding
    found = output.logprobs_tensors
    return output.sampled_token_ids, found.logprob_token_ids[rows].long(), found.logprobs[rows]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_log_probabilities_of_the_first_runner_are_those_of_the_target(
    rejection_sampler, wrapper, sampling_metadata, mode
):
    sampler = sampler_of_the_first_runner(rejection_sampler, mode)
    started(wrapper, sampler, cactus={"delta": 1e60})  # accepts drafts, improbable as they are
    logits = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    logits[[0, 1, 3], [1, 2, 3]] = -20.0
    batch = sampling_metadata(torch.tensor([0.5, 2.0]))
    batch.max_num_logprobs = SIZE
    tokens, ids, found = log_probabilities_of_the_first_runner(
        sampler, logits, batch, torch.full((3, SIZE), 1 / SIZE)
    )
    assert tokens[0, :2].tolist() == [1, 2]
    assert tokens[1, 0] == 3
    if mode == "processed_logprobs":
        logits = logits / torch.tensor([0.5, 0.5, 0.5, 2, 2])[:, None]
    assert torch.allclose(found, logits.log_softmax(-1).gather(1, ids), atol=1e-6)  # float32


@pytest.mark.parametrize("rule", [Cactus(0.5), Clamp(0.05)], ids=repr)
def test_emitted_log_probabilities_of_the_first_runner_are_those_of_what_is_emitted(
    rejection_sampler, wrapper, sampling_metadata, rule
):
    mode = "processed_logprobs"
    sampler = sampler_of_the_first_runner(rejection_sampler, mode)
    name = "cactus:delta=0.5" if isinstance(rule, Cactus) else "clamp:epsilon=0.05"
    started(wrapper, sampler, cactus={"rule": name, "logprobs": "emitted"}, mode=mode)
    logits = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    draft = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2)).softmax(-1)
    batch = sampling_metadata(torch.tensor([0.5, 2.0]))
    batch.max_num_logprobs = SIZE
    _, ids, found = log_probabilities_of_the_first_runner(sampler, logits, batch, draft)
    expected = (logits.double() / torch.tensor([0.5, 0.5, 0.5, 2, 2])[:, None]).softmax(-1)
    draft = draft.double() / draft.double().sum(-1, keepdim=True)
    for row, own in zip((0, 1, 3), draft, strict=True):
        out = output_distribution(rule, draft=own.numpy(), target=expected[row].numpy())
        expected[row] = torch.from_numpy(out)
    assert torch.allclose(found.double(), expected.log().gather(1, ids), atol=1e-5)  # float32


@pytest.fixture
def interpreted_second_runner(rejection_sampler, interpreted):
    if not interpreted:
        pytest.skip("the second runner's kernels are Triton's: needs TRITON_INTERPRET=1")
    import triton.language as tl

    utils = import_module(V2.module + "_utils")
    utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))
    return sampler_of_the_second_runner(import_module(V2.module))


def verified_by_the_second_runner(sampler, logits, draft_logits, drafts):
    return sampler._verify(
        logits,
        draft_logits,
        torch.tensor(drafts),
        torch.arange(6),
        torch.tensor([0, 3, 6], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        np.arange(2),
        torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32),
        torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32),
        np.full(2, 9),
        torch.tensor(drafts),
    )


def test_the_second_runner_returns_the_logits_it_judged_by_as_they_were(
    wrapper, interpreted_second_runner
):
    sampler = interpreted_second_runner
    started(wrapper, sampler, cactus={"delta": 1e6})
    logits = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0))
    before, greedy = logits.clone(), logits[3:].argmax(-1).tolist()
    drafts = [0, int(logits[0].argmin()), int(logits[1].argmin()), 0, greedy[0], greedy[1]]
    processed, sampled, counts = verified_by_the_second_runner(
        sampler, logits, torch.zeros(2, STEPS, SIZE), drafts
    )
    assert torch.equal(processed, before)
    assert counts.tolist() == [3, 3]
    assert sampled[0, :2].tolist() == drafts[1:3]  # the least likely, accepted by the budget
    assert sampled[1].tolist() == greedy
    assert sampler.cactus.statistics()["accepted_tokens"] == 2  # none of the greedy request


def test_requests_of_the_second_runner_are_known_by_their_slots(wrapper, interpreted_second_runner):
    sampler = interpreted_second_runner
    settings = {"delta": 0.1, "ledger": True, "logprobs": "emitted"}
    started(wrapper, sampler, cactus=settings, mode="processed_logprobs")
    runner = wrapper.worker.model_runner
    runner.req_states.index_to_req_id |= {0: "a", 1: "b"}
    asked = {"cactus_rule": "clamp", "cactus_delta": 0.05}
    runner.sampler.add_request(0, SimpleNamespace(extra_args=asked))
    runner.sampler.add_request(1, SimpleNamespace(extra_args=None))
    logits = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0))
    target = logits.double().softmax(-1)
    draft_logits = torch.randn(2, STEPS, SIZE, generator=torch.Generator().manual_seed(1))
    processed, _, counts = verified_by_the_second_runner(
        sampler, logits, draft_logits, [0, 1, 2, 0, 1, 2]
    )
    draft = draft_logits[0].double().softmax(-1).numpy()
    out = output_distribution(Clamp(0.05), draft=draft, target=target[:2].numpy())
    found = processed.double().softmax(-1).numpy()
    assert np.allclose(found[:2], out, atol=1e-6)  # float32
    assert np.allclose(found[2:], target[2:], atol=1e-6)
    requests = sampler.cactus.statistics()["ledger"]["requests"]
    assert requests["a"]["judged_tokens"] == min(int(counts[0]), STEPS)
    assert requests["b"]["judged_tokens"] == 0  # greedy


def test_an_unknown_worker_is_refused_with_a_way_out():
    with (
        mock.patch(
            "cactus_runtime.integrations.vllm.plugin.import_module", side_effect=ImportError
        ),
        pytest.raises(RuntimeError, match="VLLM_PLUGINS"),
    ):
        register()


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
