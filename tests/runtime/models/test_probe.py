"""Models that would decode wrong are refused when the decoder is made, others are not.

Each of these was decoded without a word, or raised an error of transformers' after the first pass.
"""

import pytest
import torch

from cactus_runtime import Decoder, Request
from cactus_runtime.models import probe as probing
from cactus_runtime.models.probe import probe, probe_ragged
from tests.runtime.prefix_model import PrefixModel
from tests.tiny_models import tiny_model


def build(kind, *, std=0.4, **options):
    sizes = {"vocab_size": 11, "num_hidden_layers": 2, "pad_token_id": 0}
    return tiny_model(kind, std=std, **{**sizes, **options})


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_forward_that_swallows_the_cache_is_refused(role):
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    gpt = build("OpenAIGPTLMHeadModel", vocab_size=11, **sizes)
    models = {"target": build("LlamaForCausalLM"), "draft": None, role: gpt}
    with pytest.raises(ValueError, match=rf"{role} .* takes no cache or past_key_values; use"):
        Decoder(models["target"], draft=models["draft"])


@pytest.mark.parametrize("std", [0.4, None], ids=["as trained", "as initialised"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LlamaForCausalLM", {"is_causal": False}),
        ("BertLMHeadModel", {}),
        ("RobertaForCausalLM", {"max_position_embeddings": 40}),
    ],
)
def test_a_model_that_looks_ahead_is_refused(kind, options, std):
    with pytest.raises(ValueError, match=f"target must be causal, but in {kind} a later token"):
        Decoder(build(kind, std=std, **options))


@pytest.mark.parametrize("kind", ["BertLMHeadModel", "RobertaForCausalLM"])
def test_an_encoder_told_to_decode_is_not_refused(kind):
    Decoder(build(kind, is_decoder=True, max_position_embeddings=40))


def test_layers_with_a_state_that_is_not_keys_and_values_are_refused_by_kind():
    kinds = ["conv", "full_attention"]
    with pytest.raises(ValueError, match=r"Lfm2ForCausalLM carries layers of kind \['conv'\]; use"):
        Decoder(build("Lfm2ForCausalLM", layer_types=kinds, num_key_value_heads=1))


class Forgetful(PrefixModel):
    """Its cache is held elsewhere, and nobody rewinds it."""

    def forward(self, input_ids, *, cache=None, **options):
        if cache is not None and cache.get_seq_length():
            self.read = torch.cat([self.read, input_ids], dim=1)
            logits = super().forward(self.read).logits
            return type(super().forward(input_ids))(logits[:, -input_ids.shape[1] :])
        self.read = input_ids
        return super().forward(input_ids)


class Shifted(PrefixModel):
    """Its rows of a batch disturb each other."""

    def forward(self, input_ids, *, position_ids=None, attention_mask=None, cache=None, **options):
        if position_ids is not None:
            attention_mask = attention_mask.roll(1, 0)
            options |= {"position_ids": position_ids, "attention_mask": attention_mask}
        return super().forward(input_ids, cache=cache, **options)


class Raising(PrefixModel):
    def forward(self, input_ids, *, cache=None, **options):
        if cache is not None:
            raise KeyError("layer 3")
        return super().forward(input_ids, **options)


def test_a_state_outside_the_cache_is_found_by_rewinding():
    with pytest.raises(ValueError, match="Forgetful gives other logits for a few tokens read in a"):
        Decoder(Forgetful(11, seed=0))


def test_what_a_model_raises_at_a_cache_becomes_a_sentence():
    with pytest.raises(ValueError, match=r"key-value cache, but Raising raised KeyError .*layer 3"):
        Decoder(Raising(11, seed=0))


def test_rows_that_disturb_each_other_are_refused_together_and_decoded_alone():
    decoder = Decoder(Shifted(11, seed=0))
    requests = [Request([1, 2], max_new_tokens=3), Request([3], max_new_tokens=3)]
    with pytest.raises(ValueError, match=r"because Shifted gives different logits .*=1"):
        decoder.batch(requests)
    assert len(decoder.stream(requests[0]).finish().tokens) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("std", [0.02, 0.1, 0.4])
def test_rounding_is_no_fault_in_any_type(dtype, std):
    """Forty layers of random weights round worse than trained ones."""
    model = build("LlamaForCausalLM", num_hidden_layers=40, std=std, dtype=dtype)
    probe(model, "target")
    probe_ragged(model, "target")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_that_looks_ahead_is_seen_in_short_types_too(dtype):
    with pytest.raises(ValueError, match="must be causal"):
        probe(build("LlamaForCausalLM", is_causal=False, dtype=dtype), "target")


def test_experts_chosen_otherwise_for_a_last_bit_are_no_fault():
    """In a short type one token of the probe may be far off, and is not the middle one."""
    texts = probing._Texts(build("LlamaForCausalLM", dtype=torch.bfloat16))
    wanted = texts.logits[0]
    found = wanted.clone()
    found[4] = -found[4]
    assert texts.agree(found, wanted)
    assert not texts.agree(-wanted, wanted)


def test_masked_entries_of_the_vocabulary_do_not_hide_a_fault():
    texts = probing._Texts(build("LlamaForCausalLM"))
    wanted = texts.logits[0].clone()
    wanted[:, -1], wanted[:, -2] = torch.finfo(torch.float32).min, -torch.inf
    found = wanted.clone()
    assert texts.agree(found, wanted)
    found[5, 3] += 0.1 * wanted[:, :-2].abs().max()
    assert not texts.agree(found, wanted)


def test_a_model_without_numbers_is_left_to_the_decode_that_tells_its_place():
    model = build("LlamaForCausalLM")
    model.lm_head.weight.fill_(torch.nan)
    probe(model, "target")


@pytest.mark.parametrize("vocabulary", [1, 2, 3])
def test_the_smallest_vocabularies_can_be_probed(vocabulary):
    probe(PrefixModel(vocabulary, seed=0), "target")


def test_tokens_that_stand_for_something_else_are_not_read():
    llama = build("LlamaForCausalLM")
    llama.config.image_token_id, llama.config.eos_token_id = 4, [5, 6]
    assert set(probing._plain_ids(llama)) <= {1, 2, 3, 7, 8, 9, 10}


def test_a_model_is_read_once_until_its_tensors_change(monkeypatch):
    calls = []
    read = probing._read_blocks
    monkeypatch.setattr(probing, "_read_blocks", lambda *args: calls.append(1) or read(*args))
    model = build("LlamaForCausalLM")
    for _ in range(3):
        Decoder(model).stream(Request([1], max_new_tokens=2)).finish()
    assert len(calls) == 1
    model.double()
    Decoder(model)
    assert len(calls) == 2


def test_a_llama_of_the_same_sizes_is_fine():
    probe(build("LlamaForCausalLM", std=None), "target")
