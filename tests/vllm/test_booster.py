"""The plugin with functions in the place of vLLM's: shift, counts, settings. Needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime.integrations.vllm import shift
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.plugin import CactusExtension
from cactus_runtime.integrations.vllm.runners import V1, V2, rebound, runner_of
from cactus_runtime.integrations.vllm.settings import Settings, configured, settings_of
from cactus_runtime.integrations.vllm.shift import restore_logits_, shift_logits_
from cactus_theory import Cactus, CactusExact, CactusSafe, Clamp
from cactus_theory.testing import distributions

BUDGETED = [Cactus, CactusExact, CactusSafe]


def logits_of(law):
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(law)).float()


def candidate(rule, law, token):
    """h: the boosted probability at the token, the shrunk law elsewhere."""
    changed = rule.shrink(law[token]) * law
    changed[token] = rule.boost(law[token])
    return changed


@given(distributions(), st.sampled_from(BUDGETED), st.just(0.0) | st.floats(1e-12, 4), st.data())
def test_the_shifted_logits_are_those_of_the_candidate_law(law, kind, delta, data):
    token, rule = data.draw(st.integers(0, law.size - 1)), kind(delta)
    logits = logits_of(law)[None]
    seen = logits.double().softmax(-1)[0].numpy()  # what float32 makes of the law
    shift_logits_(logits, torch.tensor([token]), {rule: torch.tensor([True])})
    h = logits.double().softmax(-1)[0].numpy()
    # some units of float32's 6e-8: the log-sum-exp is single, all else double
    assert np.abs(h - candidate(rule, seen, token)).max() < 1e-6
    assert (h[seen == 0] == 0).all()


@given(distributions(), st.sampled_from(BUDGETED), st.floats(0, 1e3), st.data())
def test_a_logit_is_put_back_to_the_last_bit(law, kind, delta, data):
    token = torch.tensor([data.draw(st.integers(-1, law.size - 1))])
    logits = logits_of(law)[None]
    before = logits.clone()
    old = shift_logits_(logits, token, {kind(delta): torch.tensor([True])})
    restore_logits_(logits, token, old)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("kind", BUDGETED)
@pytest.mark.parametrize("delta", [1e-9, 0.5, 1e100])
def test_the_support_is_never_left_and_certainty_is_kept(kind, delta):
    logits = torch.tensor([[0.0, -torch.inf, 0.0], [0.0, -torch.inf, -torch.inf]])
    before = logits.clone()
    shift_logits_(logits, torch.tensor([1, 0]), {kind(delta): torch.tensor([True, True])})
    assert torch.equal(logits.softmax(-1), before.softmax(-1))


def first(target_logits, draft_token_ids, cu_num_draft_tokens, sampling_metadata, max_spec_len=3):
    """A sampler of the first runner that accepts all but the last of each request's drafts."""
    SEEN.append(target_logits.clone())
    counts = torch.diff(cu_num_draft_tokens, prepend=torch.zeros(1, dtype=torch.int32))
    output = torch.full((len(counts), int(counts.max()) + 1), -1)
    for row, count in enumerate(counts.tolist()):
        output[row, : max(count, 1)] = 0
    return output


def second(target_logits, draft_logits, draft_sampled, cu_num_logits, idx_mapping, temperature):
    """The same of the second runner."""
    SEEN.append(target_logits.clone())
    return None, torch.diff(cu_num_logits - torch.arange(len(cu_num_logits))).clamp(min=1)


SEEN: list[torch.Tensor] = []
LENGTHS, TOKENS = [2, 0, 2, 3], [1, 0, 3, 3, 2, -1, 1]
TEMPERATURE = [0.5, 1.0, 0.0, 1.0]
SHIFTED = [True, True, False, False, True, False, True]  # not greedy ones, not the placeholder


def call_first(rule, logits):
    booster = Booster(Settings(rule))
    boosted = booster.around(first, V1)
    metadata = SimpleNamespace(all_greedy=False, temperature=torch.tensor(TEMPERATURE))
    ends = torch.tensor(LENGTHS).cumsum(0).int()
    boosted(logits, torch.tensor(TOKENS).int(), ends, sampling_metadata=metadata)
    return booster, SEEN.pop()


def call_second(rule, logits, *, draft=None, spare=0):
    booster = Booster(Settings(rule))
    boosted = booster.around(second, V2)
    rows = np.insert(np.array(TOKENS), [0, 2, 2, 4], 9)  # first row of a request: no draft
    judged = torch.from_numpy(np.append(rows, [9] * spare))
    ends = torch.tensor([0, *LENGTHS]).cumsum(0) + torch.arange(5)
    temperature = torch.tensor([0.0, *reversed(TEMPERATURE)])
    boosted(logits, draft, judged, ends.int(), torch.tensor([4, 3, 2, 1]).int(), temperature)
    return booster, SEEN.pop()


def is_draft():
    return torch.tensor([True] * 2 + [False] * 2 + [True] * 2 + [False] + [True] * 3 + [False])


