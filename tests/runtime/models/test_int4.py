"""The int4 copy against its own dequantised weights, on tiny random models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from cactus_runtime.models import int4 as quantisation
from cactus_runtime.models.int4 import Int4Linear, quantise, quantised_copy
from tests.tiny_models import tiny_model

# A bfloat16 keeps 8 significant bits: one rounding errs by 2^-9 of the value.
BFLOAT16 = 2**-9


def tiny_llama(*, vocab_size: int = 96, tied: bool = True, hidden_size: int = 64):
    return tiny_model(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        attention_bias=True,
    ).requires_grad_()


def dequantised(weight, group_size):
    codes, scales, zeros = quantise(weight, group_size=group_size)
    grouped = codes.unflatten(-1, (-1, group_size)).float() - 8
    return (zeros.float()[..., None] + scales.float()[..., None] * grouped).flatten(-2)


@pytest.mark.parametrize("rows", range(1, 10))
@pytest.mark.parametrize(
    ("outputs", "inputs", "group_size"),
    [(16, 32, 32), (80, 96, 32), (192, 256, 64), (48, 256, 256)],
)
def test_an_int4_layer_equals_its_dequantised_weights(rows, outputs, inputs, group_size):
    torch.manual_seed(rows)
    linear = nn.Linear(inputs, outputs)
    activations = torch.randn(rows, inputs, dtype=torch.bfloat16)
    found = Int4Linear(linear, group_size=group_size)(activations).float()
    weight, bias = dequantised(linear.weight.detach(), group_size), linear.bias.detach()
    expected = activations.float() @ weight.T + bias
    # Three roundings: the product, the bias, their sum.
    torch.testing.assert_close(
        found, expected, rtol=0, atol=3 * BFLOAT16 * float(expected.abs().max())
    )


@pytest.mark.parametrize("group_size", [32, 64, 128, 256])
def test_no_weight_moves_by_more_than_half_a_step_and_the_rounding_of_scale_and_zero(group_size):
    weight = torch.randn(16, 512, generator=torch.Generator().manual_seed(0))
    groups = weight.unflatten(-1, (-1, group_size))
    low, high = groups.aminmax(dim=-1, keepdim=True)
    # The scale's rounding counts 7.5 times at the ends, the zero's once.
    bound = (high - low) * (1 / 30 + BFLOAT16 / 2) + BFLOAT16 * torch.maximum(-low, high)
    error = (dequantised(weight, group_size).unflatten(-1, (-1, group_size)) - groups).abs()
    assert bool((error <= bound).all())


@pytest.mark.parametrize("value", [0.0, 1.0, -0.75])
def test_a_constant_group_is_kept(value):
    weight = torch.full((16, 32), value)
    # Eight steps of the smallest scale, 2^-126.
    torch.testing.assert_close(dequantised(weight, 32), weight, rtol=0, atol=2**-123)


def test_leading_axes_and_slices_of_the_activations_are_respected():
    layer = Int4Linear(nn.Linear(64, 32, bias=False), group_size=32)
    activations = torch.randn(3, 4, 64).to(torch.bfloat16)
    whole = layer(activations)
    assert whole.shape == (3, 4, 32)
    assert torch.equal(layer(activations[:, -1:]), whole[:, -1:])


@pytest.mark.parametrize("tied", [True, False])
def test_the_original_model_is_untouched(tied):
    model = tiny_llama(tied=tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = model.config.to_dict()
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    draft = quantised_copy(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters
    assert all(parameter.requires_grad for parameter in model.parameters())
    shared = {value.data_ptr() for value in model.state_dict().values()}
    assert shared.isdisjoint(value.data_ptr() for value in draft.state_dict().values())


def test_every_linear_layer_becomes_int4_and_the_rest_bfloat16():
    draft = quantised_copy(tiny_llama())
    assert not any(type(module) is nn.Linear for module in draft.modules())
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in draft.parameters())
    assert draft.dtype == draft.config.dtype == torch.bfloat16
    assert not draft.training


def test_a_tied_head_gets_weights_of_its_own():
    model = tiny_llama()
    draft = quantised_copy(model)
    assert isinstance(draft.lm_head, Int4Linear)
    assert torch.equal(
        draft.get_input_embeddings().weight, model.get_input_embeddings().weight.bfloat16()
    )
    assert not draft.config.tie_word_embeddings


def test_a_layer_the_kernel_cannot_take_stays_bfloat16():
    draft = quantised_copy(tiny_llama(vocab_size=90))
    assert type(draft.lm_head) is nn.Linear
    assert draft.lm_head.weight is draft.get_input_embeddings().weight
    assert draft.config.tie_word_embeddings
    assert draft(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 90)


@torch.inference_mode()
def test_the_copy_computes_what_the_model_with_dequantised_weights_computes():
    model = tiny_llama()
    draft = quantised_copy(model)
    reference = tiny_llama(tied=False)
    reference.load_state_dict(model.state_dict())
    for module in reference.modules():
        if type(module) is nn.Linear:
            module.weight.data = dequantised(module.weight.data, 32)
    tokens = torch.arange(12).view(2, 6)
    expected, found = reference(tokens).logits, draft(tokens).logits.float()
    error = (found - expected).std()
    # Some thirty roundings in sequence, which add up like a random walk; twice that.
    assert error < 2 * 30**0.5 * BFLOAT16 * expected.std()
    assert error < (model(tokens).logits - expected).std() / 5


@torch.inference_mode()
def test_token_by_token_with_a_cache_equals_all_at_once():
    draft = quantised_copy(tiny_llama())
    tokens = torch.arange(9)[None]
    cache = DynamicCache(config=draft.config)
    single = [draft(tokens[:, i : i + 1], cache=cache).logits for i in range(9)]
    whole = draft(tokens).logits.float()
    # Keys and values are rounded alike on both paths; sums run in another order.
    atol = 30**0.5 * BFLOAT16 * float(whole.abs().max())
    torch.testing.assert_close(torch.cat(single, 1).float(), whole, rtol=0, atol=atol)


def test_the_copy_generates():
    tokens = quantised_copy(tiny_llama()).generate(
        torch.tensor([[1, 2, 3]]), max_new_tokens=4, min_new_tokens=4, do_sample=False
    )
    assert tokens.shape == (1, 7)


def test_a_model_elsewhere_than_on_the_cpu_is_refused():
    with pytest.raises(ValueError, match=r"model must be on the CPU.*meta.*model\.cpu\(\)"):
        quantised_copy(tiny_llama().to("meta"))


def test_a_group_size_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="group_size must be one of 32, 64, 128, 256, got 48"):
        quantised_copy(tiny_llama(), group_size=48)


def test_a_group_size_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match=r"group_size must be an int, got 32\.0"):
        quantised_copy(tiny_llama(), group_size=32.0)


def test_something_other_than_a_transformers_model_is_refused():
    with pytest.raises(TypeError, match="model must be a transformers PreTrainedModel, got Linear"):
        quantised_copy(nn.Linear(64, 64))


def test_a_model_without_a_layer_to_quantise_is_refused():
    with pytest.raises(ValueError, match=r"no layer to quantise.*group_size=256"):
        quantised_copy(tiny_llama(), group_size=256)


def test_a_torch_without_the_kernel_is_named(monkeypatch):
    class Nothing:
        pass

    monkeypatch.setattr(quantisation.torch.ops, "aten", Nothing())
    with pytest.raises(RuntimeError, match=r"_weight_int4pack_mm_for_cpu.*torch 2\.6"):
        quantised_copy(tiny_llama())
