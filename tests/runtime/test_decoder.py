"""Whole decodes: exact distributions, seeds, budgets, failures."""

import numpy as np
import pytest
import torch
from scipy import stats

from cactus_runtime import (
    Decoder,
    NonFiniteLogitsError,
    Proposal,
    SamplingParams,
    decode,
)
from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
    block_efficiency,
    output_distribution,
)
from tests.runtime.greedy import stream


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.5), CactusExact(0.5)], ids=str)
def test_the_first_two_tokens_follow_the_exact_law(random_pair, rule):
    """G-test on counts at false-alarm level 1e-6, with power > .999 against the wrong rule."""
    target, draft = random_pair
    prompt, samples = [1, 2, 3], 1000

    def law(model, ids):
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()

    def joint(rule):
        first = output_distribution(rule, draft=law(draft, prompt), target=law(target, prompt))
        then = [
            output_distribution(
                rule, draft=law(draft, [*prompt, x]), target=law(target, [*prompt, x])
            )
            for x in range(7)
        ]
        return first[:, None] * np.array(then)

    decoder = Decoder(target, draft=draft)
    counts = np.zeros((7, 7))
    for seed in range(samples):
        # Two drafts are asked of the first and, after a rejection, of the second token.
        decoding = stream(
            decoder, prompt, rule=rule, num_draft_tokens=2, max_new_tokens=4, seed=seed
        )
        counts[next(decoding).id, next(decoding).id] += 1

    expected = joint(rule).ravel()
    cells, laws = merge_small_cells(expected * samples, counts.ravel(), 10)
    statistic = 2 * np.sum(np.where(laws > 0, laws * np.log(np.maximum(laws, 1) / cells), 0))
    threshold = stats.chi2.isf(1e-6, len(cells) - 1)
    assert statistic < threshold

    wrong = joint(Cactus(0.5) if rule == SpeculativeSampling() else SpeculativeSampling()).ravel()
    mean, alternative = merge_small_cells(expected * samples, wrong * samples, 10)
    noncentrality = 2 * np.sum(alternative * np.log(alternative / mean))
    assert stats.ncx2.sf(threshold, len(mean) - 1, noncentrality) > 0.999


def merge_small_cells(expected, observed, least):
    small = expected < least
    merged = [np.append(x[~small], x[small].sum()) for x in (expected, observed)]
    return [x[merged[0] > 0] for x in merged]


def test_the_counted_acceptance_matches_the_expected_one(tiny):
    decoder = Decoder(tiny)
    results = [
        stream(
            decoder, "river:", rule=Cactus(0.1), max_new_tokens=60, seed=i, eos_token_id=()
        ).finish()
        for i in range(10)
    ]
    counted = [x.counted_acceptance_rate for x in results]
    expected = [x.acceptance_rate for x in results]
    # about 500 verified positions: standard error of their mean difference is below .022
    assert abs(np.mean(counted) - np.mean(expected)) < 0.1
    assert 0.4 < np.mean(expected) < 0.95


@pytest.mark.parametrize("rule", [SpeculativeSampling(), Cactus(0.3), CactusExact(0.3)], ids=str)
def test_a_seed_repeats_its_result(random_pair, rule):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    first, second, other = (
        stream(decoder, [1, 2], rule=rule, max_new_tokens=30, seed=seed).finish()
        for seed in (5, 5, 6)
    )
    assert first.tokens == second.tokens
    assert first.tokens != other.tokens