def test_the_first_runner_is_handed_the_drafted_tokens_shifted_and_no_others():
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    _, seen = call_first(Cactus(0.3), logits)
    expected = before.clone()
    shift_logits_(expected, torch.tensor(TOKENS), {Cactus(0.3): torch.tensor(SHIFTED)})
    assert torch.equal(seen, expected)
    assert (seen != before).any(-1).tolist() == SHIFTED
    assert torch.equal(logits, before)


@pytest.mark.parametrize("spare", [0, 2])
def test_the_second_runner_is_handed_the_drafted_tokens_shifted_and_no_others(spare):
    logits = torch.randn(11 + spare, 4, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    booster, seen = call_second(Cactus(0.3), logits, spare=spare)
    expected = before.clone()
    rows = is_draft().nonzero()[:, 0]
    some = expected[rows]
    shift_logits_(some, torch.tensor(TOKENS), {Cactus(0.3): torch.tensor(SHIFTED)})
    expected[rows] = some
    assert torch.equal(seen, expected)
    assert torch.equal(logits, before)
    assert booster.statistics()["drafted_tokens"] == sum(SHIFTED)


@pytest.mark.parametrize("call", [call_first, call_second])
@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_only_what_is_judged_by_the_rule_is_counted(call, delta):
    booster, seen = call(Cactus(delta), logits := torch.zeros(7 if call is call_first else 11, 4))
    assert torch.equal(seen, logits) == (delta == 0)
    assert booster.statistics() == {
        "blocks": 2,
        "drafted_tokens": 4,  # two, and two beside a placeholder
        "accepted_tokens": 3,
        "rejected_tokens": 1,
        "acceptance_rate": 0.75,
        "block_efficiency": 2.5,
    }
    booster.forget()
    assert booster.statistics()["acceptance_rate"] is None


def test_half_precision_logits_are_shifted_in_single():
    logits = torch.randn(11, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = logits.clone()
    _, seen = call_second(Cactus(0.3), logits)
    assert seen.dtype == torch.float32
    assert torch.equal(call_second(Cactus(0.3), before.float())[1], seen)
    assert torch.equal(logits, before)


def test_logits_beyond_the_vocabulary_of_the_draft_do_not_count():
    logits = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
    seen = call_second(Cactus(0.3), logits, draft=torch.zeros(5, 3, 4))[1]
    assert torch.equal(seen[:, :4], call_second(Cactus(0.3), logits[:, :4].contiguous())[1])
    assert torch.equal(seen[:, 4:], logits[:, 4:])


def test_a_greedy_batch_is_handed_on_as_it_is():
    metadata = SimpleNamespace(all_greedy=True, temperature=None)
    booster, logits = Booster(Settings(Cactus(1.0))), torch.randn(1, 4)
    ends = torch.tensor([1]).int()
    booster.around(first, V1)(logits, torch.tensor([2]), ends, metadata)
    assert torch.equal(SEEN.pop(), logits)
    assert booster.statistics()["blocks"] == 0


def renamed(target_logits, drafts, cu_num_draft_tokens, sampling_metadata):
    raise NotImplementedError


def longer(target_logits, draft_token_ids, cu_num_draft_tokens, sampling_metadata, method):
    raise NotImplementedError


@pytest.fixture
def vllm_version(monkeypatch):
    module = SimpleNamespace(__version__="0.99")
    monkeypatch.setattr(
        "cactus_runtime.integrations.vllm.runners.import_module", lambda name: module
    )


@pytest.mark.parametrize(
    ("function", "odd"), [(renamed, "draft_token_ids, drafts"), (longer, "method")]
)
def test_a_function_of_other_parameters_is_refused_with_advice(vllm_version, function, odd):
    wanted = rf"parameters differ in {odd}\. This is vLLM 0\.99; cactus was written for 0\.30 to"
    with pytest.raises(RuntimeError, match=wanted):
        Booster(Settings(Cactus(0.5))).around(function, V1)


def test_a_sampler_of_another_class_is_refused(vllm_version):
    with pytest.raises(RuntimeError, match=r"sampler types\.SimpleNamespace.*0\.30 to 0\.33"):
        runner_of(SimpleNamespace())


def test_a_method_that_does_not_call_the_function_is_refused():
    with pytest.raises(RuntimeError, match="first does not use rejection_sample"):
        rebound(first, "rejection_sample", id)


def defaults(x, *, y=3):
    return SEEN, x + y


def test_a_function_bound_anew_differs_in_one_name_only():
    again = rebound(defaults, "SEEN", type)
    assert again(1) == (list, 4)
    assert defaults(1, y=1) == (SEEN, 2)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"delta": 0}, Cactus(0.0)),
        ({"delta": 0.75, "rule": "cactus"}, Cactus(0.75)),
        ({"delta": 0.75, "rule": "exact"}, CactusExact(0.75)),
        ({"rule": "safe", "delta": 0.75}, CactusSafe(0.75)),
        ({"rule": "clamp", "delta": 0.75}, Clamp(0.75)),
        ({"rule": "clamp", "epsilon": 0.75}, Clamp(0.75)),
    ],
)
def test_settings_are_a_rule(settings, rule):
    assert settings_of(settings).rule == rule


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (0.75, TypeError, "like {'delta': 0.75}, got 0.75"),
        (None, TypeError, "got None"),
        ({}, ValueError, "rule cactus needs delta"),
        ({"delta": 1, "budget": 2}, ValueError, "rule cactus takes delta, got budget=2"),
        ({"delta": 1, 3: 4}, TypeError, "like {'delta': 0.75}"),
        ({"delta": -1}, ValueError, "delta must be a number of nats in .*, got -1"),
        ({"delta": float("nan")}, ValueError, "delta must be a number of nats in .*, got nan"),
        ({"delta": "much"}, ValueError, "delta must be a number >= 0, got 'much'"),
        ({"delta": True}, TypeError, "got True"),
        ({"delta": 1, "rule": "Cactus"}, ValueError, "one of speculative, cactus, .*, got 'Cac"),
        ({"delta": 1, "rule": ["safe"]}, ValueError, "got .'safe'."),
        ({"rule": "top-k"}, ValueError, "one of speculative, cactus, .*clamp.*, got 'top-k'"),
        ({"rule": "clamp", "delta": 1, "epsilon": 1}, ValueError, "the same, got both"),
        (
            {"delta": 1, "rule": "exact", "divergence": "jensen-shannon"},
            ValueError,
            "one that torch evaluates",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, kind, message):
    with pytest.raises(kind, match=message):
        settings_of(settings)


