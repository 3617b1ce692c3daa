"""Tiny models of any class of transformers, with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 7,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_model(
    kind: str = "LlamaForCausalLM",
    seed: int = 0,
    *,
    std: float | None = None,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    **settings: Any,
) -> PreTrainedModel:
    """A model in evaluation mode and without gradients; the seed decides its weights.

    Parameters
    ----------
    kind : str
        Its class.
    seed : int
    std : float, optional
        Of weights. Unless given, they are those of the class, which `initializer_range` scales:
        by default so small that the model hardly looks at its context.
    dtype : torch.dtype
    attention : str, optional
        "eager" or "sdpa".
    **settings
        Of the configuration, besides `SIZES` and instead of them.
    """
    made = getattr(transformers, kind)
    config = made.config_class(**{**SIZES, **settings})
    if attention is not None:
        config._attn_implementation = attention
    torch.manual_seed(seed)
    model = made(config)
    for weight in model.parameters():
        if std is not None and weight.ndim > 1:
            torch.nn.init.normal_(weight, std=std)
    return model.eval().requires_grad_(False).to(dtype)


def tiny_llama(
    seed: int, *, layers: int = 1, vocabulary: int = 7, **settings: Any
) -> PreTrainedModel:
    """A Llama whose weights are large enough that its context decides; see `tiny_model`."""
    sizes = {"num_hidden_layers": layers, "vocab_size": vocabulary, "initializer_range": 0.5}
    return tiny_model("LlamaForCausalLM", seed, **{**sizes, **settings})
