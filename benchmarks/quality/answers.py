"""Answers of all arms to all prompts, kept in a file to which one line is added for each.

A run that was interrupted goes on where it stopped. An answer depends on its arm, its prompt and
the seed, and not on what else is decoded, but for the last bits of kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.quality.arms import Arm
from cactus_runtime.bench.models import chat_ids
from cactus_runtime.decoder import Decoder
from cactus_runtime.request import Prompt, Request
from cactus_runtime.result.strict_json import strict_json
from cactus_runtime.sampling import SamplingParams

_PROMPTS_AT_ONCE = 16  # finished under all arms before the next begin, so that a part is a whole


@dataclass(frozen=True)
class Settings:
    """What an answer depends on besides its arm and its prompt."""

    num_draft_tokens: int
    max_new_tokens: int
    sampling: SamplingParams
    seed: int

    def request(self, arm: Arm, key: int, prompt: Prompt) -> Request:
        """The same randomness for all arms."""
        return Request(
            prompt,
            rule=arm.rule,
            num_draft_tokens=self.num_draft_tokens if arm.speculative else 0,
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            number=key,
        )


def write_answers(
    path: Path,
    decoder: Decoder,
    prompts: Sequence[Mapping[str, Any]],
    arms: Mapping[str, Arm],
    settings: Settings,
    *,
    batch_size: int,
) -> None:
    """Add to the file what is missing; Ctrl-C loses no more than the answers under way."""
    tokenizer: Any = decoder.tokenizer
    jobs = [(name, prompt) for prompt in prompts for name in arms]
    done = _done(path, prompts, arms)
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        path.open("a", encoding="utf-8") as file,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # which a fall of the machine took
        task = progress.add_task("answers", total=len(jobs), completed=len(done))
        step = _PROMPTS_AT_ONCE * len(arms)
        for start in range(0, len(jobs), step):
            some = [
                (name, prompt)
                for name, prompt in jobs[start : start + step]
                if (name, prompt["key"]) not in done
            ]
            if not some:
                continue
            requests = [
                settings.request(arms[name], prompt["key"], chat_ids(tokenizer, prompt["prompt"]))
                for name, prompt in some
            ]
            for index, result in decoder.batch(requests, batch_size=batch_size).completed():
                name, prompt = some[index]
                line = {"arm": name, "key": prompt["key"], "asked": digest(prompt)}
                line["answer"] = result.text
                file.write(strict_json(line | result.sums()) + "\n")
                file.flush()
                progress.advance(task)


def digest(prompt: Mapping[str, Any]) -> str:
    """By which an answer knows its prompt.

    Examples
    --------
    >>> digest({"prompt": "dog:"}) == digest({"prompt": "dog:", "key": 1}) != digest({"prompt": ""})
    True
    """
    return blake2b(prompt["prompt"].encode(), digest_size=8).hexdigest()


def _done(
    path: Path, prompts: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]
) -> set[tuple[str, int]]:
    """Arm and key of what is answered, if by these arms."""
    done = set()
    for line in answers_to(prompts, path):
        name = line["arm"]
        if name not in arms or line["rule"] != str(arms[name].rule):
            raise ValueError(f"{path} has answers of {name!r} by {line['rule']}, not asked for now")
        done.add((name, line["key"]))
    return done


def answers_to(prompts: Sequence[Mapping[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """The lines that answer these prompts.

    Raises
    ------
    ValueError
        If a line is not one of ours, or answers another prompt of the same key.
    """
    asked = {prompt["key"]: digest(prompt) for prompt in prompts}
    for line in read_answers(path):
        key = line["key"]
        if key in asked and line["asked"] != asked[key]:
            raise ValueError(f"{path} has an answer to another prompt of key {key}")
        if key in asked:
            yield line


def read_answers(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the file, none if there is no file.

    Raises
    ------
    ValueError
        If a line is not one of ours; say the last, cut short when a machine went down.
    """
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
        try:
            found = json.loads(line)
            hash(tuple(found[name] for name in ("arm", "key", "asked", "answer", "rule")))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} must be an answer; remove it if it was cut short"
            ) from error
        yield found
