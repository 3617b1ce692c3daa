"""At temperature 0 every decode is the target's own greedy text."""

import pytest
import torch

from cactus_runtime import (
    Decoder,
    PromptLookup,
    decode,
)
from cactus_theory import (
    Cactus,
    CactusExact,
    SpeculativeSampling,
)
from tests.runtime.greedy import GREEDY, RULES, greedy_reference, stream
from tests.tiny_models import tiny_model


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


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_a_sliding_window_is_rewound_too(num_draft_tokens):
    def mistral(seed, layers):
        sizes = {"vocab_size": 11, "num_hidden_layers": layers, "num_key_value_heads": 2}
        return tiny_model(
            "MistralForCausalLM", seed, sliding_window=8, initializer_range=0.5, **sizes
        )

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
