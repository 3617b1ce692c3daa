"""From WordNet's data files to lines of text, a tokenizer, and rows of tokens."""

from __future__ import annotations

import random
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END = "<|endoftext|>"
FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
HELD_OUT_EVERY = 50


class TrainingError(RuntimeError):
    """A run that cannot start or go on; the message says what to do about it."""


def read_lines(corpus: Path) -> list[str]:
    """Read WordNet's data files as lines `lemma: gloss`, one per sense, in the files' order.

    Parameters
    ----------
    corpus
        The folder that holds `data.noun`, `data.verb`, `data.adj` and `data.adv`.

    Raises
    ------
    TrainingError
        If one of the files is missing.
    """
    missing = [name for name in FILES if not (corpus / name).is_file()]
    if missing:
        raise TrainingError(
            f"{corpus} has no {', '.join(missing)}. On Debian or Ubuntu run `apt-get install"
            " wordnet-base` and pass --corpus /usr/share/wordnet; elsewhere unpack WordNet 3.0"
            " from https://wordnet.princeton.edu/download and pass its folder `dict`."
        )
    texts = ((corpus / name).read_text(encoding="utf-8").splitlines() for name in FILES)
    return [sense(line) for text in texts for line in text if not line.startswith("  ")]


def sense(record: str) -> str:
    """Turn one record of a WordNet data file into the line the models learn.

    Examples
    --------
    >>> sense("02084071 05 n 02 hot_dog 0 weenie 0 000 | a frankfurter  ")
    'hot dog: a frankfurter'
    """
    head, gloss = record.split(" | ", 1)
    lemma = re.sub(r"\((a|p|ip)\)$", "", head.split()[4]).replace("_", " ")
    return f"{lemma}: {gloss.strip()}"


def learn_tokenizer(lines: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE tokenizer whose token 0 ends (and so also begins) a line."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )


def pack(lines: list[list[int]], length: int) -> torch.Tensor:
    """Lay tokenized lines end to end in rows; each row begins where a line begins.

    A line cut by the end of a row begins the next one again; what does not fill a row is left.

    Examples
    --------
    >>> pack([[1, 2, 0], [3, 4, 0], [5, 6, 0]], length=4).tolist()
    [[1, 2, 0, 3], [3, 4, 0, 5]]
    """
    rows, row = [], []
    for line in lines:
        row = row + line
        if len(row) >= length:
            rows.append(row[:length])
            row = line if len(row) > length else []
    if not rows:
        raise TrainingError(f"the corpus is too small: it fills no row of {length} tokens")
    return torch.tensor(rows)


def split(
    lines: list[str], tokenizer: PreTrainedTokenizerBase, *, length: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows to train on and the held-out rows (one line in fifty)."""
    tokens = tokenizer([line + END for line in lines])["input_ids"]
    held_out = tokens[::HELD_OUT_EVERY]
    kept = [line for i, line in enumerate(tokens) if i % HELD_OUT_EVERY]
    random.Random(seed).shuffle(kept)
    random.Random(seed).shuffle(held_out)
    return pack(kept, length), pack(held_out, length)
