"""Models to time: a bundled pair, or any configuration with random weights and a set agreement."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from cactus_runtime.context import vocabulary_size


def random_pair(
    target_config: str | Path,
    draft_config: str | Path,
    *,
    agreement: float,
    device: str,
    dtype: torch.dtype,
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two models of given shapes and random weights, whose laws agree by a set amount.

    All of each model is computed, and its logits are then replaced: those of the draft by the
    logits of a fixed law p, those of the target by the logits of q with sum_x min(p, q) equal to
    `agreement`. So time is that of the shapes, and acceptance is known.

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
        If the agreement has no meaning, or the vocabularies differ in width.
    """
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement must lie in [0, 1], got {agreement!r}")
    models = [_random_model(config, device, dtype) for config in (target_config, draft_config)]
    widths = [vocabulary_size(model) for model in models]
    if widths[0] != widths[1]:
        raise ValueError(f"target and draft must have one vocabulary, got widths {widths}")
    draft_law, target_law = synthetic_laws(widths[0], agreement)
    for model, law in zip(models, (target_law, draft_law), strict=True):
        _replace_logits(model, law.log().to(device=device, dtype=dtype))
    return models[0], models[1]


def synthetic_laws(size: int, agreement: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Laws p and q of `size` tokens with sum_x min(p, q) = agreement; both peaked, as texts are.

    Examples
    --------
    >>> p, q = synthetic_laws(1000, 0.75)
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


def _random_model(config: str | Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    found: Any = copy.deepcopy(AutoConfig.from_pretrained(str(config)))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(found, dtype=dtype)
    return model.eval().requires_grad_(False)


def _replace_logits(model: PreTrainedModel, logits: torch.Tensor) -> None:
    head: Any = model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: logits.expand_as(output))
