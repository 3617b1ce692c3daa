"""Random configurations on random models, and what must hold of every one of them.

CACTUS_FUZZ_CASES says how many requests are decoded, each alone and in a batch; default 2000.
"""

import functools
import os
import random

import pytest
import torch
from transformers import LogitsProcessor

from cactus_runtime import Decoder, PromptLookup, Proposal, Request, SamplingParams
from cactus_runtime.streams import draw_tokens
from cactus_theory import (
    Cactus,
    CactusExact,
    CactusSafe,
    Clamp,
    JensenShannon,
    Lenience,
    Mixture,
    OneLevelRecovery,
    SpeculativeSampling,
    TopKAcceptance,
    TypicalAcceptance,
)
from tests.tiny_models import tiny_llama

CASES = int(os.environ.get("CACTUS_FUZZ_CASES", "2000"))
CHUNKS = 8
LETTERS = "abcdefghijkl"
# In float64, batch shapes move a law by about 1e-15: a uniform in that gap is not to be feared.
CLOSE = 1e-9


@functools.cache
def model(seed, vocabulary):
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 8) | {"num_attention_heads": 1}
    return tiny_llama(
        seed, vocabulary=vocabulary, initializer_range=0.7, dtype=torch.float64, **sizes
    )


class Letters:
    eos_token_id = None

    def decode(self, ids, **_):
        return "".join(LETTERS[token] for token in ids)


class Foreign:
    """Draws from a law of its own, at most as many tokens as it feels like."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def propose(self, ids, count, uniforms):
        count = min(count, int(ids[0, -1]) % 4)
        law = torch.arange(1.0, self.vocabulary + 1).roll(int(ids[0, -1]))
        laws = (law / law.sum()).expand(count, -1)
        return Proposal(draw_tokens(laws, uniforms[:count]), laws)


class Tilt(LogitsProcessor):
    """Prefers the token that follows the last one."""

    def __call__(self, input_ids, scores):
        scores[:, (int(input_ids[0, -1]) + 1) % scores.shape[1]] += 1
        return scores


class Case:
    """Some requests for one decoder, all from one seed."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.vocabulary = rng.randint(5, 12)
        self.target = model(rng.randrange(6), self.vocabulary)
        drafts = [
            model(6 + rng.randrange(6), self.vocabulary),
            model(6, max(5, self.vocabulary - 1)),
            model(7, self.vocabulary + 2),
            self.target,
            PromptLookup(rng.randint(1, 3)),
            Foreign(self.vocabulary),
            None,
        ]
        draft = rng.choices(drafts, [4, 1, 1, 1, 1, 1, 1])[0]
        self.decoder = Decoder(self.target, draft=draft, tokenizer=Letters())
        self.requests = [self.request() for _ in range(rng.randint(1, 5))]
        self.batch_size = rng.randint(1, 5)

    def token(self):
        return self.rng.randrange(self.vocabulary)

    def rule(self):
        budget = self.rng.choice([0.0, 1e-3, 0.1, 1.0, 20.0])
        rules = [
            SpeculativeSampling(),
            Cactus(budget),
            CactusExact(budget),
            CactusSafe(budget),
            CactusExact(budget, divergence=JensenShannon()),
            Clamp(self.rng.choice([0.01, 0.3])),
            Lenience(self.rng.choice([0.2, 1.0])),
            Mixture(self.rng.choice([0.0, 0.3, 1.0])),
            TopKAcceptance(self.rng.randint(1, 3)),
            TypicalAcceptance(),
            OneLevelRecovery(Cactus(budget)),
        ]
        return self.rng.choices(rules, [4, 4, 4, 2, 0.1, *[0.4] * 6])[0]

    def sampling(self):
        rng = self.rng
        return SamplingParams(
            temperature=rng.choice([0, 0.3, 1.0, 1.0, 2.0]),
            top_k=rng.choice([None, None, 1, 3, 50]),
            top_p=rng.choice([1.0, 1.0, 0.5, 0.9]),
            min_p=rng.choice([0.0, 0.0, 0.1, 0.9]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.0, 0.7, 1.5]),
            presence_penalty=rng.choice([0.0, 0.0, 0.0, 0.9]),
            frequency_penalty=rng.choice([0.0, 0.0, 0.0, -0.4]),
            logit_bias=rng.choice([{}, {}, {}, {self.token(): -torch.inf, self.token(): 1.0}]),
            bad_words=rng.choice([[], [], [], [[self.token()], [self.token(), self.token()]]]),
            min_new_tokens=rng.choice([0, 0, 2, 5]),
            processors=rng.choice([[], [], [], [Tilt()]]),
        )

    def request(self):
        rng = self.rng
        return Request(
            [self.token() for _ in range(rng.choice([1, 2, 5, 15]))],
            rule=self.rule(),
            num_draft_tokens=rng.randint(0, 5),
            sampling=self.sampling(),
            max_new_tokens=rng.randint(1, 7),
            seed=rng.randrange(2**64),
            number=rng.randrange(3),
            stop=rng.choice([[], [], ["a"], ["bc", "cab"]]),
            eos_token_id=rng.choice([[], [], [self.token()], [0, 1, 2]]),
            max_total_variation=rng.choice([torch.inf, torch.inf, 0.0, 0.2, 1.5]),
            max_kl=rng.choice([torch.inf, torch.inf, 0.0, 0.05, 1.0]),
        )


