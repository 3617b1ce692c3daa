"""Faults that users of other decoders have reported, each ruled out here.

Where another test shows it, the table names that one; the rest are below.

| reported as | fault | ruled out by |
|---|---|---|
| vllm #45060, #21876 | an all-NaN row emits a padding id | test_decoder `non_finite`; below |
| vllm #41834 | a refused token, or token 0, is drawn from an empty residual | \
test_by_distribution `equal_laws`, `empty_by_rounding`; below |
| vllm #40149 | the draft's law is lost, acceptance is low | test_decoder `counted_acceptance` |
| vllm #14645, #11123 | tokens leak between requests of a batch | test_batch; test_fuzz |
| vllm #6038 | seeds ignored, unseeded requests alike | test_batch |
| vllm #17876 | log-probabilities after masking, or of other rows | test_fuzz `check_law`; \
test_warp `writes_into_its_logits` |
| vllm #42744 | min-p at the bonus position only | test_warp `filters_hold` |
| vllm #18902, sglang #33643 | penalties see the last token of a block only | test_warp |
| sglang #31599, vllm #47616, transformers #47912 | text after its end | test_decoder, \
test_fuzz `check_end`; below |
| transformers #28508 | one token too many is accepted or emitted | test_warp \
`filters_hold`; test_decoder |
| transformers #47932, #32867 | the law judged is not the law drawn from | below |
| transformers #45307, llama.cpp #3812 | padded vocabularies of two widths | test_decoder, \
test_loading; below |
| transformers #30312, #48280, mlx-lm #1423 | caches rewound one off | test_decoder `cache_holds`, \
test_kv_cache |
| llama.cpp #5657 | temperature 0 has no law | test_decoder `temperature_zero` |
| gpt-fast #213, transformers #29769 | batches of more than one fail | test_batch |
| vllm #20531 | no row has a draft left | below |
| transformers #36337, #40976 | slower than plain decoding, silently | test_terminal \
`drafting_that_takes_more_time` |
| vllm #55250 | the draft overflows, nothing is accepted, silently | test_terminal \
`without_any_kept_draft`; below |
"""

from dataclasses import replace

import pytest
import torch
from transformers import LogitsProcessor

from cactus_runtime import Decoder, NonFiniteLogitsError, Request, SamplingParams
from cactus_theory import Cactus, CactusExact, Lenience, SpeculativeSampling
from tests.runtime.prefix_model import PrefixModel, alike
from tests.tiny_models import tiny_model

V = 7
TARGET, DRAFT = alike(V)
RULES = [SpeculativeSampling(), Cactus(0.5), CactusExact(0.5), Lenience(0.5)]


def decode(target, draft, prompt=(1, 2), **options):
    return Decoder(target, draft=draft).stream(Request(prompt, **options)).finish()


