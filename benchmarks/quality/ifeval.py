"""IFEval (Zhou et al. 2023): prompts whose instructions a program can check.

The checks are those of the lm-evaluation-harness, the prompts google's: neither is ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cactus_theory._validate import is_integer

INSTALL = "pip install 'cactus-speculative[lm-eval]'"
FIELDS = ("key", "prompt", "instruction_id_list", "kwargs")


def load_prompts(path: str | Path | None = None) -> list[dict[str, Any]]:
    """Prompts in their own order, from a file of JSON lines or from the hub (google/IFEval).

    Raises
    ------
    OSError
        If the file, or the hub, cannot be read.
    ModuleNotFoundError
        If the hub is asked, and the package datasets is missing.
    ValueError
        If the file holds no IFEval prompts.
    """
    if path is None:
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"the hub's prompts need datasets: {INSTALL}") from error
        return [dict(row) for row in load_dataset("google/IFEval", split="train")]
    lines = Path(path).read_text(encoding="utf-8").split("\n")  # texts may hold other line ends
    prompts: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
            _check(prompt)
            if prompt["key"] in prompts:
                raise ValueError(f"key {prompt['key']} was there before")
        except ValueError as error:
            raise ValueError(
                f"line {number} of {path} must be an IFEval prompt: {error}"
            ) from error
        prompts[prompt["key"]] = prompt
    if not prompts:
        raise ValueError(f"{path} must hold IFEval prompts, one JSON object a line, got none")
    return list(prompts.values())


def _check(prompt: Any) -> None:
    if not isinstance(prompt, dict) or not all(field in prompt for field in FIELDS):
        raise ValueError(f"it must be an object with {', '.join(FIELDS)}")
    key, text, names, options = (prompt[field] for field in FIELDS)
    if not is_integer(key) or key < 0:
        raise ValueError(f"its key must be an integer >= 0, got {key!r}")
    if not isinstance(text, str) or not text:
        raise ValueError(f"its prompt must be a text, got {text!r}")
    if not names or not isinstance(options, list) or len(options) != len(names):
        raise ValueError("it must have instructions, and kwargs for each")


def ifeval_checks() -> Callable[[Mapping[str, Any], str], dict[str, Sequence[bool]]]:
    """The function from a prompt and an answer to what it follows, by metric.

    Metrics of instructions have an entry for each, metrics of prompts one. Loose checks also try
    the answer without its first or last line and without asterisks. Languages are guessed with a
    fixed seed, so that an answer is always judged alike.

    Raises
    ------
    ModuleNotFoundError
        If lm_eval, or what its IFEval needs, is missing.
    """
    try:
        from langdetect import DetectorFactory  # pyright: ignore[reportMissingImports]
        from lm_eval.tasks.ifeval.utils import (  # pyright: ignore[reportMissingImports]
            process_results,
        )
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"IFEval's checks need lm_eval: {INSTALL} ({error})") from error
    DetectorFactory.seed = 0

    def checks(prompt: Mapping[str, Any], answer: str) -> dict[str, Sequence[bool]]:
        try:
            found = process_results(prompt, [answer])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"lm_eval cannot check the prompt {prompt['key']}: {error!r}"
            ) from error
        return {name: kept if isinstance(kept, list) else [kept] for name, kept in found.items()}

    return checks
