"""Charges, budgets and emitted log-probabilities of requests, against the theory. Needs no vLLM."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from cactus_runtime.integrations.vllm import change, metrics
from cactus_runtime.integrations.vllm import ledger as ledgers
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.ledger import Ledger
from cactus_runtime.integrations.vllm.requests import RequestSettings
from cactus_runtime.integrations.vllm.runners import V1, V2, DraftedRows
from cactus_runtime.integrations.vllm.settings import Settings, request_settings, settings_of
from cactus_theory import Cactus, Clamp, SpeculativeSampling, emission, output_distribution
from cactus_theory.ledger import Ledger as OfTheory
from cactus_theory.ledger import budget_stop

LENGTHS = (3, 2, 1)
ACCEPTED = (1, 2, 0)
SIZE = 5


def laws(seed):
    return np.random.default_rng(seed).dirichlet(np.ones(SIZE), sum(LENGTHS))


DRAFT, TARGET = laws(0), laws(1)
TOKENS = torch.tensor([0, 1, 2, 3, 4, 0])


class FirstRunner:
    """A sampler of the first runner that accepts so many drafts, and what it saw."""

    def __init__(self, booster, names=("a", "b", "c"), own=(None, None, None)):
        arrived = list(zip(names, own, strict=True))
        booster._requests = SimpleNamespace(batch=lambda slots: arrived)
        self.call = booster.around(self.sample, V1)

    def sample(
        self, draft_token_ids, cu_num_draft_tokens, draft_probs, target_logits, sampling_metadata
    ):
        self.seen = target_logits.clone()
        output = torch.full((len(ACCEPTED), max(LENGTHS) + 1), -1)
        for row, count in enumerate(ACCEPTED):
            output[row, : count + 1] = 0
        return output

    def step(self, temperature=(1.0, 1.0, 1.0)):
        self.logits = torch.from_numpy(np.log(TARGET)).float()
        self.call(
            TOKENS,
            torch.tensor(LENGTHS).cumsum(0),
            torch.from_numpy(DRAFT).float(),
            self.logits,
            SimpleNamespace(all_greedy=False, temperature=torch.tensor(temperature)),
        )


class SecondRunner(FirstRunner):
    """The same of the second runner; its bonus rows are uniform, and its slots are reversed."""

    def __init__(self, booster, names=("a", "b", "c"), own=(None, None, None)):
        super().__init__(booster, names, own)
        self.call = booster.around(self.sample_second, V2)

    def sample_second(
        self, target_logits, draft_logits, draft_sampled, cu_num_logits, idx_mapping, temperature
    ):
        self.seen = target_logits[self.judging()].clone()
        return None, torch.tensor(ACCEPTED) + 1

    @staticmethod
    def judging():
        return torch.tensor([row for row in range(9) if row not in (3, 6, 8)])

    def step(self, temperature=(1.0, 1.0, 1.0)):
        rows = torch.zeros(9, SIZE)
        rows[self.judging()] = torch.from_numpy(np.log(TARGET)).float()
        judged = torch.zeros(9, dtype=torch.int64)
        judged[self.judging() + 1] = TOKENS
        draft = torch.zeros(3, 3, SIZE)
        start = 0
        for slot, length in zip((2, 1, 0), LENGTHS, strict=True):
            own = np.log(DRAFT[start : start + length]) * temperature[2 - slot]
            draft[slot, :length] = torch.from_numpy(own)
            start += length
        self.call(
            rows,
            draft,
            judged,
            torch.tensor([0, 4, 7, 9]),
            torch.tensor([2, 1, 0]),
            torch.tensor(temperature[::-1]),
        )
        self.logits = rows[self.judging()]


@pytest.fixture(params=[FirstRunner, SecondRunner])
def runner(request):
    return request.param


def costs(rule):
    return emission(rule, draft=DRAFT, target=TARGET)


def judged():
    starts = np.cumsum((0, *LENGTHS))[:-1]
    pairs = zip(starts, LENGTHS, ACCEPTED, strict=True)
    return [np.arange(start, start + min(length, kept + 1)) for start, length, kept in pairs]


@pytest.mark.parametrize("rule", [Cactus(0.3), Clamp(0.1), SpeculativeSampling()], ids=repr)
def test_requests_are_charged_what_the_theory_says_of_the_tokens_judged(runner, rule):
    booster = Booster(Settings(rule, ledger=True), RequestSettings({"delta": 0}))
    sampler = runner(booster)
    sampler.step(temperature=(0.5, 1.0, 2.0))
    sampler.step()
    found = booster.statistics()["ledger"]
    cost = costs(rule)
    for name, rows, kept in zip("abc", judged(), ACCEPTED, strict=True):
        own = found["requests"][name]
        assert own["judged_tokens"] == 2 * len(rows)
        assert own["accepted_tokens"] == 2 * kept
        for key, values in (
            ("expected_accepted_tokens", cost.acceptance_rate),
            ("total_variation", cost.total_variation),
            ("kl", cost.kl_bound),
        ):
            # logits and drafts are float32
            assert own[key] == pytest.approx(2 * values[rows].sum(), abs=1e-5)
    for key in ledgers.NAMES:
        assert found[key] == pytest.approx(sum(own[key] for own in found["requests"].values()))


def test_only_requests_with_a_budget_are_charged_where_no_ledger_is_kept(runner):
    booster = Booster(Settings(Cactus(0.3)), RequestSettings({"delta": 0.3}))
    sampler = runner(booster, own=(None, {"cactus_max_kl": 5}, None))
    sampler.step(temperature=(1.0, 1.0, 0.0))
    found = booster.statistics()["ledger"]["requests"]
    assert [found[name]["judged_tokens"] for name in "abc"] == [0, 2, 0]


def test_greedy_requests_are_not_charged(runner):
    booster = Booster(Settings(Cactus(0.3), ledger=True), RequestSettings({"delta": 0.3}))
    runner(booster).step(temperature=(0.0, 1.0, 0.0))
    found = booster.statistics()["ledger"]["requests"]
    assert [found[name]["judged_tokens"] for name in "abc"] == [0, 2, 0]


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.32, 1.0, 10.0])
@pytest.mark.parametrize("rule", [Cactus(0.3), Clamp(0.1)], ids=repr)
def test_a_request_is_lossless_once_its_budget_is_spent(runner, rule, budget):
    booster = Booster(Settings(rule, max_kl=budget), RequestSettings({"delta": 0}))
    sampler, kls = runner(booster), costs(rule).kl_bound
    expected = {name: OfTheory(max_kl=budget) for name in "abc"}
    for _ in range(4):
        sampler.step()
        changed = (sampler.seen != torch.from_numpy(np.log(TARGET)).float()).any(-1).numpy()
        start = 0
        for name, length, rows in zip("abc", LENGTHS, judged(), strict=True):
            own = slice(start, start + length)
            none = np.zeros(length)
            stop = budget_stop(expected[name], total_variations=none, kls=kls[own])
            assert (changed[own] == (np.arange(length) < stop)).all()
            spent = kls[rows][: min(stop, len(rows))]
            expected[name] = expected[name].spend(total_variations=0 * spent, kls=spent)
            start += length
        found = booster.statistics().get("ledger", {"requests": {}})["requests"]
        for name, own in found.items():
            assert own["kl"] <= budget
            assert own["kl"] == pytest.approx(expected[name].kl, abs=1e-5)  # float32 logits


def test_beyond_its_budget_a_request_is_expected_to_accept_as_without_a_rule(runner):
    booster = Booster(Settings(Cactus(0.3), max_kl=0.0), RequestSettings({"delta": 0}))
    runner(booster).step()
    found = booster.statistics()["ledger"]["expected_accepted_tokens"]
    plain = np.minimum(DRAFT, TARGET).sum(-1)[np.concatenate(judged())].sum()
    assert found == pytest.approx(plain, abs=1e-6)  # float32 logits


def test_the_latest_requests_are_remembered_and_fewer_are_shown(monkeypatch):
    monkeypatch.setattr(ledgers, "KEPT", 4)
    monkeypatch.setattr(ledgers, "SHOWN", 2)
    booster = Booster(Settings(Cactus(0.3), ledger=True), RequestSettings({"delta": 0}))
    for names in (("a", "b", "c"), ("a", "d", None), ("e", "f", None), ("a", None, "b")):
        FirstRunner(booster, names=names).step()
    found = booster.statistics()["ledger"]
    assert {name: own["judged_tokens"] for name, own in found["requests"].items()} == {
        "a": 3 * 2,
        "b": 1,  # forgotten when e and f came
    }
    assert found["judged_tokens"] == 4 * 5


def test_the_sums_of_requests_go_on_where_counts_begin_anew():
    booster = Booster(Settings(Cactus(0.3), ledger=True), RequestSettings({"delta": 0}))
    assert "ledger" not in booster.statistics()
    sampler = FirstRunner(booster)
    sampler.step()
    before = booster.statistics()["ledger"]["requests"]
    booster.forget()
    assert booster.statistics()["ledger"] == {name: 0 for name in ledgers.NAMES} | {
        "requests": before
    }


def test_a_dummy_batch_is_charged_to_no_request(runner):
    booster = Booster(Settings(Cactus(0.3), ledger=True), RequestSettings({"delta": 0}))
    runner(booster, names=("a", "b"), own=({"cactus_max_kl": 1},) * 2).step()
    found = booster.statistics()["ledger"]
    assert found["judged_tokens"] == 5
    assert found["requests"] == {}


@pytest.mark.parametrize("rule", [Cactus(0.3), Clamp(0.1)], ids=repr)
def test_logits_are_those_of_the_emitted_distribution_afterwards_if_asked_for(runner, rule):
    booster = Booster(Settings(rule, logprobs="emitted"), RequestSettings({"delta": 0}))
    sampler = runner(booster, own=(None, {"cactus_rule": "speculative"}, None))
    sampler.step(temperature=(1.0, 1.0, 0.0))
    out = output_distribution(rule, draft=DRAFT, target=TARGET)
    found = sampler.logits.double().softmax(-1).numpy()
    assert np.allclose(found[:3], out[:3], atol=1e-6)  # float32
    assert np.allclose(found[3:], TARGET[3:], atol=1e-6)  # lossless, and greedy


def test_without_budget_the_log_probabilities_emitted_are_the_targets(runner):
    settings = Settings(Cactus(0.3), max_kl=0.0, logprobs="emitted")
    sampler = runner(Booster(settings, RequestSettings({"delta": 0})))
    sampler.step()
    assert np.allclose(sampler.logits.double().softmax(-1).numpy(), TARGET, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"delta": 1, "max_kl": -1}, ValueError, "max_kl must be a number of nats"),
        ({"delta": 1, "max_kl": "much"}, ValueError, "max_kl must be .*got 'much'"),
        ({"delta": 1, "ledger": 1}, TypeError, "ledger must be true or false, got 1"),
        ({"delta": 1, "logprobs": "both"}, ValueError, "'target' or 'emitted', got 'both'"),
    ],
)
def test_wrong_settings_of_ledgers_are_refused(settings, kind, message):
    with pytest.raises(kind, match=message):
        settings_of(settings)


def test_a_request_may_have_a_budget_of_its_own_but_not_a_ledger():
    engine = {"delta": 0.1, "max_kl": 3, "ledger": True}
    assert request_settings({"max_kl": "0.5"}, engine).max_kl == 0.5
    assert request_settings({"rule": "clamp", "delta": 0.2}, engine).max_kl == 3
    assert request_settings({"delta": 0.2}, {"delta": 0.1}).max_kl == math.inf
    with pytest.raises(ValueError, match="ledger is a setting of the engine"):
        request_settings({"ledger": True}, engine)


class Counter:
    def __init__(self):
        self.value = 0.0

    def labels(self, model_name):
        assert model_name == "tiny"
        return self

    def inc(self, amount):
        assert amount >= 0
        self.value += amount


class Engine:
    """What the plugin sees of vLLM's ``AsyncLLM``."""

    def __init__(self, cactus, extension, found):
        self.vllm_config = SimpleNamespace(
            additional_config=cactus,
            speculative_config=SimpleNamespace(rejection_sample_method="standard"),
            parallel_config=SimpleNamespace(worker_extension_cls=extension),
            model_config=SimpleNamespace(served_model_name="tiny"),
        )
        self.found, self.asked = found, 0

    async def do_log_stats(self):
        self.logged = True

    async def collective_rpc(self, method):
        assert method == "cactus_statistics"
        self.asked += 1
        return [None, self.found, self.found]  # a pipeline of two stages; two workers in the last


