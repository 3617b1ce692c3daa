"""Reference texts that no model of a pair was trained on: a prompt, and how it really goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from cactus_runtime.bench.models import chat_ids
from scripts.train_tiny.text import END, HELD_OUT_EVERY, read_lines

_CALCULATOR = re.compile(r"<<[^>]*>>")  # annotations in GSM8K's answers, not part of the text


class Document(NamedTuple):
    """Token ids of a prompt, and of the text after it, its end-of-sequence token included."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]


def load_documents(path: Path, tokenizer: Any) -> list[Document]:
    """The documents of a file or folder, in its order.

    Parameters
    ----------
    path : Path
        A file of JSON lines with "question" and "answer", as GSM8K's: the question is the prompt,
        as the first message of a chat where the tokenizer has a template. Or a folder with
        WordNet's data files: the glosses held out when the pair tiny was trained, after "lemma:".
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ValueError
        If a line is no such object; naming it.
    TrainingError
        If the folder lacks a file.
    """
    if path.is_dir():
        lines = (line.partition(": ") for line in read_lines(path)[::HELD_OUT_EVERY])
        return [
            Document(_ids(tokenizer, f"{lemma}:"), _ids(tokenizer, f" {gloss}{END}"))
            for lemma, _, gloss in lines
        ]
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            asked = json.loads(line)
            question, answer = str(asked["question"]), str(asked["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} must be an object with question and answer"
            ) from error
        text = _ids(tokenizer, _CALCULATOR.sub("", answer))
        found.append(
            Document(tuple(chat_ids(tokenizer, question)), (*text, tokenizer.eos_token_id))
        )
    return found


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
