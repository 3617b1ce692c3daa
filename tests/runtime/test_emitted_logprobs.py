"""What decoded tokens say they were drawn from, against the theory's rows of the same path."""

import contextlib

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

from cactus_runtime import AdaptiveDraft, Decoder, PromptLookup, Request, SamplingParams
from cactus_theory import (
    Cactus,
    Clamp,
    Lenience,
    Mixture,
    SpeculativeSampling,
    TypicalAcceptance,
    effective_sample_size,
    emitted_log_probability,
    path_log_weight,
    token_probabilities,
)
from tests.runtime.prefix_model import alike
from tests.runtime.tape import programs, taped

PROMPT = [0, 1, 2]
RULES = [Cactus(0.2), Clamp(0.05), Lenience(0.6), Mixture(0.5), TypicalAcceptance(0.2, 0.5)]


def rows(model, result, sampling):
    """The model's distribution at each place of a text, after temperature and filters."""
    ids = [*PROMPT, *result.tokens]
    logits = torch.stack([model.after(ids[:i]) for i in range(len(PROMPT), len(ids))])
    return sampling.warp(logits).softmax(-1, dtype=torch.float64).numpy()


def decoded(pair, *, batch_size=2, count=3, **options):
    options = {"num_draft_tokens": 3, "max_new_tokens": 15, "eos_token_id": []} | options
    request = Request(PROMPT, seed=4, emitted_logprobs=True, **options)
    decoder = Decoder(pair[0], draft=options.get("draft", pair[1]))
    return decoder.batch(request.samples(count), batch_size=batch_size).finish()


def check(pair, results, rule, sampling):
    for result in results:
        found = token_probabilities(
            list(result.tokens),
            draft=rows(pair[1], result, sampling),
            target=rows(pair[0], result, sampling),
            rule=rule,
        )
        verified = [token.verdict is not None for token in result.trace]
        logs = emitted_log_probability(found, verified=verified)
        # The draft's distribution is kept in float32.
        np.testing.assert_allclose([t.emitted_logprob for t in result.trace], logs, atol=2e-6)
        with np.errstate(divide="ignore"):
            target = np.log(found.target)
        np.testing.assert_allclose([t.warped_logprob for t in result.trace], target, atol=1e-9)
        weight = path_log_weight(found, verified=verified)
        assert result.log_weight == pytest.approx(float(weight), abs=3e-5)


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("rule", RULES)
def test_every_token_carries_the_probability_it_was_drawn_with(rule, verification):
    if verification == "block" and not rule.ordered:
        return
    pair = alike()
    sampling = SamplingParams(temperature=0.8, top_k=5)
    check(pair, decoded(pair, rule=rule, sampling=sampling, verification=verification), rule,
          sampling)  # fmt: skip


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("run", [contextlib.nullcontext, taped])
def test_block_programs_say_the_same(run, verification):
    pair = alike(seed=1)
    options = {"rule": Cactus(0.3), "verification": verification}
    wanted = decoded(pair, **options)
    with programs(), run():
        found = decoded(pair, **options)
    assert all(result.seconds.fused > 0 for result in found)
    for one, other in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens
        assert one.blocks == other.blocks
        for name in ("emitted_logprob", "warped_logprob"):
            logs = [[getattr(token, name) for token in x.trace] for x in (one, other)]
            np.testing.assert_allclose(*logs, atol=1e-12)  # the order of sums


def test_texts_do_not_depend_on_what_is_recorded_of_them():
    pair = alike()
    for verification in ("token", "block"):
        options = {"rule": Cactus(0.3), "seed": 2, "max_new_tokens": 30}
        requests = [
            Request(PROMPT, **options, verification=verification, emitted_logprobs=asked)
            for asked in (False, True)
        ]
        one, other = Decoder(pair[0], draft=pair[1]).batch(requests).finish()
        assert one.tokens == other.tokens
        assert one.trace[0].emitted_logprob is None
        with pytest.raises(ValueError, match="emitted_logprobs=True"):
            _ = one.log_weight


