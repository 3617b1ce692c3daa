"""Who decodes: names to loaded models, and the checks that target and draft belong together."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.damaged import DAMAGED, pointer_in, why_unreadable
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.quiet import no_progress_bars
from cactus_runtime.pairs import PAIRS, Pair, load_pair
from cactus_runtime.proposal import Drafter

_PADDING = 1024  # vocabularies are padded by less than this, to a round number


class ModelNotFoundError(OSError):
    """A model was named that is not bundled and cannot be loaded from a folder or the hub.

    Examples
    --------
    >>> issubclass(ModelNotFoundError, OSError)
    True
    """


def resolve(
    target: str | Path | Pair | PreTrainedModel,
    draft: str | Path | PreTrainedModel | Drafter | None,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | torch.device | None,
) -> tuple[PreTrainedModel, PreTrainedModel | Drafter | None, PreTrainedTokenizerBase | None]:
    """Load what is named, check that target and draft share a tokenizer, say which it is."""
    _check_device(device)
    if isinstance(target, str) and target in PAIRS and not Path(target).is_dir():
        target = load_pair(target, device=str(device or "cpu"))
    if isinstance(target, Pair):
        draft = target.draft if draft is None else draft
        tokenizer = target.tokenizer if tokenizer is None else tokenizer
        target = target.target
    if isinstance(draft, str) and draft in PAIRS and not Path(draft).is_dir():
        draft = load_pair(draft, device=str(device or "cpu")).draft
    model, found = _load("target", target, device)
    tokenizer = tokenizer if tokenizer is not None else found
    if draft is None or (isinstance(draft, Drafter) and not isinstance(draft, PreTrainedModel)):
        return model, draft, tokenizer
    draft_model, draft_tokenizer = _load("draft", draft, device)
    _check_same_tokenizer(model, draft_model, tokenizer, draft_tokenizer)
    if draft_model.device != model.device:
        raise ValueError(
            f"draft must be on the target's device {model.device}, got {draft_model.device}"
        )
    return model, draft_model, tokenizer


def context_length(model: PreTrainedModel) -> int | None:
    """Number of positions the model was made for, if its configuration tells."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def eos_token_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    chosen: int | Sequence[int] | None,
) -> frozenset[int]:
    """Tokens that end a text: those chosen, else the model's own, else the tokenizer's."""
    ids: Any = chosen
    if ids is None:
        ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    ids = ids if isinstance(ids, Sequence) and not isinstance(ids, str) else [ids]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, numbers.Integral) or token < 0:
            raise ValueError(f"eos_token_id must be token ids, got {token!r}")
    return frozenset(map(int, ids))


def _load(
    role: str, model: Any, device: str | torch.device | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    if isinstance(model, PreTrainedModel):
        _check_causal(role, model)
        _check_rewindable(role, model)
        if model.training:
            raise ValueError(f"{role} must be in evaluation mode: call its .eval() first")
        if device is not None and torch.device(device) != model.device:
            raise ValueError(f"{role} is on {model.device}, not on device={str(device)!r}")
        return model, None
    if not isinstance(model, (str, Path)):
        wanted = "a name, a folder, a loaded model" + (
            " or a bundled pair" if role == "target" else " or an object with a propose method"
        )
        raise TypeError(f"{role} must be {wanted}, got {type(model).__name__}")
    with no_progress_bars():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(str(model), dtype="auto")
            tokenizer = AutoTokenizer.from_pretrained(str(model))
        except DAMAGED as error:
            raise ModelNotFoundError(why_unreadable(role, model, error)) from error
        except (OSError, ValueError) as error:
            if pointer_in(model):
                raise ModelNotFoundError(why_unreadable(role, model, error)) from error
            raise ModelNotFoundError(
                f"{role}={str(model)!r} is not a bundled pair ({', '.join(PAIRS)}), nor a model "
                f"folder with its tokenizer, nor to be had from the hub: {_first_line(error)}"
            ) from error
    _check_causal(role, loaded)
    _check_rewindable(role, loaded)
    return loaded.to(torch.device(device or "cpu")).eval(), tokenizer


def _check_causal(role: str, model: PreTrainedModel) -> None:
    if model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(
            f"{role} must be a causal language model, one that transformers can generate with, "
            f"got {type(model).__name__}"
        )


def _check_device(device: str | torch.device | None) -> None:
    try:
        kind = torch.device(device or "cpu").type
    except RuntimeError as error:
        raise ValueError(f"device must be one of torch's, got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={str(device)!r} needs a CUDA device, and torch finds none")


def _check_rewindable(role: str, model: PreTrainedModel) -> None:
    if getattr(model, "_is_stateful", False):
        raise ValueError(
            f"{role} must be a model whose cache can be rewound, but {type(model).__name__} "
            "carries a recurrent state"
        )


def _check_same_tokenizer(target, draft, tokenizer, draft_tokenizer) -> None:
    if tokenizer is not None and draft_tokenizer is not None:
        ours, theirs = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
        wrong = sum(ours.get(token) != index for token, index in theirs.items())
        if wrong:
            raise ValueError(
                "target and draft must share a tokenizer, but "
                f"{wrong} of the draft's {len(theirs)} tokens are not the target's"
            )
    widths = vocabulary_size(target), vocabulary_size(draft)
    if abs(widths[0] - widths[1]) >= _PADDING:
        raise ValueError(
            f"target and draft must share a tokenizer, but their vocabularies are {widths[0]} "
            f"and {widths[1]} wide, more apart than padding explains"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
