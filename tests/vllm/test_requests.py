"""Settings of single requests: read, completed, checked where they arrive. Needs no vLLM."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from cactus_runtime.integrations.vllm.admission import check_requests
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.requests import RequestSettings, RequestsV1, RequestsV2
from cactus_runtime.integrations.vllm.runners import V1
from cactus_runtime.integrations.vllm.settings import Settings, request_settings
from cactus_theory import Cactus, CactusSafe, Clamp, SpeculativeSampling


def params(**own):
    return SimpleNamespace(extra_args={f"cactus_{name}": value for name, value in own.items()})


@pytest.mark.parametrize(
    ("own", "engine", "rule"),
    [
        ({"delta": 0.3}, {"delta": 0.1}, Cactus(0.3)),
        ({"delta": "0.3"}, {"rule": "safe", "delta": 0.1}, CactusSafe(0.3)),
        ({"rule": "safe", "delta": 0.3}, {"rule": "clamp", "delta": 0.1}, CactusSafe(0.3)),
        ({"delta": 0.3}, {"rule": "clamp", "epsilon": 0.1}, Clamp(0.3)),
        ({"epsilon": 0.3}, {"rule": "clamp", "delta": 0.1}, Clamp(0.3)),
        ({"rule": "speculative"}, {"delta": 0.1}, SpeculativeSampling()),
        ({"rule": "clamp:epsilon=0.2"}, {"delta": 0.1}, Clamp(0.2)),
    ],
)
def test_what_a_request_leaves_out_is_as_the_engine_was_started(own, engine, rule):
    assert request_settings(own, engine) == Settings(rule)


def test_the_order_of_the_batch_of_the_first_runner_is_followed():
    requests = {
        name: SimpleNamespace(sampling_params=params(delta=i)) for i, name in enumerate("ab")
    }
    runner = SimpleNamespace(requests=requests, input_batch=SimpleNamespace(req_ids=["b", "a"]))
    assert RequestsV1(runner).batch(None) == [
        ("b", {"cactus_delta": 1}),
        ("a", {"cactus_delta": 0}),
    ]


def test_a_slot_of_the_second_runner_has_the_settings_of_its_latest_request():
    stock = mock.Mock()
    states = SimpleNamespace(index_to_req_id={3: "a"})
    runner = SimpleNamespace(sampler=SimpleNamespace(add_request=stock), req_states=states)
    requests = RequestsV2(runner)
    runner.sampler.add_request(3, params(delta=1))
    assert requests.batch([3, 5]) == [("a", {"cactus_delta": 1}), (None, None)]
    states.index_to_req_id[3] = "b"
    runner.sampler.add_request(3, SimpleNamespace(extra_args=None))
    assert requests.batch([3]) == [("b", None)]
    assert stock.call_count == 2


def test_settings_that_passed_no_check_are_lossless_and_logged_once():
    given = RequestSettings({"delta": 0.1})
    with mock.patch("cactus_runtime.integrations.vllm.requests.logger") as logger:
        for _ in range(2):
            assert given.of({"cactus_delta": -1}, Settings(Cactus(0.2))) == Settings()
    assert logger.error.call_count == 1


def test_a_budget_alone_is_added_to_the_current_settings_and_a_rule_is_not():
    given = RequestSettings({"delta": 0.1})
    for current in (Settings(Cactus(0.2), ledger=True), Settings(Clamp(0.3), max_kl=1)):
        assert given.of({"cactus_max_kl": 2}, current) == replace(current, max_kl=2)
        assert given.of({"cactus_max_kl": 2, "cactus_delta": 0.4}, current) == Settings(
            Cactus(0.4), max_kl=2
        )
        assert given.of({"session_id": "a"}, current) is None


class Processor:
    """What the plugin sees of vLLM's class of that name."""

    def __init__(self, cactus, method="standard"):
        self.vllm_config = SimpleNamespace(
            additional_config={} if cactus is None else {"cactus": cactus},
            speculative_config=SimpleNamespace(rejection_sample_method=method),
            parallel_config=SimpleNamespace(),
            use_v2_model_runner=True,
        )

    def _validate_params(self, params, tasks):
        return tasks


class Refusal(Exception):
    def __init__(self, message, *, parameter):
        super().__init__(f"{message} [{parameter}]")


@pytest.fixture(scope="module")
def processor():
    class Checked(Processor):
        _validate_params = Processor._validate_params

    check_requests(Checked)
    found = SimpleNamespace(VLLMValidationError=Refusal)
    with mock.patch("cactus_runtime.integrations.vllm.admission.import_module", return_value=found):
        yield Checked


def test_a_request_with_right_settings_or_none_passes(processor):
    for given in (params(delta=0.3), params(), SimpleNamespace(extra_args=None), object()):
        assert processor({"delta": 0.1})._validate_params(given, "tasks") == "tasks"
    assert processor(None)._validate_params(SimpleNamespace(extra_args={"a": 1}), 2) == 2


@pytest.mark.parametrize(
    ("own", "cactus", "method", "message"),
    [
        ({"delta": -1}, {"delta": 0}, "standard", "cactus_delta: delta must be .*got -1"),
        ({"dleta": 1}, {"delta": 0}, "standard", "cactus_dleta: rule cactus takes delta, got dl"),
        ({"delta": [1, 2]}, {"delta": 0}, "standard", r"cactus_delta: .*got \[1, 2\]"),
        ({"delta": None}, {"delta": 0}, "standard", "cactus_delta: .*got None"),
        ({"rule": "top-k"}, {"delta": 0}, "standard", "cactus_rule: rule must be one of"),
        ({"rule": "clamp"}, {"delta": 0}, "standard", "cactus_rule: rule clamp needs epsilon"),
        ({"rule": 3}, {"delta": 0}, "standard", "cactus_rule: rule must be one of"),
        ({"delta": 1}, None, "standard", "needs an engine started with additional_config"),
        ({"delta": 1}, {"delta": 0}, "block", "'block' needs delta=0 or rule='clamp'"),
    ],
)
def test_a_request_with_wrong_settings_is_refused_by_name(processor, own, cactus, method, message):
    with pytest.raises(Refusal, match=message + r".*\[extra_args\]"):
        processor(cactus, method)._validate_params(params(**own), "tasks")


def test_rows_are_changed_by_the_rule_of_their_own_request():
    laws = np.array([[0.2, 0.3, 0.5]] * 4)
    seen = []

    def sample(target_logits, draft_token_ids, cu_num_draft_tokens, sampling_metadata):
        seen.append(target_logits.softmax(-1).numpy())
        return torch.tensor([[0, -1]] * 3)

    booster = Booster(Settings(Cactus(0.1)), RequestSettings({"delta": 0.1}))
    arrived = [("a", {"cactus_delta": 1}), ("b", None), ("c", {"cactus_rule": "speculative"})]
    booster._requests = SimpleNamespace(batch=lambda slots: arrived)
    logits = torch.from_numpy(np.log(laws)).float()
    before = logits.clone()
    booster.around(sample, V1)(
        logits,
        torch.tensor([0, 0, 0, 0]),
        torch.tensor([2, 3, 4]),
        SimpleNamespace(all_greedy=False, temperature=torch.ones(3)),
    )
    wanted = [rule.boost(0.2) for rule in (Cactus(1.0), Cactus(1.0), Cactus(0.1), Cactus(0.0))]
    assert np.allclose(seen[0][:, 0], wanted, atol=1e-6)  # float32
    assert torch.equal(logits, before)
