"""Loads models by name, and checks that target and draft fit together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    FileMetadataError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.damaged import DAMAGED, pointer_in, why_unreadable
from cactus_runtime.models.dtype import chosen_dtype, dtype_name
from cactus_runtime.models.kv_cache import vocabulary_size
from cactus_runtime.models.probe import probe
from cactus_runtime.models.quiet import no_progress_bars
from cactus_runtime.models.supported import check_supported
from cactus_runtime.pairs import PAIRS, Pair, load_pair
from cactus_runtime.proposal import Drafter
from cactus_theory._validate import is_integer

_PATIENCE = 5.0  # seconds for the hub's first answer
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
    dtype: str | torch.dtype | None = None,
) -> tuple[PreTrainedModel, PreTrainedModel | Drafter | None, PreTrainedTokenizerBase | None]:
    """Load models given by name, check that they share a tokenizer, and return it."""
    _check_device(device)
    place = str(device or "cpu")
    chosen = None if dtype is None else chosen_dtype(dtype, device=place)
    if isinstance(target, str) and target in PAIRS and not Path(target).is_dir():
        target = load_pair(target, device=place, dtype=chosen or "auto")
    if isinstance(target, Pair):
        draft = target.draft if draft is None else draft
        tokenizer = target.tokenizer if tokenizer is None else tokenizer
        target = target.target
    if isinstance(draft, str) and draft in PAIRS and not Path(draft).is_dir():
        draft = load_pair(draft, device=place, dtype=chosen or "auto").draft
    model, found = _load("target", target, device, chosen)
    if chosen not in (None, model.dtype):
        raise ValueError(
            f"dtype={dtype_name(chosen)!r} is for models given by name, and the loaded target "
            f"is {dtype_name(model.dtype)}; load it in the type you want"
        )
    tokenizer = tokenizer if tokenizer is not None else found
    if draft is None or (isinstance(draft, Drafter) and not isinstance(draft, PreTrainedModel)):
        return model, draft, tokenizer
    draft_model, draft_tokenizer = _load("draft", draft, device, chosen)
    _check_same_tokenizer(tokenizer, draft_tokenizer)
    check_together(model, draft_model)
    return model, draft_model, tokenizer


def check_together(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise ValueError if two models differ in device, or in width by more than padding."""
    widths = vocabulary_size(target), vocabulary_size(draft)
    if abs(widths[0] - widths[1]) >= _PADDING:
        raise ValueError(
            f"target and draft must share a tokenizer, but their vocabularies are {widths[0]} "
            f"and {widths[1]} wide, which differ by more than padding"
        )
    if draft.device != target.device:
        raise ValueError(
            f"draft must be on the target's device {target.device}, got {draft.device}"
        )


def eos_token_ids(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    chosen: int | Sequence[int] | None,
) -> frozenset[int]:
    """Tokens that end a text: the given ones, else the model's own, else the tokenizer's."""
    ids: Any = chosen
    if ids is None:
        ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    if ids is None:
        return frozenset()
    ids = ids if isinstance(ids, Sequence) and not isinstance(ids, str) else [ids]
    for token in ids:
        if not is_integer(token) or token < 0:
            raise ValueError(f"eos_token_id must be token ids, got {token!r}")
    return frozenset(map(int, ids))


def _load(
    role: str, model: Any, device: str | torch.device | None, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    model = _within_adapters(role, model)
    if isinstance(model, PreTrainedModel):
        check_supported(model, role)
        if device is not None and torch.device(device) != model.device:
            raise ValueError(f"{role} is on {model.device}, not on device={str(device)!r}")
        probe(model, role)
        return model, None
    if not isinstance(model, (str, Path)):
        wanted = "a name, a folder, a loaded model" + (
            " or a bundled pair" if role == "target" else " or an object with a propose method"
        )
        raise TypeError(f"{role} must be {wanted}, got {type(model).__name__}")
    loaded, tokenizer = _from_name(role, str(model), dtype)
    loaded = loaded.to(torch.device(device or "cpu")).eval()
    check_supported(loaded, role)
    probe(loaded, role)
    return loaded, tokenizer


def _from_name(
    role: str, name: str, dtype: torch.dtype | None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """A model with all its weights, and its tokenizer, from a folder or the hub."""
    with no_progress_bars():
        try:
            place = name if Path(name).is_dir() or _hub_answers(name) else _cached(name)
            found: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=dtype or "auto", output_loading_info=True
            )
            loaded, report = found
            tokenizer = AutoTokenizer.from_pretrained(place)
        except DAMAGED as error:
            raise ModelNotFoundError(why_unreadable(role, name, error)) from error
        except (OSError, ValueError) as error:
            if pointer_in(name):
                raise ModelNotFoundError(why_unreadable(role, name, error)) from error
            raise ModelNotFoundError(
                f"{role}={name!r} is not a bundled pair ({', '.join(PAIRS)}), nor a model "
                f"folder with its tokenizer, nor available from the hub: {_first_line(error)}"
            ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(
            f"{role}={name!r} must have all weights of {type(loaded).__name__}, but its checkpoint "
            f"lacks {len(missing)}, {missing[0]} among them, which would be random; use a "
            "complete checkpoint of a causal language model"
        )
    return loaded, tokenizer


def _hub_answers(name: str) -> bool:
    """Whether the hub answers at all; from_pretrained would retry for a long time."""
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_PATIENCE)
    except (HfHubHTTPError, HFValidationError, FileMetadataError):
        return True  # an error that from_pretrained explains
    except Exception:  # from whichever library makes the connection
        return False
    return True


def _cached(name: str) -> str:
    """The folder with an earlier download of a model."""
    try:
        return snapshot_download(name, local_files_only=True)
    except LocalEntryNotFoundError as error:
        raise OSError("it does not answer, and no copy was downloaded before") from error


def _within_adapters(role: str, model: Any) -> Any:
    """The model inside a PEFT model, if decoding it applies the adapters."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return model
    config = model.active_peft_config
    kind = config.peft_type.value
    if config.is_prompt_learning:
        reason = f"puts a learned prompt ({kind}) before them"
    elif kind == "XLORA" or getattr(config, "alora_invocation_tokens", None):
        reason = f"switches adapters ({kind}) by what it reads"
    else:
        return model.get_base_model()  # its layers contain the active adapters
    raise TypeError(
        f"{role} must compute its logits from token ids alone, but this {type(model).__name__} "
        f"{reason}; use an adapter of weights, such as LoRA"
    )


def _check_device(device: str | torch.device | None) -> None:
    try:
        kind = torch.device(device or "cpu").type
    except RuntimeError as error:
        raise ValueError(f"device must be one of torch's, got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={str(device)!r} needs a CUDA device, and torch finds none")


def _check_same_tokenizer(
    tokenizer: PreTrainedTokenizerBase | None, draft_tokenizer: PreTrainedTokenizerBase | None
) -> None:
    if tokenizer is None or draft_tokenizer is None:
        return
    ours, theirs = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    wrong = sum(ours.get(token) != index for token, index in theirs.items())
    if wrong:
        raise ValueError(
            "target and draft must share a tokenizer, but "
            f"{wrong} of the draft's {len(theirs)} tokens are not the target's"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
