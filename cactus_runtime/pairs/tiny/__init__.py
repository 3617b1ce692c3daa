"""The tiny pair: two small Llama models that ship with the package, and their tokenizer.

Knows where the files of the pair are and how to read them quickly and quietly. The target has
2.0 million parameters and the draft 0.2 million; both continue lines such as `dog: a member of
the genus Canis`, in the style of WordNet's glosses, and end each with the tokenizer's EOS token.
Prompts end without a space (`dog:`). How the two were made is in the repository's
`scripts/train_tiny`, and the licence of the text they learned in `NOTICE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.quiet import no_progress_bars

FOLDER = Path(__file__).parent


def load_model(
    folder: Path, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Read one model of a pair from its folder, in eval mode and without gradients."""
    with no_progress_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=dtype, local_files_only=True
        )
    return model.to(device).eval().requires_grad_(False)


def load(
    *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Read the tiny pair from the files that ship with the package.

    Parameters
    ----------
    device
        Device of the weights.
    dtype
        The type of the weights; they are stored in bfloat16.

    Returns
    -------
    tuple
        The target, the draft and the tokenizer they share.

    Examples
    --------
    >>> target, draft, tokenizer = load()
    >>> target.num_parameters() // draft.num_parameters()
    9
    >>> tokenizer.decode(tokenizer("kindness:")["input_ids"])
    'kindness:'
    """
    target, draft = (
        load_model(FOLDER / name, device=device, dtype=dtype) for name in ("target", "draft")
    )
    tokenizer = AutoTokenizer.from_pretrained(str(FOLDER / "target"), local_files_only=True)
    return target, draft, tokenizer
