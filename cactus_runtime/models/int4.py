"""A 4-bit copy of a causal language model, to serve as its own draft on a CPU.

Knows: torch's weight-only int4 kernel for CPUs, and how to replace linear layers by it. Does not
know: any particular model, decoding, or the target of the copy.

Weights are stored in groups of consecutive inputs: a weight with code c in 0..15 is worth ``zero +
scale * (c - 8)``, with scale and zero in bfloat16. Activations are bfloat16, because the kernel is
fast for that type only.
"""

from __future__ import annotations

import copy
from typing import TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from cactus_runtime.models.dtype import dtype_name
from cactus_runtime.result.trace import Dtypes

GROUP_SIZES = (32, 64, 128, 256)
ROWS_MULTIPLE = 16


class Int4Linear(nn.Module):
    """A linear layer with int4 weights and bfloat16 activations.

    Parameters
    ----------
    linear : nn.Linear
        The layer to approximate; it is read only. Its weight is on the CPU, `out_features` is a
        multiple of 16, and `in_features` is a multiple of `group_size`.
    group_size : int
        Inputs that share a scale and a zero: 32, 64, 128 or 256.
    """

    packed: Tensor
    scales_and_zeros: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, *, group_size: int) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.group_size = group_size
        codes, scales, zeros = quantise(linear.weight.detach(), group_size=group_size)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        bias = None if linear.bias is None else linear.bias.detach().to(torch.bfloat16)
        self.register_buffer("packed", packed)
        self.register_buffer(
            "scales_and_zeros", torch.stack((scales.T, zeros.T), dim=-1).contiguous()
        )
        self.register_buffer("bias", bias)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self.in_features).contiguous()
        outputs = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self.packed, self.group_size, self.scales_and_zeros
        )
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, group_size={self.group_size}"