def test_statistics_become_counters_that_go_on_where_settings_are_changed():
    counters = {name: Counter() for name in metrics._SUMS}

    class Publishing(Engine):
        do_log_stats = Engine.do_log_stats

    metrics.publish_statistics(Publishing)
    booster = Booster(Settings(Cactus(0.3), ledger=True), RequestSettings({"delta": 0}))
    with (
        mock.patch.object(metrics, "_counters", return_value=counters),
        mock.patch.object(metrics, "_seen", {}),
    ):
        for name, expected in (("other.Extension", 0), ("a.CactusExtension", 1)):
            engine = Publishing({"cactus": {"delta": 0}}, name, booster.statistics())
            asyncio.run(engine.do_log_stats())
            assert engine.logged
            assert engine.asked == expected
        sampler = FirstRunner(booster)
        for _ in range(2):
            sampler.step()
            engine.found = booster.statistics()
            asyncio.run(engine.do_log_stats())
        booster.forget()
        sampler.step()
        engine.found = booster.statistics()
        asyncio.run(engine.do_log_stats())
    assert counters["charged_tokens"].value == 3 * 5
    rows = np.concatenate(judged())
    spent = 3 * costs(Cactus(0.3)).kl_bound[rows].sum()
    assert counters["kl_nats"].value == pytest.approx(spent, abs=1e-5)