def poisoned(model, ids, value):
    """The model, but for its answer after these ids."""
    spoilt = PrefixModel(V, seed=0)
    spoilt.table.copy_(model.table)
    place = (model.table == model.after(ids)).all(-1)
    spoilt.table[place] = value
    return spoilt


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_row_without_a_law_is_told_with_its_model_its_request_and_its_place(role, value):
    """vllm #45060, #21876: an id of the padding was emitted instead."""
    models = {"target": TARGET, "draft": DRAFT}
    models[role] = poisoned(models[role], [3, 3, 5], value)
    batch = [Request([4], max_new_tokens=1), Request([3, 3, 5], max_new_tokens=4)]
    decoding = Decoder(models["target"], draft=models["draft"]).batch(batch)
    with pytest.raises(NonFiniteLogitsError, match=f"{role} .* after token 2 of request 1"):
        decoding.finish()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_draft_that_is_the_target_itself_is_never_refused(rule):
    """vllm #41834: a residual without mass was drawn from, and gave token 0.

    p is rounded to float32 and q is not: a refusal would need a uniform within 1e-7 of 1.
    """
    for seed in range(4):
        result = decode(TARGET, TARGET, rule=rule, seed=seed, max_new_tokens=50)
        assert set(result.origins) <= {"accepted", "bonus", "plain"}
        assert len(set(result.tokens)) > 3


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4])
@pytest.mark.parametrize("max_new_tokens", range(1, 8))
def test_the_end_at_the_last_allowed_token_is_the_end(num_draft_tokens, max_new_tokens):
    """sglang #31599, vllm #47616, transformers #47912: ends at the edge were passed or missed."""
    sampling = SamplingParams(temperature=0)  # so that the text is no matter of its blocks
    options = {"num_draft_tokens": num_draft_tokens, "rule": Cactus(1.0), "sampling": sampling}
    whole = decode(TARGET, DRAFT, max_new_tokens=12, **options)
    end = whole.tokens[max_new_tokens - 1]
    first = whole.tokens.index(end) + 1
    result = decode(TARGET, DRAFT, max_new_tokens=max_new_tokens, eos_token_id=end, **options)
    assert result.tokens == whole.tokens[:first]
    assert result.finish_reason == "eos"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.4, top_k=3),
        SamplingParams(temperature=1.7, top_p=0.7),
        SamplingParams(min_p=0.3, repetition_penalty=1.5),
    ],
    ids=str,
)
def test_a_drafted_token_is_judged_by_the_law_it_was_drawn_from(sampling):
    """transformers #47932, #32867: its law was taken at another temperature, or softened."""
    result = decode(TARGET, DRAFT, sampling=sampling, max_new_tokens=30, seed=4)
    ids = [1, 2]
    for token in result.trace:
        if token.verdict is not None:
            for model, prob in (
                (DRAFT, token.verdict.draft_prob),
                (TARGET, token.verdict.target_prob),
            ):
                logits = sampling.processors_for(2, ())(torch.tensor([ids]), model.after(ids)[None])
                law = sampling.warp(logits).double().softmax(-1)[0]
                assert prob == pytest.approx(float(law[token.verdict.id]), abs=1e-6)
        ids.append(token.id)
    assert sum(token.verdict is not None for token in result.trace) > 10


@pytest.mark.parametrize("widths", [(152_064, 151_936), (151_936, 152_064)])
def test_the_two_widths_of_one_large_vocabulary_work_together(widths):
    """transformers #45307, llama.cpp #3812: a crash, or tokens that are none."""
    target, draft = (PrefixModel(width, seed=i, rows=3) for i, width in enumerate(widths))
    common = min(widths)
    draft.table[:, :common] = target.table[:, :common] + 0.1 * draft.table[:, :common]
    for model in (target, draft):
        model.table[:, common:] = -10.0  # as padding mostly is: improbable, but finite
    for top_k in (None, 20):
        sampling = SamplingParams(top_k=top_k, temperature=0.5)
        result = decode(target, draft, sampling=sampling, max_new_tokens=12, seed=0)
        assert result.acceptance_rate > 0.5
        assert result.accepted_tokens > 0.5
        assert max(result.tokens) < common


@pytest.mark.parametrize("top_k", [None, 1, 3, 99])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_blocks_in_which_no_row_has_drafts_are_decoded(rule, batch_size, top_k):
    """vllm #20531: top-k of an empty batch of drafts crashed."""
    sampling = SamplingParams(top_k=top_k)
    batch = [
        Request([i], rule=rule, sampling=sampling, max_new_tokens=n, num_draft_tokens=k, seed=i)
        for i, (n, k) in enumerate([(1, 4), (1, 1), (2, 0), (5, 4), (6, 4)])
    ]
    results = Decoder(TARGET, draft=DRAFT).batch(batch, batch_size=batch_size).finish()
    assert [len(result.tokens) for result in results] == [1, 1, 2, 5, 6]
    assert results[0].origins == results[1].origins == ("plain",)


def test_a_draft_that_overflows_in_half_precision_is_told(random_model):
    """vllm #55250: nothing was accepted, and nothing said."""
    draft = random_model(1)
    draft.lm_head.weight.mul_(1e5)
    draft = draft.half()
    with pytest.raises(NonFiniteLogitsError, match=r"the draft model .*request 0"):
        decode(random_model(0), draft, max_new_tokens=4)