def quantise(weight: Tensor, *, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and zeros of a weight, from the extremes of each group.

    The 16 values of a group are centred between its extremes *after* the scale has been rounded
    to bfloat16, which splits the rounding error between both ends. (A search for the scale of
    least squared error took five times as long and accepted no more tokens.)

    Parameters
    ----------
    weight : Tensor, shape (rows, columns)
        `columns` is a multiple of `group_size`.
    group_size : int

    Returns
    -------
    codes : Tensor of int32, shape (rows, columns)
        In 0..15; the weight is approximated by ``zero + scale * (code - 8)``.
    scales, zeros : Tensor of bfloat16, shape (rows, columns / group_size)

    Examples
    --------
    >>> weight = torch.linspace(-1, 1, 64).view(2, 32)
    >>> codes, scales, zeros = quantise(weight, group_size=32)
    >>> bool((zeros + scales * (codes - 8) - weight).abs().max() < 0.04)
    True
    """
    groups = weight.float().unflatten(-1, (-1, group_size))
    low, high = groups.aminmax(dim=-1, keepdim=True)
    smallest = torch.finfo(torch.bfloat16).tiny
    scales = ((high - low) / 15).clamp(min=smallest).to(torch.bfloat16)
    zeros = ((low + high + scales.float()) / 2).to(torch.bfloat16)
    codes = ((groups - zeros.float()) / scales.float()).round().clamp(-8, 7) + 8
    return codes.to(torch.int32).flatten(-2), scales.squeeze(-1), zeros.squeeze(-1)


def quantised_copy(model: PreTrainedModel, *, group_size: int = 32) -> PreTrainedModel:
    """A copy of a causal language model with int4 weights, the rest in bfloat16.

    Every plain ``nn.Linear`` whose shape the kernel takes (`out_features` a multiple of 16,
    `in_features` a multiple of `group_size`) becomes an `Int4Linear`; other layers are copied in
    bfloat16. A head tied to the embedding gets int4 weights of its own, while the embedding
    becomes bfloat16: so the copy's weights are no longer tied, and its configuration says so.

    The original is not changed. Linear weights are quantised layer by layer and never copied
    in full precision.

    Parameters
    ----------
    model : PreTrainedModel
        On the CPU.
    group_size : int
        Consecutive inputs that share a scale and a zero: 32, 64, 128 or 256. Larger groups take
        less memory and approximate the original less closely.

    Returns
    -------
    PreTrainedModel
        Of the same class, on the CPU, without gradients; its logits are bfloat16.

    Raises
    ------
    TypeError
        If `model` is not a PreTrainedModel or `group_size` not an int.
    ValueError
        If the model is not on the CPU, the kernel has no such group size, or no layer fits it.
    RuntimeError
        If this torch is too old to have the kernel.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(
    ...     vocab_size=64, hidden_size=32, intermediate_size=64,
    ...     num_hidden_layers=1, num_attention_heads=2,
    ... )
    >>> draft = quantised_copy(LlamaForCausalLM(config))
    >>> draft.lm_head
    Int4Linear(32, 64, group_size=32)
    >>> draft(torch.tensor([[1, 2, 3]])).logits.dtype
    torch.bfloat16
    """
    _check_arguments(model, group_size)
    _check_kernel()
    linears = [module for module in model.modules() if _fits(module, group_size)]
    if not linears:
        raise ValueError(
            f"model has no layer to quantise: {type(model).__name__} has no nn.Linear with "
            f"out_features a multiple of {ROWS_MULTIPLE} and in_features of group_size={group_size}"
        )
    replaced = {id(linear): Int4Linear(linear, group_size=group_size) for linear in linears}
    kept = {
        id(parameter): nn.Parameter(_bfloat16(parameter), requires_grad=False)
        for module in model.modules()
        if id(module) not in replaced
        for parameter in module.parameters(recurse=False)
    }
    duplicate = copy.deepcopy(model, {**replaced, **kept})
    duplicate.config.dtype = torch.bfloat16
    if id(model.get_output_embeddings()) in replaced:
        duplicate.config.tie_word_embeddings = False
    return duplicate


def weight_types(target: PreTrainedModel, draft: object) -> Dtypes:
    """Names of the types of two models' weights, for results."""
    kind = _weight_type(draft) if isinstance(draft, PreTrainedModel) else None
    return Dtypes(_weight_type(target), kind)


def _weight_type(model: PreTrainedModel) -> str:
    quantised = any(isinstance(module, Int4Linear) for module in model.modules())
    return "int4" if quantised else dtype_name(model.dtype)


def _fits(module: nn.Module, group_size: int) -> TypeGuard[nn.Linear]:
    """Whether the kernel can replace a module; subclasses may behave differently."""
    return (
        type(module) is nn.Linear
        and module.out_features % ROWS_MULTIPLE == 0
        and module.in_features % group_size == 0
    )


def _bfloat16(parameter: Tensor) -> Tensor:
    """A bfloat16 copy, never the same storage."""
    return parameter.detach().to(torch.bfloat16, copy=True)


def _check_arguments(model: PreTrainedModel, group_size: int) -> None:
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers PreTrainedModel, got {type(model).__name__}")
    if not isinstance(group_size, int):
        raise TypeError(f"group_size must be an int, got {group_size!r}")
    if group_size not in GROUP_SIZES:
        raise ValueError(
            f"group_size must be one of {', '.join(map(str, GROUP_SIZES))}, got {group_size}"
        )
    elsewhere = {str(p.device) for p in model.parameters()} - {"cpu"}
    if elsewhere:
        raise ValueError(
            f"model must be on the CPU, where the int4 kernel runs, got a model on "
            f"{', '.join(sorted(elsewhere))}: quantise model.cpu(), or use a smaller model "
            f"as the draft on that device"
        )


def _check_kernel() -> None:
    names = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
    missing = [name for name in names if not hasattr(torch.ops.aten, name)]
    if missing:
        raise RuntimeError(
            f"torch {torch.__version__} lacks aten::{', aten::'.join(missing)}: "
            f"int4 weights on the CPU need torch 2.6 or later"
        )
