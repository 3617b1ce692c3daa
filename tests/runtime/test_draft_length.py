"""Adaptive numbers of drafted tokens: they pay, they are repeatable, and they keep the law."""

import numpy as np
import pytest
import torch
from scipy import stats

from cactus_runtime import AdaptiveDraft, Decoder, PromptLookup, Request, SamplingParams
from cactus_runtime.bench.pass_costs import measure_costs
from cactus_runtime.draft_length import AdaptiveLength, FixedLength
from cactus_runtime.result.trace import Verdict
from cactus_theory import Cactus, output_distribution
from cactus_theory.planning import best_num_draft_tokens, speedup

CHEAP, DEAR = AdaptiveDraft(draft_cost=0.02, max_draft_tokens=8), AdaptiveDraft(draft_cost=0.9)


def verdict(draft_prob, chance):
    return Verdict(0, draft_prob, 0.5, draft_prob * chance, 0.5, 0.0, 0.0)


def taught(policy, chances, blocks=50):
    """A length that has seen tokens of draft probability .05, .95 pass with these chances."""
    length = AdaptiveLength(policy)
    for _ in range(blocks):
        length.learn([verdict(0.05, chances[0]), verdict(0.95, chances[1])])
    return length


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("cost", [0.01, 0.1, 0.5])
def test_where_all_tokens_are_alike_the_planned_number_is_the_theory_s(rate, cost):
    policy = AdaptiveDraft(draft_cost=cost, max_draft_tokens=12)
    length = taught(policy, (rate, rate))
    mean = (100 * rate + 0.8) / 101  # the first guess has the weight of one observation
    best = int(best_num_draft_tokens(mean, draft_cost=cost, max_draft_tokens=12))
    assert length.planned() == best
    gain = speedup(mean, best, draft_cost=cost)
    assert length._speeds().max() == pytest.approx(float(gain))


def test_it_stops_after_a_token_that_will_hardly_pass_and_not_after_a_sure_one():
    length = taught(AdaptiveDraft(draft_cost=0.1), (0.05, 0.99))
    assert length.should_draft_more([0.95, 0.95])
    assert not length.should_draft_more([0.95, 0.05])


def test_it_gives_up_where_drafting_does_not_pay_and_tries_again_now_and_then():
    length = taught(DEAR, (0.2, 0.2))
    tries = []
    for _ in range(64):
        tries.append(length.should_draft_more([]))
        length.learn([])
    assert sum(tries) == 4


def test_a_fixed_number_is_what_it_says():
    length = FixedLength(2).start()
    assert [length.should_draft_more([0.5] * count) for count in range(3)] == [True, True, False]


@pytest.mark.parametrize("policy", [CHEAP, DEAR], ids=["cheap", "dear"])
def test_a_seed_repeats_its_result_alone_and_in_a_batch(random_pair, policy):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    request = Request([1, 2], rule=Cactus(0.2), num_draft_tokens=policy, max_new_tokens=60, seed=4)
    alone = decoder.stream(request).finish()
    others = [Request([3], num_draft_tokens=3, max_new_tokens=20, seed=i) for i in range(3)]
    together = decoder.batch([*others, request], batch_size=3).finish()[-1]
    assert alone.tokens == together.tokens == decoder.stream(request).finish().tokens
    assert [b.drafted for b in alone.blocks] == [b.drafted for b in together.blocks]


def test_cheap_drafts_are_long_and_dear_ones_short(tiny):
    def mean(policy):
        request = Request(
            "dog:", rule=Cactus(0.1), num_draft_tokens=policy, max_new_tokens=80, seed=1,
            eos_token_id=(),
        )  # fmt: skip
        result = Decoder(tiny).stream(request).finish()
        assert len(result.tokens) == 80
        return np.mean([block.drafted for block in result.blocks[:-1]])

    assert mean(CHEAP) > 3 > 1 > mean(DEAR)