def check_end(request, result):
    """Lengths, and what ends a text: it does so where it first comes, and nothing comes after."""
    count = len(result.tokens)
    assert 1 <= count <= request.max_new_tokens
    text = Letters().decode(result.tokens)
    ends = [i for i, token in enumerate(result.tokens, 1) if token in request.eos_token_id]
    stops = [i for i in range(count + 1) if any(text[:i].endswith(s) for s in request.stop)]
    assert all(i > request.sampling.min_new_tokens for i in ends)
    assert ends in ([], [count])
    assert stops in ([], [count])
    full = count == request.max_new_tokens
    assert result.finish_reason == ("stop" if stops else "eos" if ends else "length")
    assert stops or ends or full
    cut = min((text.find(s) for s in request.stop if s in text), default=None)
    assert result.text == text[:cut]


def check_blocks(request, result):
    """Blocks tell the origins of their tokens, and never draft more than may be emitted."""
    at, count = 0, len(result.tokens)
    for block in result.blocks:
        assert 0 <= block.accepted <= block.emitted <= block.accepted + 1
        assert block.accepted <= block.drafted <= request.num_draft_tokens
        assert at + block.drafted + 1 <= request.max_new_tokens
        origins = result.origins[at : at + block.emitted]
        full = block.accepted == block.drafted
        last = "plain" if not block.drafted else "bonus" if full else "recovered"
        assert origins in (
            ("accepted",) * block.accepted,
            ("accepted",) * block.accepted + (last,),
        )
        at += block.emitted
        assert block.emitted > block.accepted or at == count
    assert at == count
    for token in result.trace:
        judged = token.origin in ("accepted", "recovered")
        assert (token.verdict is not None) == judged
        if token.origin == "accepted":
            assert token.verdict.id == token.id


def check_account(request, result):
    """Sums of the verdicts, within the budgets, and rates that are probabilities."""
    verdicts = [token.verdict for token in result.trace if token.verdict]
    assert result.total_variation == sum(v.total_variation for v in verdicts)
    assert result.kl_bound == sum(v.kl_bound for v in verdicts)
    assert result.total_variation <= request.max_total_variation
    assert result.kl_bound <= request.max_kl
    for verdict in verdicts:
        assert 0 <= verdict.acceptance_rate <= 1 + CLOSE
        assert 0 < verdict.draft_prob <= 1 + CLOSE
        assert 0 <= verdict.target_prob <= 1
        assert 0 <= verdict.total_variation <= 1 + CLOSE
        assert verdict.kl_bound >= 0
        if request.rule == SpeculativeSampling():
            assert verdict.total_variation == verdict.kl_bound == 0
        elif 0 in (request.max_kl, request.max_total_variation):  # one is 0 by the sums above
            assert max(verdict.total_variation, verdict.kl_bound) < 1e-14  # a few roundings of 1
    assert all(not rate < 0 and not rate > 1 for rate in result.acceptance_by_position)


LEAVES_THE_SUPPORT = (Mixture, TypicalAcceptance, TopKAcceptance)


def check_law(request, result, target):
    """Log-probabilities are the target's own, and no token is outside its warped law."""
    ids = [*request.prompt, *result.tokens]
    rows = target(torch.tensor([ids])).logits[0, len(request.prompt) - 1 : -1]
    expected = rows.log_softmax(-1).gather(-1, torch.tensor(result.tokens)[:, None])[:, 0]
    got = torch.tensor([token.logprob for token in result.trace], dtype=torch.float64)
    assert (got - expected).abs().max() < CLOSE
    if isinstance(request.rule, LEAVES_THE_SUPPORT):
        return
    ends = request.eos_token_id
    processors = request.sampling.processors_for(len(request.prompt), ends)
    for i, token in enumerate(result.tokens):
        before = torch.tensor([ids[: len(request.prompt) + i]])
        law = request.sampling.warp(processors(before, rows[i : i + 1].clone())).softmax(-1)
        assert law[0, token] > 0


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_is_asked_the_account_the_law_and_the_ends_are_right(chunk):
    done, seed = 0, chunk
    while done < CASES // CHUNKS:
        case = Case(seed)
        together = case.decoder.batch(case.requests, batch_size=case.batch_size).finish()
        for request, result in zip(case.requests, together, strict=True):
            where = f"CACTUS_FUZZ case {seed}: {request}"
            solo = case.decoder.stream(request).finish()
            assert result.tokens == solo.tokens, where
            assert result.blocks == solo.blocks, where
            assert result.kl_bound == pytest.approx(solo.kl_bound, abs=1e-6), where
            check_end(request, result)
            check_blocks(request, result)
            check_account(request, result)
            check_law(request, result, case.target)
            done += 1
        seed += CHUNKS