# Found by a stranger -----------------------------------------------------------------------------


class Returning(LogitsProcessor):
    def __init__(self, value):
        self.value = value

    def __call__(self, input_ids, scores):
        return self.value(scores) if callable(self.value) else self.value


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (
            lambda x: x.clone().fill_(torch.inf),
            ValueError,
            "request 1 must return logits below inf",
        ),
        (lambda x: x * torch.nan, ValueError, "request 1 must return logits below inf, .* nan"),
        (None, TypeError, "request 1 must return logits, .* got NoneType"),
        (lambda x: x[:, :-1], ValueError, r"request 1 must return logits, .* got shape \(1, "),
        (lambda x: x.long(), TypeError, "request 1 must return logits, .* got torch.int64"),
    ],
)
def test_what_processors_must_not_return_is_told_with_the_request(tiny, value, error, words):
    bad = SamplingParams(processors=[Returning(value)])
    requests = [Request("a:", max_new_tokens=4), Request("b:", max_new_tokens=4, sampling=bad)]
    with pytest.raises(error, match=words):
        Decoder(tiny).batch(requests).finish()


def test_a_processor_with_a_state_is_refused(tiny):
    from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor

    with pytest.raises(ValueError, match="carries a state that cannot be rewound"):
        SamplingParams(
            processors=[UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, tiny.target)]
        )


def test_a_bias_beyond_float32_is_refused():
    with pytest.raises(ValueError, match=r"within float32, got 1e\+308 for 5"):
        SamplingParams(logit_bias={5: 1e308})


def test_models_that_are_not_causal_are_refused():
    for kind in ("BertForMaskedLM", "LlamaModel"):
        with pytest.raises(ValueError, match="target must be a causal language model"):
            Decoder(tiny_model(kind, pad_token_id=0))


def test_memory_follows_the_tokens_that_can_be_drafted_not_those_asked_for(tiny):
    request = Request("dog:", max_new_tokens=3, num_draft_tokens=10**9, seed=1)
    assert len(Decoder(tiny).stream(request).finish().tokens) <= 3


def test_a_stop_condition_that_raises_leaves_whole_blocks(tiny):
    request = Request("dog:", seed=1, max_new_tokens=12, eos_token_id=())
    free = Decoder(tiny).stream(request).finish()
    at = free.prompt_tokens + free.blocks[0].emitted + 1  # the first token of the second block
    decoding = Decoder(tiny).stream(
        replace(request, stop_when=lambda ids: 1 / (len(ids) - at) == 0)
    )
    with pytest.raises(ZeroDivisionError):
        decoding.finish()
    assert decoding.result.tokens == free.tokens[: free.blocks[0].emitted]
    result = decoding.result
    assert len(result.tokens) == sum(block.emitted for block in result.blocks)
    assert result.text == "".join(token.text for token in result.trace)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"stop_when": 5}, TypeError, "stop_when must be callable, got 5"),
        ({"number": -1}, ValueError, r"number must lie in \[0, 2\*\*64\), got -1"),
        ({"eos_token_id": 10**9}, ValueError, r"eos_token_id must be in \[0, 1024\)"),
        ({"prompt": "a\ud800b"}, ValueError, "prompt must be encodable text"),
    ],
)
def test_more_wrong_arguments_are_named(tiny, wrong, error, words):
    with pytest.raises(error, match=words):
        Decoder(tiny).stream(Request(**{"prompt": "a:", **wrong}))


@pytest.mark.parametrize("device", ["zz", "cuda"])
def test_a_device_that_is_not_there_is_named(device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(ValueError, match=f"device.*{device}"):
        Decoder("tiny", device=device)


def test_a_batch_of_nothing_or_of_one_bare_request_is_named(tiny):
    with pytest.raises(ValueError, match="requests must have at least one"):
        Decoder(tiny).batch([])
    with pytest.raises(TypeError, match="requests must be a sequence of Requests"):
        Decoder(tiny).batch(Request("a:"))