def config(*, cactus=None, method="standard", **changed):
    return SimpleNamespace(
        **{
            "additional_config": {} if cactus is None else {"cactus": cactus},
            "speculative_config": SimpleNamespace(rejection_sample_method=method),
            "parallel_config": SimpleNamespace(enable_elastic_ep=False),
            "watermark_config": None,
            **changed,
        }
    )


def test_a_configuration_without_settings_asks_for_nothing():
    assert configured(config(method="block")) is None
    assert configured(config(additional_config=object())) is None
    assert configured(config(cactus={"delta": 0.5})) == Settings(Cactus(0.5))
    second = config(cactus={"delta": 0}, method="block", use_v2_model_runner=True)
    assert configured(second) == Settings(Cactus(0.0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "block"}, "'block' needs delta=0 or rule='clamp', got Cactus"),
        (
            {"method": "block", "additional_config": {"cactus": {"rule": "clamp", "delta": 1}}},
            "needs vLLM's second model runner",
        ),
        ({"method": "fly"}, "got 'fly'"),
        ({"method": "synthetic"}, "got 'synthetic'"),
        ({"speculative_config": None}, "needs speculative decoding"),
        ({"watermark_config": object()}, "watermark"),
        ({"parallel_config": SimpleNamespace(enable_elastic_ep=True)}, "enable_elastic_ep"),
        ({"additional_config": {"cactus": None}}, "got None"),
    ],
)
def test_an_engine_in_which_the_shift_is_not_the_rule_is_refused(changed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        configured(config(cactus={"delta": 0.5}, **changed))


def extension(sampler):
    worker = CactusExtension()
    worker.vllm_config = config()
    worker.model_runner = SimpleNamespace(rejection_sampler=sampler)
    return worker


def test_settings_of_a_running_engine_are_changed_and_counts_begin_anew():
    booster, _ = call_first(Cactus(0.0), torch.zeros(7, 4))
    worker = extension(SimpleNamespace(cactus=booster))
    ended = worker.cactus_configure({"delta": 0.5, "rule": "safe"})
    assert (ended["rule"], ended["delta"], ended["accepted_tokens"]) == ("Cactus", 0.0, 3)
    now = worker.cactus_statistics()
    assert (now["rule"], now["delta"], now["accepted_tokens"]) == ("CactusSafe", 0.5, 0)
    with pytest.raises(ValueError, match="takes delta, got dleta=1"):
        worker.cactus_configure({"dleta": 1})
    worker.vllm_config = config(method="block")
    with pytest.raises(ValueError, match="'block' needs delta=0 or rule='clamp'"):
        worker.cactus_configure({"delta": 1})
    assert booster.settings.rule == CactusSafe(0.5)


@pytest.mark.parametrize("together", [1, 4, 9, 100])
def test_rows_are_summed_some_at_a_time(monkeypatch, together):
    logits = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    whole, some = logits.clone(), logits.clone()
    where = {Cactus(0.3): torch.ones(7, dtype=torch.bool)}
    shift_logits_(whole, torch.arange(7) % 4, where)
    monkeypatch.setattr(shift, "_TOGETHER", together)
    shift_logits_(some, torch.arange(7) % 4, where)
    assert torch.equal(whole, some)


def test_an_engine_started_without_settings_cannot_be_given_some():
    with pytest.raises(RuntimeError, match="start the engine with additional_config="):
        extension(SimpleNamespace()).cactus_configure({"delta": 0.5})
    assert extension(None).cactus_configure({"delta": 0.5}) is None  # does not sample
