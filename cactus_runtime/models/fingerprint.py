"""The properties of a model on which its caches, captured programs and probe depend."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedModel

_SETTINGS = ("vocab_size", "max_position_embeddings", "_attn_implementation", "layer_types")
_ADAPTERS = ("active_adapters", "disable_adapters", "merged")  # by PEFT's names


def fingerprint(model: Any) -> tuple[Any, ...]:
    """Equal before and after, if a model computes the same function of the same tensors.

    It detects tensors that were replaced, resized, moved or cast, adapters that were switched, and
    a few changed settings of the configuration. It does not detect values changed in place, which
    invalidate nothing that is stored.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> draft = load_pair("tiny").draft
    >>> before = fingerprint(draft)
    >>> _ = draft.resize_token_embeddings(1030)
    >>> fingerprint(draft) == before
    False
    """
    if not isinstance(model, PreTrainedModel):
        return (id(model),)
    config: Any = model.config.get_text_config()
    tensors = tuple(map(_identity, chain(model.parameters(), model.buffers())))
    settings = tuple(repr(getattr(config, name, None)) for name in _SETTINGS)
    adapters = tuple(
        repr([getattr(module, name, None) for name in _ADAPTERS])
        for module in model.modules()
        if hasattr(module, "disable_adapters") and not isinstance(module, PreTrainedModel)
    )
    return id(model), tensors, settings, adapters


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # others may have no storage
    place = tensor.data_ptr() if plain else id(tensor)
    return place, tensor.shape, tensor.dtype, tensor.device