def test_greedy_text_does_not_depend_on_the_number_of_drafts(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    texts = {
        decoder.stream(
            Request(
                [1, 2],
                num_draft_tokens=length,
                sampling=SamplingParams(temperature=0),
                max_new_tokens=40,
            )
        )
        .finish()
        .tokens
        for length in (0, 3, CHEAP, DEAR, AdaptiveDraft(draft_cost=0.3))
    }
    assert len(texts) == 1


def test_a_drafter_of_its_own_is_asked_for_the_planned_number(tiny):
    request = Request("a a a a a a a a", num_draft_tokens=CHEAP, max_new_tokens=30, seed=0)
    result = Decoder(tiny.target, draft=PromptLookup(), tokenizer=tiny.tokenizer).stream(request)
    assert 1 <= max(block.drafted for block in result.finish().blocks) <= 8


class Taught(AdaptiveDraft):
    """Drafts a second token only after a first one that the draft thought probable."""

    def start(self):
        return taught(self, (0.05, 0.99))


def test_an_adaptive_number_leaves_every_position_the_law_it_says(random_pair):
    """Joint law of two tokens, of which the second is drafted or not by what the first draft was.

    Chi-square at false-alarm level 1e-6; the law without that distinction must be refused.
    """
    target, draft = random_pair
    rule, samples, prompt = Cactus(0.5), 3000, [1, 2, 3]
    policy = Taught(draft_cost=0.1, max_draft_tokens=2)

    def law(model, ids):
        return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()

    def emitted(ids):
        return output_distribution(rule, draft=law(draft, ids), target=law(target, ids))

    first_draft = law(draft, prompt)
    kept = rule.accepted_mass(first_draft, law(target, prompt))
    should_draft_more = [policy.start().should_draft_more([prob]) for prob in first_draft]
    assert len(set(should_draft_more)) == 2
    then = np.array([emitted([*prompt, x]) for x in range(7)])
    bonus = np.array([law(target, [*prompt, x]) for x in range(7)])
    after_draft = np.where(np.array(should_draft_more)[:, None], then, bonus)
    recovered = (emitted(prompt) - kept)[:, None]
    expected = samples * (kept[:, None] * after_draft + recovered * then)
    naive = samples * emitted(prompt)[:, None] * then

    request = Request(prompt, rule=rule, num_draft_tokens=policy, max_new_tokens=3, seed=0)
    batch = Decoder(target, draft=draft).batch(request.samples(samples), batch_size=100)
    counts = np.zeros((7, 7))
    for result in batch.finish():
        counts[result.tokens[:2]] += 1

    def statistic(law):
        keep = law >= 5
        return ((counts - law)[keep] ** 2 / law[keep]).sum(), stats.chi2.isf(1e-6, keep.sum())

    found, limit = statistic(expected)
    assert found < limit
    found, limit = statistic(naive)
    assert found > limit


def test_measured_costs_are_relative_to_one_plain_pass(tiny):
    costs = measure_costs(tiny.target, tiny.draft, max_draft_tokens=3, repetitions=2)
    assert costs.verify_cost[0] == 1
    assert costs.draft_cost > 0
    assert costs.seconds > 0
    policy = AdaptiveDraft(costs.draft_cost, costs.verify_cost, max_draft_tokens=3)
    assert policy.costs[0] == 1


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"draft_cost": -1.0}, ValueError, "draft_cost must be finite and >= 0, got -1.0"),
        ({"draft_cost": "x"}, TypeError, "draft_cost must be a number"),
        ({"max_draft_tokens": 0}, ValueError, r"max_draft_tokens must be an integer >= 1, got 0"),
        ({"max_draft_tokens": 2.0}, TypeError, "max_draft_tokens must be an integer >= 1"),
        ({"verify_cost": (1.0, 1.0)}, ValueError, "verify_cost must have entries up to"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(wrong, error, words):
    with pytest.raises(error, match=words):
        AdaptiveDraft(**{"draft_cost": 0.1, **wrong})
