"""A draft for any model: the model itself without some of its layers."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from transformers import PreTrainedModel

from cactus_runtime.cli.lists import Numbers


def without_layers(model: PreTrainedModel, dropped: Collection[int]) -> PreTrainedModel:
    """The model without some of its layers, as a draft for it; weights are shared, not copied.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder whose layers are ``model.model.layers``, as in Llama and its kin.
    dropped : collection of int
        Numbers of layers, from 0.

    Returns
    -------
    PreTrainedModel

    Raises
    ------
    ValueError
        If there are no such layers, or none would be left.

    Examples
    --------
    >>> from cactus_runtime.pairs import load_pair
    >>> target = load_pair("tiny").target
    >>> without_layers(target, [1]).config.num_hidden_layers, target.config.num_hidden_layers
    (3, 4)
    """
    config: Any = copy.deepcopy(model.config)
    count = config.num_hidden_layers
    kept = [layer for layer in range(count) if layer not in set(dropped)]
    if len(kept) + len(set(dropped)) != count or not kept:
        raise ValueError(f"dropped must be some of the {count} layers 0..., got {list(dropped)}")
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in kept]
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    shorter: Any = copy.deepcopy(model, memo)
    shorter.config = shorter.model.config = config
    shorter.model.layers = torch.nn.ModuleList(shorter.model.layers[layer] for layer in kept)
    for number, layer in enumerate(shorter.model.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                vars(module)["layer_idx"] = number
    return shorter


def dropped_layers() -> Numbers:
    """Numbers of layers in one option."""
    return Numbers(int, lambda layer: True, "integers")
