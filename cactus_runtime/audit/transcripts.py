"""Transcripts as JSON lines, and which of them can be scored. Knows a tokenizer, no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from cactus_theory._validate import is_integer


class Scorable(NamedTuple):
    """The ids of a prompt and of what was sampled after it."""

    prompt_ids: list[int]
    token_ids: list[int]


@dataclass(frozen=True)
class Prepared:
    """Transcripts that can be scored, and why others cannot.

    Attributes
    ----------
    samples : list of Scorable
    dropped : Counter
        Number of samples dropped, by reason.

    Examples
    --------
    >>> Prepared([], Counter({"the text is empty": 2})).dropped.total()
    2
    """

    samples: list[Scorable]
    dropped: Counter[str]


def read_transcripts(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The transcripts of a file of JSON lines; empty lines are skipped.

    Parameters
    ----------
    lines : iterable of str

    Returns
    -------
    list of dict

    Raises
    ------
    ValueError
        Naming the line that is no transcript.

    Examples
    --------
    >>> read_transcripts(['{"prompt": "dog:", "text": " a cat"}'])
    [{'prompt': 'dog:', 'text': ' a cat'}]
    >>> read_transcripts(['{"prompt": "dog:"}'])
    Traceback (most recent call last):
    ...
    ValueError: line 1 must have token_ids or text, got prompt
    """
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} must be a JSON object, got {line[:40]!r}") from error
        _check(data, number)
        found.append(data)
    return found


def _check(data: Any, number: int) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"line {number} must be a JSON object, got {str(data)[:40]!r}")
    got = ", ".join(map(str, data)) or "nothing"
    if not {"prompt", "prompt_ids"} & data.keys():
        raise ValueError(f"line {number} must have prompt or prompt_ids, got {got}")
    if not {"token_ids", "text"} & data.keys():
        raise ValueError(f"line {number} must have token_ids or text, got {got}")
    for name in ("prompt", "text"):
        if name in data and not isinstance(data[name], str):
            raise ValueError(f"{name} of line {number} must be a text, got {data[name]!r}")
    for name in ("prompt_ids", "token_ids"):
        ids = data.get(name, [])
        if not isinstance(ids, list) or not all(is_integer(x) and x >= 0 for x in ids):
            raise ValueError(f"{name} of line {number} must be a list of token ids, got {ids!r}")


def prepare(
    transcripts: Iterable[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    vocabulary: int,
) -> Prepared:
    """The ids of each transcript, where they are certain.

    Ids that do not decode to the text were not all reported: a server may give only the last id
    of a character that is made of several tokens. Such a sample is dropped. A text without ids is
    tokenised after its prompt; it is dropped if that changes the prompt's ids or does not decode
    to the same text. Its ids are then a guess: a sampler may spell a text in other tokens.

    Parameters
    ----------
    transcripts : iterable of mappings
        With "prompt" or "prompt_ids", and "token_ids" or "text" or both.
    tokenizer : PreTrainedTokenizerBase
    vocabulary : int
        Width of the target.

    Returns
    -------
    Prepared

    Raises
    ------
    ValueError
        If an id lies outside the vocabulary.

    Examples
    --------
    >>> from cactus_runtime import load_pair
    >>> pair = load_pair("tiny")
    >>> told = {"prompt": "dog:", "text": " a cat"}
    >>> prepare([told], pair.tokenizer, vocabulary=pair.target.config.vocab_size).dropped.total()
    0
    """
    samples, dropped = [], Counter()
    for transcript in transcripts:
        found = _ids(transcript, tokenizer)
        if isinstance(found, str):
            dropped[found] += 1
            continue
        beyond = [x for x in (*found.prompt_ids, *found.token_ids) if x >= vocabulary]
        if beyond:
            raise ValueError(
                f"token ids must lie in the target's vocabulary of {vocabulary}, got {beyond[0]}: "
                "the transcripts are those of a model with another tokenizer"
            )
        samples.append(found)
    return Prepared(samples, dropped)


def _ids(transcript: Mapping[str, Any], tokenizer: Any) -> Scorable | str:
    text, ids = transcript.get("text"), transcript.get("token_ids")
    prompt = transcript.get("prompt_ids")
    if prompt is None:
        prompt = tokenizer(transcript["prompt"])["input_ids"]
    if not prompt:
        return "the prompt has no tokens"
    if ids is not None:
        if text is not None and not _same_text(ids, text, tokenizer):
            return "the ids do not decode to the text"
        return Scorable(list(prompt), list(ids)) if ids else "the text is empty"
    if not text:
        return "the text is empty"
    whole = tokenizer(tokenizer.decode(prompt) + text)["input_ids"]
    if "prompt" in transcript:
        whole = tokenizer(transcript["prompt"] + text)["input_ids"]
    if whole[: len(prompt)] != list(prompt):
        return "the text changes the ids of its prompt"
    if not _same_text(whole[len(prompt) :], text, tokenizer):
        return "the text does not give back its ids"
    return Scorable(list(prompt), whole[len(prompt) :])


def _same_text(ids: list[int], text: str, tokenizer: Any) -> bool:
    """Whether the ids are those of a text, with or without the marks of its end."""
    clean = {"clean_up_tokenization_spaces": False}
    return text in (
        tokenizer.decode(ids, skip_special_tokens=True, **clean),
        tokenizer.decode(ids, **clean),
    )
