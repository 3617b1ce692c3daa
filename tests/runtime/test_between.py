"""Decoding with one rule between markers and another one elsewhere."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from cactus_runtime import Decoder, PromptLookup, Request, score
from cactus_runtime.cli import main
from cactus_theory import BetweenMarkers, Cactus, Clamp, SpeculativeSampling, TopKAcceptance
from tests.runtime.prefix_model import alike
from tests.runtime.tape import programs

PROMPT = [0, 1, 2]
THINKING = BetweenMarkers(Cactus(0.4), start=1, end=[2])


def probabilities(model, ids):
    return model.after(list(ids)).double().softmax(-1).numpy()


def results(pair, rule, *, count=6, batch_size=3, draft=None, **options):
    options = {"num_draft_tokens": 3, "max_new_tokens": 25, "eos_token_id": []} | options
    decoder = Decoder(pair[0], draft=draft or pair[1])
    requests = Request(PROMPT, rule=rule, seed=9, **options).samples(count)
    return decoder.batch(requests, batch_size=batch_size).finish()


@pytest.mark.parametrize(
    "rule",
    [
        THINKING,
        BetweenMarkers(Cactus(0.4), 1, 1),
        BetweenMarkers(Clamp(0.1), [2, 1], 0, outside=Cactus(1.0)),
        BetweenMarkers(SpeculativeSampling(), 1, 2, outside=Cactus(0.4)),
    ],
    ids=str,
)
def test_every_position_follows_the_rule_of_the_tokens_before_it(rule):
    pair = alike(vocabulary=3, seed=5)
    seen = set()
    for result in results(pair, rule):
        ids = [*PROMPT]
        for token in result.trace:
            if token.verdict is not None:
                own = rule.rule_at(ids)
                seen.add(own)
                p, q = probabilities(pair[1], ids), probabilities(pair[0], ids)
                kept = own.accepted_mass(p, q)[token.verdict.id]
                passed = min(token.verdict.boosted, token.verdict.draft_prob)
                assert passed == pytest.approx(kept, abs=1e-6)  # drafts are in float32
                if own == SpeculativeSampling():
                    assert token.verdict.charges == (0, 0)
            ids.append(token.id)
        assert result.rule == rule
    assert seen == set(rule.rules)


def law_of_texts(pair, rule, length, k):
    """The probability of every text, by recursion over blocks, drafts and rejections."""
    found = defaultdict(float)

    def block(ids, chance):
        left = length - (len(ids) - len(PROMPT))
        if left == 0:
            found[ids[len(PROMPT) :]] += chance
            return
        extend(ids, (), min(k, left - 1), chance)

    def extend(ids, drafted, most, chance):
        text = ids + drafted
        q = probabilities(pair[0], text)
        changed = rule.rule_at(text) != rule.rule_at(ids)
        if len(drafted) == most or (drafted and changed):
            for token, share in enumerate(q):
                block((*text, token), chance * share)
            return
        own, p = rule.rule_at(text), probabilities(pair[1], text)
        kept = own.accepted_mass(p, q)
        for token in range(len(p)):
            extend(ids, (*drafted, token), most, chance * kept[token])
            rejected = p[token] - kept[token]
            if rejected > 1e-15:
                weights = own.recovery_weights(token, p, q)
                for recovered, share in enumerate(weights / weights.sum()):
                    block((*text, recovered), chance * rejected * share)

    block(tuple(PROMPT), 1.0)
    return found


def test_texts_come_as_often_as_blocks_that_end_at_a_marker_say():
    pair, n = alike(vocabulary=3, seed=3), 4000
    wanted = law_of_texts(pair, THINKING, 4, 2)
    assert sum(wanted.values()) == pytest.approx(1, abs=1e-12)
    plain = law_of_texts(pair, BetweenMarkers(SpeculativeSampling(), 1, 2), 4, 2)
    assert max(abs(wanted[text] - plain[text]) for text in plain) > 0.01  # else nothing is tested
    found = results(pair, THINKING, count=n, batch_size=500, num_draft_tokens=2, max_new_tokens=4)
    counts = Counter(result.tokens for result in found)
    statistic = sum((counts[text] - n * p) ** 2 / (n * p) for text, p in wanted.items())
    assert statistic < 80 + 4.5 * np.sqrt(160)  # chi-square of 80 degrees: one in 10^5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verification": "block"},
        {"max_kl": 0.2},
        {"emitted_logprobs": True},
        {"draft": PromptLookup()},
    ],
)
def test_a_row_is_the_same_alone_in_any_batch_and_where_programs_run(options):
    pair = alike(vocabulary=3, seed=5)
    alone = results(pair, THINKING, batch_size=1, **options)
    together = results(pair, THINKING, batch_size=4, **options)
    with programs():
        captured = results(pair, THINKING, batch_size=4, **options)
    for row in zip(alone, together, captured, strict=True):
        assert len({result.tokens for result in row}) == 1
    if "max_kl" in options:
        assert max(result.kl_bound for result in alone) <= 0.2


def test_one_rule_everywhere_is_that_rule_but_for_blocks_that_markers_end():
    pair = alike(vocabulary=3, seed=5)
    never = BetweenMarkers(Cactus(0.4), [0, 0, 0, 0, 1, 1, 1, 1], 2, outside=Clamp(0.1))
    same, wanted = results(pair, never), results(pair, Clamp(0.1))
    assert [result.tokens for result in same] == [result.tokens for result in wanted]


def test_what_cannot_be_done_is_refused(tiny):
    with pytest.raises(ValueError, match="needs a rule that emits"):
        Request("dog:", rule=BetweenMarkers(Cactus(0.1), 1, 2, outside=TopKAcceptance(2)),
                verification="block")  # fmt: skip
    with pytest.raises(ValueError, match=r"^end ids must be in \[0, 3\), got 3$"):
        results(alike(vocabulary=3), BetweenMarkers(Cactus(0.1), 1, 3))
    with pytest.raises(ValueError, match=r"^tokenizer must be given for a marker of text"):
        results(alike(vocabulary=3), BetweenMarkers(Cactus(0.1), "a", 2))
    with pytest.raises(TypeError, match=r"^rule must be one of cactus_theory's rules, got Between"):
        score("tiny", "a", prompt="dog:", rule=THINKING)


def test_markers_may_be_text(tiny):
    rule = BetweenMarkers(Cactus(0.4), ":", ".")
    request = Request("dog:", rule=rule, max_new_tokens=12, seed=1)
    result = Decoder("tiny").stream(request).finish()
    assert result.rule == rule.with_ids(lambda text: tiny.tokenizer.encode(text))
    assert result.kl_bound > 0  # the prompt holds the first marker


def test_the_command_line_takes_markers(capsys):
    arguments = ["decode", "dog:", "--pair", "tiny", "--seed", "1", "--tokens", "12"]
    assert main([*arguments, "--between", ":", ".", "--delta", "0.4"]) == 0
    assert "BetweenMarkers(rule=Cactus(delta=0.4)" in capsys.readouterr().err
    assert main([*arguments, "--between", "", "."]) == 2
    assert "start must not be empty" in capsys.readouterr().err
