"""Requests with ledger=False: the same tokens, and nothing that was not accounted for."""

import contextlib
import json

import pytest
import torch

from cactus_runtime import Decoder, PromptLookup, Request, html_page, judge
from cactus_runtime.cli import main
from cactus_runtime.cli.decode import record
from cactus_runtime.result.terminal import figures
from cactus_theory import Cactus, CactusExact, Clamp, Mixture, SpeculativeSampling
from tests.runtime.kernel_blocks import random_block
from tests.runtime.prefix_model import alike
from tests.runtime.tape import programs, taped

RULES = [SpeculativeSampling(), Cactus(0.3), CactusExact(0.3), Clamp(0.05), Mixture(0.5)]
CHARGED = ("acceptance_rate", "total_variation", "kl_bound")


def decoded(pair, *, ledger, count=3, **options):
    options = {"draft": pair[1], "rule": Cactus(0.3), "num_draft_tokens": 3} | options
    decoder = Decoder(pair[0], draft=options.pop("draft"))
    request = Request([0, 1, 2], seed=4, max_new_tokens=15, eos_token_id=[], **options)
    samples = request.samples(count)
    mixed = [
        Request(**{**vars(sample), "ledger": ledger if i else True})
        for i, sample in enumerate(samples)
    ]
    return decoder.batch(mixed, batch_size=2).finish()


def without_charges(result):
    tokens = [(token.id, token.origin, token.logprob) for token in result.trace]
    verdicts = [(verdict.draft_prob, verdict.boosted) for verdict in result.verdicts]
    return tokens, verdicts, result.blocks


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("vocabulary", [7, 5000])
def test_a_judgement_is_the_same_apart_from_its_charges(rule, verification, vocabulary):
    if verification == "block" and not rule.ordered:
        return
    block = random_block(3, batch=4, drafts=3, vocabulary=vocabulary)
    options = {"verification": verification, "emitted_logprobs": True}
    wanted = vars(judge(rule, **block, **options))
    for name, found in vars(judge(rule, **block, **options, ledger=False)).items():
        if name in CHARGED:
            assert found is None
            assert wanted[name] is not None
        else:
            torch.testing.assert_close(found, wanted[name], rtol=0, atol=0)


@pytest.mark.parametrize("draft", ["model", "lookup"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_tokens_are_the_same_beside_rows_with_a_ledger(rule, draft):
    pair = alike(seed=2)
    options = {"rule": rule} | ({"draft": PromptLookup()} if draft == "lookup" else {})
    wanted = decoded(pair, ledger=True, **options)
    found = decoded(pair, ledger=False, **options)
    assert [*map(without_charges, found)] == [*map(without_charges, wanted)]
    assert found[0].total_variation == wanted[0].total_variation
    assert [result.accounted for result in found] == [True, False, False]


@pytest.mark.parametrize("emitted_logprobs", [False, True])
@pytest.mark.parametrize("run", [contextlib.nullcontext, taped])
def test_block_programs_leave_it_out_too(run, emitted_logprobs):
    pair = alike(seed=1)
    options = {"emitted_logprobs": emitted_logprobs}
    wanted = decoded(pair, ledger=True, **options)
    with programs(), run():
        found = decoded(pair, ledger=False, **options)
    for result, other in zip(found, wanted, strict=True):
        assert result.tokens == other.tokens
        assert result.blocks == other.blocks
    assert [result.accounted for result in found] == [True, False, False]


def test_the_result_says_that_nothing_was_accounted_for():
    result = decoded(alike(), ledger=False)[1]
    for name in CHARGED:
        with pytest.raises(ValueError, match=f"^{name} needs a request with ledger=True$"):
            getattr(result, name)
        assert result.sums()[name] is None
    assert result.counted_acceptance_rate >= 0
    assert "ledger: none, nothing was accounted for" in str(result)
    assert figures(result)["total variation in all"] == "not accounted for"
    assert figures(result)["tokens"] == "15"
    page = html_page(result)
    assert "charged: not accounted for" in page
    assert "charged KL" not in page
    assert "<polyline" not in page
    shown = json.loads(json.dumps(record(result)))
    assert shown["acceptance_rate"] is shown["total_variation"] is shown["kl_bound_nats"] is None


@pytest.mark.parametrize("name", ["max_kl", "max_total_variation"])
def test_a_budget_needs_the_ledger(name):
    with pytest.raises(ValueError, match=rf"^{name}=0\.5 is kept by the ledger: it needs"):
        Request("dog:", ledger=False, **{name: 0.5})
    with pytest.raises(TypeError, match=r"^ledger must be a bool, got 0$"):
        Request("dog:", ledger=0)


def test_limits_need_the_ledger():
    block = random_block(3, batch=2, drafts=3, vocabulary=7)
    with pytest.raises(ValueError, match=r"^limits read the charges, so they need ledger=True$"):
        judge(Cactus(0.1), **block | {"limits": lambda charges: None}, ledger=False)


def test_the_command_line_leaves_it_out(capsys):
    arguments = ["decode", "dog:", "--pair", "tiny", "--seed", "1", "--tokens", "8", "--json"]
    shown = []
    for options in ([], ["--no-ledger"]):
        assert main([*arguments, *options]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0]["text"] == shown[1]["text"]
    assert shown[0]["kl_bound_nats"] is not None
    assert shown[1]["kl_bound_nats"] is None
    assert main([*arguments, "--no-ledger", "--max-kl", "1"]) == 2
    assert "max_kl=1.0 is kept by the ledger" in capsys.readouterr().err
