"""Models to time: a bundled pair, or a configuration with random weights and a chosen agreement."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.kv_cache import vocabulary_size


def random_pair(
    target_config: str | Path,
    draft_config: str | Path,
    *,
    agreement: float,
    device: str,
    dtype: torch.dtype,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two models of given shapes and random weights, whose distributions overlap as chosen.

    Each model is computed in full, and its logits are then replaced: those of the draft by the
    logits of a fixed distribution p, those of the target by the logits of q with sum_x min(p, q)
    equal to `agreement`. So the time is that of the shapes, and the acceptance rate is known.

    Parameters
    ----------
    target_config, draft_config : str or Path
        A folder, file or hub name of a transformers configuration.
    agreement : float
        In [0, 1]: the acceptance rate of plain speculative sampling at temperature 1.
    device : str
    dtype : torch.dtype

    Returns
    -------
    target, draft : PreTrainedModel

    Raises
    ------
    ValueError
        If the agreement is not in [0, 1], or the vocabularies differ in width.
    """
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement must lie in [0, 1], got {agreement!r}")
    models = [_random_model(config, device, dtype) for config in (target_config, draft_config)]
    widths = [vocabulary_size(model) for model in models]
    if widths[0] != widths[1]:
        raise ValueError(f"target and draft must have one vocabulary, got widths {widths}")
    draft_law, target_law = synthetic_distributions(widths[0], agreement)
    for model, law in zip(models, (target_law, draft_law), strict=True):
        _replace_logits(model, law.log().to(device=device, dtype=dtype))
    return models[0], models[1]


def synthetic_distributions(size: int, agreement: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Peaked distributions p and q of `size` tokens with sum_x min(p, q) = agreement.

    Examples
    --------
    >>> p, q = synthetic_distributions(1000, 0.75)
    >>> round(float(torch.minimum(p, q).sum()), 6), round(float(p.sum()), 6)
    (0.75, 1.0)
    """
    ranks = torch.arange(1, size // 2 + 1, dtype=torch.float64)
    head = 1 / ranks
    head = head / head.sum()
    none = torch.zeros(size - len(head), dtype=torch.float64)
    shared = torch.cat([head, none])
    rest = shared.flip(0)  # on the other half
    return shared, agreement * shared + (1 - agreement) * rest


def chat_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """A text as the first message of a chat, or unchanged where there is no chat template.

    Examples
    --------
    >>> from cactus_runtime.pairs import load_pair
    >>> len(chat_ids(load_pair("tiny").tokenizer, "dog:"))
    3
    """
    found: Any
    if not getattr(tokenizer, "chat_template", None):
        found = tokenizer(text)["input_ids"]
    else:
        found = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
    return list(found)


def _random_model(config: str | Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    found: Any = copy.deepcopy(AutoConfig.from_pretrained(str(config)))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(found, dtype=dtype)
    return model.eval().requires_grad_(False)


def _replace_logits(model: PreTrainedModel, logits: torch.Tensor) -> None:
    head: Any = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: logits.expand_as(output))
