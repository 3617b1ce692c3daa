"""Which models can be decoded, judged by class and configuration;

`probe` detects more. Decoding needs a key-value cache that can be rewound. A model that carries any
other state from token to token (recurrent layers, convolutions, indexers) cannot be rewound and is
refused.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from transformers import PreTrainedModel

_MASKABLE = {"sdpa", "eager"}
_RAGGED_KINDS = {"full_attention", "sliding_attention"}
_LAYER_KINDS = {*_RAGGED_KINDS, "chunked_attention"}
_CACHE_ARGUMENTS = ("cache", "past_key_values")  # in different releases of transformers


def check_supported(model: PreTrainedModel, role: str) -> None:
    """Raise ValueError for a model that is known not to be supported.

    Examples
    --------
    >>> from transformers import MambaConfig, MambaForCausalLM
    >>> config = MambaConfig(vocab_size=7, hidden_size=8, num_hidden_layers=1, state_size=4)
    >>> check_supported(MambaForCausalLM(config).eval(), "target")
    Traceback (most recent call last):
    ValueError: target must be a model whose cache can be rewound, but MambaForCausalLM carries \
layers of kind ['linear_attention']; use a model all of whose layers are attention
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(
            f"{role} must be a causal language model, one that transformers can generate with, "
            f"got {name}"
        )
    if model.training:
        raise ValueError(f"{role} must be in evaluation mode: call its .eval() first")
    _check_place(model, role)
    other = _layer_kinds(model) - _LAYER_KINDS
    state = f"layers of kind {sorted(other)}" if other else "a recurrent state"
    if other or getattr(model, "_is_stateful", False):
        raise ValueError(
            f"{role} must be a model whose cache can be rewound, but {name} carries {state}; use "
            "a model all of whose layers are attention"
        )
    if cache_argument(model) is None:
        raise ValueError(
            f"{role} must be a model with a key-value cache, but the forward of {name} takes no "
            f"{' or '.join(_CACHE_ARGUMENTS)}; use a model of another class"
        )


def check_ragged(model: PreTrainedModel, role: str) -> None:
    """Raise ValueError if rows of different lengths cannot be read together by `model`."""
    config: Any = model.config.get_text_config()
    kinds = _layer_kinds(model)
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        reason = f"the forward of {name} takes no position_ids"
    elif config._attn_implementation not in _MASKABLE:
        reason = (
            f"its attention {config._attn_implementation!r} takes no mask per row; load it with "
            "attn_implementation='sdpa'"
        )
    elif not kinds <= _RAGGED_KINDS:
        reason = f"{name} has layers of kind {sorted(kinds - _RAGGED_KINDS)}"
    elif "local" in (getattr(config, "attention_layers", None) or ()):
        reason = f"{name} has layers with a window of their own, the same for all rows"
    elif getattr(config, "sliding_window", None) and not kinds and not _masks_windows(model):
        reason = f"{name} has a window in its configuration that its masks do not show"
    elif getattr(config, "alibi", False):
        reason = f"{name} biases its attention (ALiBi) by slots, the same for all rows"
    elif _counts_from_padding(model):
        reason = f"the positions of {name} do not count from 0"
    else:
        return
    raise_not_ragged(role, reason)


def raise_not_ragged(role: str, reason: str) -> None:
    """Raise the ValueError of a model that decodes one row at a time."""
    raise ValueError(
        f"the {role} cannot decode several rows at once, because {reason}; use batch_size=1"
    )


def cache_argument(model: PreTrainedModel) -> str | None:
    """The name of the forward's cache argument, if there is one; ``**kwargs`` do not count."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in parameters), None)


def _masks_windows(model: PreTrainedModel) -> bool:
    """Whether a class masks its window; Moshi has the setting but attends beyond it."""
    modules = [sys.modules.get(kind.__module__) for kind in type(model).__mro__]
    return any(hasattr(module, "create_sliding_window_causal_mask") for module in modules)


def _layer_kinds(model: PreTrainedModel) -> set[str]:
    return set(getattr(model.config.get_text_config(), "layer_types", None) or ())


def _check_place(model: PreTrainedModel, role: str) -> None:
    places = {str(parameter.device) for parameter in model.parameters()}
    if "meta" in places:
        raise ValueError(
            f"{role} must be in memory, but weights of {type(model).__name__} are offloaded or "
            "never loaded (device 'meta'); load it whole, without device_map or cpu_offload"
        )
    if len(places) > 1:
        raise ValueError(
            f"{role} must be on one device, got {type(model).__name__} on "
            f"{', '.join(sorted(places))}; load it with one device as its device_map"
        )


def _counts_from_padding(model: PreTrainedModel) -> bool:
    """Whether positions begin after a padding index, as RoBERTa's do."""
    return any(
        name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
        for name, module in model.named_modules()
    )