def test_a_ledger_of_nothing_is_empty():
    assert Ledger().statistics() == {name: 0 for name in ledgers.NAMES} | {"requests": {}}


@pytest.mark.parametrize("rule", [Cactus(0.5), Clamp(0.2)], ids=repr)
@pytest.mark.parametrize("emitted", [False, True])
@pytest.mark.parametrize("read_again", [False, True])
def test_rows_are_copied_and_computed_again_only_where_they_are_read(rule, emitted, read_again):
    target, draft = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.2, 0.6]]).double()
    drafts = DraftedRows(
        target.log(),
        torch.tensor([2]),
        torch.tensor([True]),
        torch.tensor([0]),
        torch.ones(1),
        lambda rows: draft[rows],
        read_again=read_again,
    )
    before = drafts.logits.clone()
    with mock.patch.object(change, "replace_rows_", wraps=change.replace_rows_) as replace:
        change.change_rows_(drafts, {Settings(rule): drafts.drafted}, emitted=emitted)()
    is_row = isinstance(rule, Clamp)
    assert replace.call_count == int(is_row or (emitted and read_again))
    kept = [call.kwargs["keep"] for call in replace.call_args_list]
    assert kept == [is_row and read_again and not emitted] * len(kept)
    out = output_distribution(rule, draft=draft[0].numpy(), target=before.softmax(-1)[0].numpy())
    if read_again and emitted:
        assert drafts.logits.exp()[0].numpy() == pytest.approx(out, abs=1e-6)  # float32
    elif read_again or not is_row:
        assert torch.equal(drafts.logits, before)


def test_the_first_runner_says_whether_log_probabilities_are_read():
    given = {"draft_token_ids": torch.tensor([1]), "target_logits": torch.zeros(1, 3)}
    given |= {"cu_num_draft_tokens": torch.tensor([1]), "draft_probs": None}
    for asked, read_again in ((None, False), (0, True), (5, True)):
        metadata = SimpleNamespace(
            all_greedy=False, temperature=torch.ones(1), max_num_logprobs=asked
        )
        found = V1.drafts(given | {"sampling_metadata": metadata})
        assert found.read_again is read_again