@pytest.mark.parametrize("verification", ["token", "block"])
def test_budgets_leave_the_path_its_weight(verification):
    """Where the budget stopped the rule, a token was the target's own."""
    pair = alike(seed=2)
    results = decoded(pair, rule=Cactus(0.5), max_kl=0.8, verification=verification)
    assert any(result.log_weight != 0 for result in results)
    for result in results:
        stopped = [t for t in result.trace if t.verdict and t.verdict.total_variation == 0]
        assert stopped
        assert all(token.emitted_logprob == token.warped_logprob for token in stopped)
        assert result.kl_bound <= 0.8


class Ban(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores[:, int(input_ids[0, -1])] = -torch.inf
        return scores


def test_processors_come_before_both_log_probabilities():
    pair = alike()
    sampling = SamplingParams(processors=(Ban(),))
    for result in decoded(pair, rule=Cactus(0.2), sampling=sampling):
        ids = [*PROMPT, *result.tokens]
        for i, token in enumerate(result.trace):
            logits = pair[0].after(ids[: len(PROMPT) + i]).clone()
            logits[ids[len(PROMPT) + i - 1]] = -torch.inf
            wanted = float(logits.double().log_softmax(-1)[token.id])
            assert token.warped_logprob == pytest.approx(wanted, abs=1e-9)


def test_a_certain_draft_emits_a_candidate():
    """Prompt lookup: out is h, which grants g to the drafted token."""
    target, _ = alike(vocabulary=3)
    request = Request([0, 1, 0, 1], rule=Cactus(0.2), max_new_tokens=40, seed=1,
                      emitted_logprobs=True)  # fmt: skip
    result = Decoder(target, draft=PromptLookup()).stream(request).finish()
    kept = [token for token in result.trace if token.origin == "accepted"]
    assert kept
    for token in kept:
        assert np.exp(token.emitted_logprob) == pytest.approx(token.verdict.boosted, rel=1e-9)


def test_greedy_texts_are_certain():
    result = decoded(alike(), rule=Cactus(0.2), sampling=SamplingParams(temperature=0))[0]
    assert {token.emitted_logprob for token in result.trace} == {0.0}
    assert result.log_weight == 0


@pytest.mark.parametrize("rule", [Cactus(0.2), Lenience(0.6)])
@pytest.mark.parametrize("verification", ["token", "block"])
def test_weighted_texts_answer_for_the_target(rule, verification):
    """A z-test; without weights the same samples are off by many standard errors.

    Adaptive lengths, so that no formula but the path's own weight is behind it.
    """
    pair, n = alike(vocabulary=3, seed=3), 3000
    length = AdaptiveDraft(draft_cost=0.3, max_draft_tokens=3)
    results = decoded(
        pair, rule=rule, count=n, batch_size=500, num_draft_tokens=length, max_new_tokens=3,
        verification=verification,
    )  # fmt: skip
    plain = decoded(pair, rule=SpeculativeSampling(), count=1, max_new_tokens=3)[0]
    assert plain.log_weight == 0
    exact = target_mean(pair[0])
    values = np.array([result.tokens.count(0) for result in results], dtype=float)
    weights = np.exp([result.log_weight for result in results])
    for estimate, wanted in ((weights, 1.0), (weights * values, exact)):
        error = (estimate.mean() - wanted) / (estimate.std() / np.sqrt(n))
        assert abs(error) < 4  # one in 16,000, for fixed seeds
    assert 1 < effective_sample_size(np.log(weights)) < n


def target_mean(model):
    """Expected number of zeros among three tokens of the target."""

    def follow(ids, left):
        if not left:
            return 0.0
        law = model.after(ids).double().softmax(-1).tolist()
        return sum(p * ((x == 0) + follow([*ids, x], left - 1)) for x, p in enumerate(law))

    return follow(PROMPT, 3)


def test_what_a_request_asks_is_checked():
    with pytest.raises(ValueError, match="verification must be 'token' or 'block', got 'tree'"):
        Request("dog:", verification="tree")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ordered rule"):
        Request("dog:", rule=TypicalAcceptance(0.1, 0.3), verification="block")
    with pytest.raises(TypeError, match="emitted_logprobs must be a bool, got 1"):
        Request("dog:", emitted_logprobs=1)  # type: ignore[arg-type]


def test_sums_say_what_a_correction_needs():
    result = decoded(alike(), rule=Cactus(0.2), count=1)[0]
    sums = result.sums()
    difference = sums["warped_logprob"] - sums["emitted_logprob"]
    assert sums["log_weight"] == result.log_weight == pytest.approx(difference, abs=1e-9)
