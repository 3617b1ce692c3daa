"""A model's context length, and the lengths where its rotary frequencies change."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def context_length(model: PreTrainedModel) -> int | None:
    """Number of positions the model was made for, if its configuration says.

    ``max_position_embeddings``, or under YaRN, whose configurations often leave that at the length
    of the pretraining, ``factor * original_max_position_embeddings`` where this is more. Other
    scalings are not multiplied in: a linear factor is commonly part of ``max_position_embeddings``
    already, and dynamic NTK changes the frequencies with every token beyond it.
    """
    config: Any = model.config.get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        return None
    extended = [
        int(rope["factor"] * rope.get("original_max_position_embeddings", length))
        for rope in _ropes(model)
        if rope["rope_type"] == "yarn" and "factor" in rope
    ]
    return max([length, *extended]) if len(extended) == len(_ropes(model)) else length


def switches(model: PreTrainedModel) -> list[int]:
    """Lengths in tokens beyond which all rotary frequencies change (longrope)."""
    limits = {
        rope["original_max_position_embeddings"]
        for rope in _ropes(model)
        if rope["rope_type"] == "longrope" and rope.get("original_max_position_embeddings")
    }
    return sorted(limits)


def follow_length(model: PreTrainedModel) -> bool:
    """Whether any rotary frequencies depend on the last position that is read."""
    return not {"dynamic", "longrope"}.isdisjoint(rope["rope_type"] for rope in _ropes(model))


def check_switches(model: PreTrainedModel, slots: int) -> None:
    """Raise ValueError where the longest row would change the rotary frequencies of all."""
    limit = min(switches(model), default=slots)
    if slots > limit:
        raise ValueError(
            f"{type(model).__name__} cannot decode several rows at once beyond {limit} tokens, "
            f"where its rotary frequencies depend on the longest row, and {slots} may be read; "
            "use batch_size=1, or a shorter prompt and max_new_tokens"
        )


def _ropes(model: PreTrainedModel) -> list[dict[str, Any]]:
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    nested = (rope,) if "rope_type" in rope else rope.values()
    return [found for found in nested if isinstance(found, dict) and "rope_type" in found]
