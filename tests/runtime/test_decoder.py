"""Whole decodes: greedy equality, exact law, cuts inside a block, caches, seeds, errors."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import MistralConfig, MistralForCausalLM

from cactus_runtime import (
    Decoder,
    NonFiniteLogitsError,
    PromptLookup,
    Proposal,
    Request,
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

GREEDY = SamplingParams(temperature=0)
RULES = [SpeculativeSampling(), Cactus(1.0), CactusExact(1.0)]


def stream(decoder, prompt, **options):
    return decoder.stream(Request(prompt, **options))


def greedy_reference(model, ids, count):
    output = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(output[0, len(ids) :].tolist())


class Scripted:
    """A drafter that proposes what it is told, and remembers what it was asked."""

    def __init__(self, script, vocabulary):
        self.script, self.vocabulary, self.asked = list(script), vocabulary, []

    def propose(self, ids, count, uniforms):
        self.asked.append((ids.shape[1], count))
        done = ids.shape[1] - self.prompt_length
        return Proposal(torch.tensor(self.script[done : done + count], dtype=torch.int64))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 3, 5, 8])
def test_greedy_equals_the_target_s_own_greedy_on_a_random_pair(
    random_pair, rule, num_draft_tokens
):
    target, draft = random_pair
    result = stream(
        Decoder(target, draft=draft),
        [1, 2, 3],
        rule=rule,
        sampling=GREEDY,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=40,
    )
    assert result.finish().tokens == greedy_reference(target, [1, 2, 3], 40)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 7])
def test_greedy_equals_the_target_s_own_greedy_on_the_tiny_pair(tiny, rule, num_draft_tokens):
    ids = tiny.tokenizer("kindness:")["input_ids"]
    result = decode(
        tiny,
        "kindness:",
        rule=rule,
        sampling=GREEDY,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=40,
        eos_token_id=(),
    )
    assert result.tokens == greedy_reference(tiny.target, ids, 40)
    assert result.total_variation == 0


@pytest.mark.smollm2
@pytest.mark.parametrize(
    ("num_draft_tokens", "rule"), [(1, RULES[0]), (2, RULES[1]), (4, RULES[2])], ids=str
)
def test_greedy_equals_the_target_s_own_greedy_on_smollm2(smollm2, num_draft_tokens, rule):
    prompt = "The three primary colours are"
    ids = smollm2.tokenizer(prompt)["input_ids"]
    result = decode(
        smollm2,
        prompt,
        rule=rule,
        sampling=GREEDY,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=24,
        eos_token_id=(),
    )
    assert result.tokens == greedy_reference(smollm2.target, ids, 24)
    assert result.block_efficiency > 1


@pytest.mark.smollm2
def test_a_chat_prompt_goes_through_the_chat_template(smollm2):
    messages = [{"role": "user", "content": "Say hello."}]
    text = smollm2.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    ids = smollm2.tokenizer(text)["input_ids"]
    options = {"sampling": GREEDY, "max_new_tokens": 8}
    assert decode(smollm2, messages, **options).tokens == decode(smollm2, ids, **options).tokens


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_greedy_with_prompt_lookup_equals_the_target_s_own_greedy(tiny, max_ngram):
    prompt = "dog: a dog is a dog is a dog"
    ids = tiny.tokenizer(prompt)["input_ids"]
    result = decode(
        tiny.target,
        prompt,
        draft=PromptLookup(max_ngram),
        tokenizer=tiny.tokenizer,
        sampling=GREEDY,
        max_new_tokens=40,
        eos_token_id=(),
    )
    assert result.tokens == greedy_reference(tiny.target, ids, 40)
    assert result.block_efficiency > 1


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


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 6])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7, 8])
def test_never_more_than_the_asked_number_of_tokens(random_pair, num_draft_tokens, max_new_tokens):
    result = stream(
        Decoder(random_pair[0], draft=random_pair[1]),
        [1],
        rule=CactusExact(3.0),
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=max_new_tokens,
        seed=0,
    )
    result = result.finish()
    assert len(result.tokens) == max_new_tokens
    assert result.finish_reason == "length"
    assert sum(block.emitted for block in result.blocks) == max_new_tokens


@pytest.mark.parametrize("index", range(10))
def test_an_end_of_sequence_token_ends_the_text_at_every_index_of_a_block(random_pair, index):
    target, _ = random_pair
    greedy = greedy_reference(target, [1, 2, 3], 10)
    script = Scripted(greedy, 7)
    script.prompt_length = 3
    eos = greedy[index]
    result = stream(
        Decoder(target, draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=9,
        max_new_tokens=10,
        eos_token_id=eos,
    )
    result = result.finish()
    assert result.tokens == greedy[: greedy.index(eos) + 1]
    assert result.finish_reason == "eos"


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8])
def test_a_stop_string_cuts_the_text_at_every_index_of_a_block(tiny, num_draft_tokens):
    decoder = Decoder(tiny)
    options = {
        "rule": Cactus(0.5),
        "num_draft_tokens": num_draft_tokens,
        "max_new_tokens": 24,
        "seed": 3,
        "eos_token_id": (),
    }
    whole = stream(decoder, "river:", **options).finish()
    for size in (1, 2, 5):
        for start in range(0, len(whole.text) - size, 3):
            stop = whole.text[start : start + size]
            cut = stream(decoder, "river:", stop=[stop], **options)
            pieces = "".join(token.text for token in cut)
            result = cut.result
            assert result.text == whole.text[: whole.text.index(stop)]
            assert pieces == result.text
            assert result.tokens == whole.tokens[: len(result.tokens)]
            assert result.finish_reason == "stop"


def test_a_stop_string_completed_by_the_last_allowed_token_counts(tiny):
    decoder = Decoder(tiny)
    whole = stream(decoder, "river:", sampling=GREEDY, max_new_tokens=12, eos_token_id=()).finish()
    stop = whole.text[-3:]
    cut = stream(
        decoder, "river:", sampling=GREEDY, max_new_tokens=12, stop=[stop], eos_token_id=()
    ).finish()
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def accept_all(greedy):
    return greedy


def reject_all(greedy):
    return [(token + 1) % 7 for token in greedy]


@pytest.mark.parametrize("script_of", [accept_all, reject_all])
def test_the_cache_holds_all_but_the_last_token_after_every_block(random_pair, script_of):
    target, _ = random_pair
    greedy = greedy_reference(target, [1, 2, 3], 30)
    script = Scripted(script_of(greedy), 7)
    script.prompt_length = 3
    decoding = stream(
        Decoder(target, draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=4,
        max_new_tokens=30,
    )
    batch, emitted = decoding._batch, 3
    while decoding.result.finish_reason != "length":
        emitted += len(batch._block())
        assert batch._target.lengths == [emitted - 1]  # the committed text but its last token
    assert decoding.result.tokens == greedy
    accepted = {block.accepted for block in decoding.result.blocks if block.drafted == 4}
    assert accepted == ({4} if script_of is accept_all else {0})


def test_the_draft_is_asked_after_the_committed_text_and_never_for_too_much(random_pair):
    greedy = greedy_reference(random_pair[0], [1, 2, 3], 10)
    script = Scripted(greedy, 7)
    script.prompt_length = 3
    stream(
        Decoder(random_pair[0], draft=script),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=4,
        max_new_tokens=12,
    ).finish()
    assert script.asked[:2] == [(3, 4), (8, 4)]
    assert script.asked[2] == (13, 1)


def test_a_drafter_may_propose_nothing(random_pair):
    class Silent:
        def propose(self, ids, count, uniforms):
            return Proposal(ids[0, :0])

    result = stream(
        Decoder(random_pair[0], draft=Silent()), [1, 2, 3], sampling=GREEDY, max_new_tokens=10
    )
    result = result.finish()
    assert result.tokens == greedy_reference(random_pair[0], [1, 2, 3], 10)
    assert set(result.origins) == {"plain"}


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (Proposal(torch.tensor([9])), r"ids in \[0, 7\), got \[9\]"),
        (Proposal(torch.tensor([-1])), r"ids in \[0, 7\), got \[-1\]"),
        (Proposal(torch.tensor([1] * 9)), "at most 4 tokens"),
        (Proposal(torch.tensor([1.0])), "int64"),
        (Proposal(torch.tensor([1]), torch.ones(1, 6) / 6), r"shape \(1, 7\)"),
        (Proposal(torch.tensor([1]), torch.ones(1, 7)), "must be distributions, got sums"),
        (Proposal(torch.tensor([1]), torch.full((1, 7), torch.nan)), "must be distributions"),
        (
            Proposal(torch.tensor([1]), torch.tensor([[2.0, -1, 0, 0, 0, 0, 0]])),
            "must be distributions",
        ),
        (Proposal(torch.tensor([1]), torch.eye(7)[:1]), "positive probability"),
    ],
)
def test_a_proposal_that_is_none_is_refused(random_pair, proposal, words):
    class Wrong:
        def propose(self, ids, count, uniforms):
            return proposal

    with pytest.raises(ValueError, match=words):
        stream(Decoder(random_pair[0], draft=Wrong()), [1], max_new_tokens=9).finish()


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


def test_origins_tell_accepted_recovered_and_bonus_tokens_apart(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    result = stream(decoder, [1], rule=Cactus(0.3), num_draft_tokens=2, max_new_tokens=60, seed=0)
    result = result.finish()
    assert set(result.origins) == {"accepted", "recovered", "bonus", "plain"} - (
        set() if "plain" in result.origins else {"plain"}
    )
    at = 0
    for block in result.blocks:
        origins = result.origins[at : at + block.emitted]
        assert origins[: block.accepted] == ("accepted",) * block.accepted
        if block.emitted > block.accepted:
            full = block.accepted == block.drafted
            last = "plain" if not block.drafted else "bonus" if full else "recovered"
            assert origins[-1] == last
        at += block.emitted


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


def test_a_chat_prompt_needs_a_chat_template_and_a_text_prompt_a_tokenizer(random_pair, tiny):
    with pytest.raises(ValueError, match="tokenizer must be given for a text prompt"):
        decode(random_pair[0], "hello")
    with pytest.raises(ValueError, match="chat_template"):
        decode(tiny, [{"role": "user", "content": "hi"}])


def test_a_narrower_or_wider_padded_vocabulary_works(random_model):
    target, narrow, wide = (
        random_model(0, layers=2),
        random_model(1, vocabulary=6),
        random_model(2, vocabulary=9),
    )
    for draft in (narrow, wide):
        result = stream(Decoder(target, draft=draft), [1, 2], rule=Cactus(0.2), max_new_tokens=40)
        result = result.finish()
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


def test_numpy_integers_and_arrays_are_taken_as_they_are(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    plain = stream(decoder, [1, 2], max_new_tokens=6, num_draft_tokens=2, seed=3).finish()
    numpy = stream(
        decoder,
        np.array([1, 2]),
        max_new_tokens=np.int64(6),
        num_draft_tokens=np.int64(2),
        seed=np.int64(3),
    ).finish()
    tensor = stream(
        decoder, torch.tensor([1, 2]), max_new_tokens=6, num_draft_tokens=2, seed=3
    ).finish()
    assert plain.tokens == numpy.tokens == tensor.tokens


def test_acceptance_rates_are_probabilities_for_the_planning_functions(tiny):
    result = decode(tiny, "dog:", rule=Cactus(1.0), max_new_tokens=60, seed=0, eos_token_id=())
    assert 1 <= block_efficiency([v.acceptance_rate for v in result.verdicts[:4]]) <= 5
    assert all(0 <= rate <= 1 for rate in result.acceptance_by_position)


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_a_sliding_window_is_rewound_too(num_draft_tokens):
    def mistral(seed, layers):
        torch.manual_seed(seed)
        config = MistralConfig(
            vocab_size=11,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            sliding_window=8,
            max_position_embeddings=128,
            initializer_range=0.5,
            bos_token_id=None,
            eos_token_id=None,
        )
        return MistralForCausalLM(config).eval().requires_grad_(False)

    target = mistral(0, 2)
    ids = [1, 2, 3]
    for _ in range(40):
        logits = target(torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    result = stream(
        Decoder(target, draft=mistral(1, 1)),
        [1, 2, 3],
        sampling=GREEDY,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=40,
    )
    assert result.finish().tokens == tuple(ids[3:])


def test_temperature_zero_accepts_exactly_the_argmax_for_every_budget(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    results = [
        stream(decoder, [1, 2], rule=rule, sampling=GREEDY, max_new_tokens=40).finish()
        for rule in (SpeculativeSampling(), Cactus(0.01), Cactus(50.0), CactusExact(50.0))
    ]
    assert len({result.tokens for result in results}) == 1
    assert {result.kl_bound for result in results} == {0.0}


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


def options():
    """Arguments that are wrong, and what the message must name."""
    return [
        ({"prompt": []}, ValueError, "prompt must have at least one token"),
        ({"prompt": [7]}, ValueError, r"prompt ids .* \[0, 7\), got 7"),
        ({"prompt": [-1]}, ValueError, "got -1"),
        ({"prompt": [1.5]}, ValueError, "got 1.5"),
        ({"prompt": b"one"}, TypeError, "prompt must be text, a sequence .* got b'one'"),
        ({"prompt": None}, TypeError, "prompt must be text, a sequence .* got None"),
        ({"stop": None}, TypeError, "stop must be a sequence of non-empty strings, got None"),
        ({"eos_token_id": 1.5}, ValueError, "eos_token_id must be token ids, got 1.5"),
        ({"prompt": [1] * 200}, ValueError, r"\(200 tokens\).*context of 128 tokens; at most 0"),
        ({"max_new_tokens": 200}, ValueError, "max_new_tokens=200.*at most 127"),
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be an integer >= 1, got 0"),
        ({"max_new_tokens": 2.0}, TypeError, "max_new_tokens"),
        ({"num_draft_tokens": -1}, ValueError, "num_draft_tokens must be an integer >= 0, got -1"),
        ({"num_draft_tokens": True}, TypeError, "num_draft_tokens"),
        ({"rule": 0.5}, TypeError, "rule must be one of cactus_theory's rules, got 0.5"),
        ({"sampling": 0.7}, TypeError, "sampling must be SamplingParams, got 0.7"),
        ({"seed": -1}, ValueError, r"seed must lie in \[0, 2\*\*64\), got -1"),
        ({"seed": "x"}, TypeError, "seed must be an integer, got 'x'"),
        ({"max_kl": -1.0}, ValueError, "max_kl must be a number >= 0, got -1.0"),
        ({"max_kl": float("nan")}, ValueError, "max_kl must be a number >= 0, got nan"),
        ({"max_total_variation": "x"}, TypeError, "max_total_variation must be .* got 'x'"),
        ({"stop": "END"}, TypeError, "stop must be a sequence of non-empty strings, got 'END'"),
        ({"stop": [""]}, TypeError, "stop"),
        ({"stop": ["x"]}, ValueError, "tokenizer must be given for stop strings"),
        ({"eos_token_id": "x"}, ValueError, "eos_token_id must be token ids, got 'x'"),
    ]


@pytest.mark.parametrize(("wrong", "error", "words"), options(), ids=lambda x: str(x)[:40])
def test_a_wrong_argument_is_named_with_its_value(random_pair, wrong, error, words):
    arguments = {"prompt": [1], "max_new_tokens": 5, **wrong}
    with pytest.raises(error, match=words):
        decode(random_pair[0], arguments.pop("prompt"), draft=random_pair[1], **arguments)


def test_every_small_case_of_lengths_ends_well(random_pair):
    decoder = Decoder(random_pair[0], draft=random_pair[1])
    for prompt, new, drafts in product(range(1, 4), range(1, 6), range(4)):
        for rule in (Cactus(0.0), Cactus(0.7)):
            result = stream(
                decoder,
                list(range(prompt)),
                rule=rule,
                num_draft_tokens=drafts,
                max_new_tokens=new,
                seed=1,
            ).finish()
            assert len(result.tokens) == new
            assert str(result).startswith(str(rule))


def test_a_role_that_the_chat_template_refuses_is_told_of():
    decoder = Decoder("tiny")
    decoder.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    system = [{"role": "system", "content": "dog:"}]
    with pytest.raises(ValueError, match=r"chat template takes: System role .*'role': 'system'"):
        decoder.stream(Request(system))
    user = [{"role": "user", "content": "dog:"}]
    assert decoder.stream(Request(user, max_new_tokens=2)).finish().prompt_tokens > 0