def test_an_unseeded_result_tells_the_seed_that_repeats_it(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    first = stream(decoder, [1, 2], max_new_tokens=30).finish()
    second = stream(decoder, [1, 2], max_new_tokens=30).finish()
    again = stream(decoder, [1, 2], max_new_tokens=30, seed=first.seed).finish()
    assert first.tokens == again.tokens
    assert first.tokens != second.tokens


@pytest.mark.parametrize("delta_zero", [Cactus(0.0), CactusExact(0.0)], ids=str)
def test_a_budget_of_zero_decodes_the_same_tokens_as_plain_speculative_sampling(
    random_pair, delta_zero
):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    for seed in range(5):
        zero = stream(decoder, [1, 2], rule=delta_zero, max_new_tokens=40, seed=seed).finish()
        plain = stream(decoder, [1, 2], max_new_tokens=40, seed=seed).finish()
        assert zero.tokens == plain.tokens
        assert zero.total_variation == plain.total_variation == 0


def test_a_failure_stays_a_failure_and_leaves_the_decoder_usable(random_pair):
    class Failing:
        def propose(self, ids, count, uniforms):
            if ids.shape[1] > 3:
                raise RuntimeError("out of ideas")
            return Proposal(ids[0, :0])

    decoding = stream(Decoder(random_pair[0], draft=Failing()), [1, 2, 3], max_new_tokens=9)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of ideas"):
            decoding.finish()
    assert len(decoding.result.tokens) == 1
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    with pytest.raises(ZeroDivisionError):
        stream(decoder, [1, 2, 3], max_new_tokens=9).finish(lambda token: 1 / 0)
    assert len(stream(decoder, [1, 2, 3], max_new_tokens=9).finish().tokens) == 9


def test_tokens_are_streamed_as_they_come_and_add_up(tiny):
    seen = []
    result = decode(tiny, "river:", max_new_tokens=20, seed=1, on_token=seen.append)
    assert [token.id for token in seen] == list(result.tokens)
    assert [token.origin for token in seen] == list(result.origins)
    assert "".join(token.text for token in seen) == result.text


def test_an_interruption_returns_what_was_decoded(tiny):
    def interrupt(token):
        if len(seen.append(token) or seen) == 5:
            raise KeyboardInterrupt

    seen = []
    decoder = Decoder(tiny)
    options = {"max_new_tokens": 40, "seed": 1, "eos_token_id": ()}
    partial = stream(decoder, "river:", **options).finish(interrupt)
    whole = stream(decoder, "river:", **options).finish()
    assert partial.finish_reason == "interrupted"
    assert 5 <= len(partial.tokens) < 40
    assert partial.tokens == whole.tokens[: len(partial.tokens)]


def test_a_narrower_or_wider_padded_vocabulary_works(random_model):
    target, narrow, wide = (
        random_model(0, layers=2),
        random_model(1, vocabulary=6),
        random_model(2, vocabulary=9),
    )
    for draft in (narrow, wide):
        options = {"rule": Cactus(0.2), "max_new_tokens": 40, "seed": 1}
        result = stream(Decoder(target, draft=draft), [1, 2], **options).finish()
        assert len(result.tokens) == 40
        assert 0 <= min(result.tokens) <= max(result.tokens) < 7
        assert result.accepted_tokens > 0


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_non_finite_logits_name_the_model_and_the_position(random_model, role, poison):
    models = {"target": random_model(0, layers=2), "draft": random_model(1)}
    models[role].model.norm.weight.fill_(poison)
    decoding = stream(Decoder(models["target"], draft=models["draft"]), [1, 2, 3], max_new_tokens=4)
    with pytest.raises(
        NonFiniteLogitsError, match=f"the {role} model .* after token 2 of request 0"
    ):
        decoding.finish()


@pytest.mark.parametrize("budget", [0.0, 0.3, 2.0, 1e6])
@pytest.mark.parametrize("name", ["max_kl", "max_total_variation"])
@pytest.mark.parametrize("rule", [Cactus(0.5), CactusExact(0.5)], ids=str)
def test_a_budget_is_never_passed_and_is_used(random_pair, rule, name, budget):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    spent = {"max_kl": "kl_bound", "max_total_variation": "total_variation"}[name]
    for seed in range(2):
        options = {"rule": rule, "max_new_tokens": 40, "seed": seed, "num_draft_tokens": 3}
        result = stream(decoder, [1, 2], **options, **{name: budget}).finish()
        assert getattr(result, spent) <= budget
        free = stream(decoder, [1, 2], **options).finish()
        if getattr(free, spent) <= budget:
            assert result.tokens == free.tokens
        plain = stream(decoder, [1, 2], **{**options, "rule": SpeculativeSampling()}).finish()
        if budget == 0:
            assert result.tokens == plain.tokens
        elif 2.0 <= budget < getattr(free, spent):  # a position may cost more than .3 by itself
            assert getattr(result, spent) > budget / 10


def test_the_account_of_a_lossless_position_is_that_of_speculative_sampling(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    options = {"max_new_tokens": 40, "seed": 1}
    stopped = stream(decoder, [1, 2], rule=Cactus(0.5), max_kl=0.0, **options).finish()
    plain = stream(decoder, [1, 2], rule=SpeculativeSampling(), **options).finish()
    assert stopped.blocks == plain.blocks
    for a, b in zip(stopped.verdicts, plain.verdicts, strict=True):
        assert a.acceptance_rate == b.acceptance_rate
        assert a.kl_bound == b.kl_bound == 0


def test_acceptance_rates_are_probabilities_for_the_planning_functions(tiny):
    result = decode(tiny, "dog:", rule=Cactus(1.0), max_new_tokens=60, seed=0, eos_token_id=())
    assert 1 <= block_efficiency([v.acceptance_rate for v in result.verdicts[:4]]) <= 5
    assert all(0 <= rate <= 1 for rate in result.acceptance_by_position)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_no_token_outside_the_filters_is_ever_emitted(random_pair, top_k):
    target, draft = random_pair
    sampling = SamplingParams(temperature=1.5, top_k=top_k)
    result = stream(
        Decoder(target, draft=draft),
        [1, 2],
        rule=CactusExact(20.0),
        sampling=sampling,
        max_new_tokens=40,
        seed=2,
    )
    ids = torch.tensor([[1, 2, *result.finish().tokens]])
    logits = target(ids).logits[0]
    for position, token in list(enumerate(ids[0].tolist()))[2:]:
        best = logits[position - 1].topk(top_k + 1).values
        assert logits[position - 1, token] >= best[top_k - 1] - 1e-4
