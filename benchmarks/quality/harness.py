"""Runs of the lm-evaluation-harness with its model ``cactus``, as answers of `summarise`.

A run is a folder with the harness's ``results_*.json`` and ``samples_*.jsonl`` (the newest count)
somewhere in it, and ``cactus.jsonl``, the model's log. A sum that the log has as null is infinite.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.quality.summary import summarise
from benchmarks.quality.table import table

LOG = "cactus.jsonl"
PLAIN = "plain decoding"
_SUMMED = ("tokens", "blocks", "judged", "accepted")
_SUMMED += ("acceptance_rate", "total_variation", "kl_bound")
_COSTS = ("acceptance_rate", "accepted_per_block", "block_efficiency", "drafts_kept")
_COSTS += ("total_variation_per_token", "kl_bound_per_token")


@click.command(context_settings={"show_default": True})
@click.argument(
    "folders",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--metric", multiple=True, help="Preferred to a task's first, with its filter or not."
)
def compare(folders: tuple[Path, ...], metric: tuple[str, ...]) -> None:
    """Compare runs of the lm-evaluation-harness, one in each of the FOLDERS, task by task.

    Each task has a table with a row for each run: its score, the difference from plain decoding
    where a run of that is given, and what the text was and cost.

    \b
    Example: python -m benchmarks.quality compare runs/* --metric prompt_level_strict_acc
    """
    by_task: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for line in read_run(folder):
            by_task.setdefault(line["task"], []).append(line)
    for task, lines in sorted(by_task.items()):
        metric_name = choose_metric(lines[0]["scores"], metric)
        named = name_arms(lines)
        plain = next((x["arm"] for x in named if x["num_draft_tokens"] == 0), None)
        found = summarise(named, lambda line: line["scores"], baseline=plain)
        click.echo(f"**{task}.** {table(found, {metric_name: metric_name}, _COSTS)}\n")


def read_run(folder: Path) -> Iterator[dict[str, Any]]:
    """What each document's answers earned and cost; the answers of one document are summed.

    Raises
    ------
    ValueError
        If the folder lacks a file, its files do not belong together, or a task has no score that
        is a mean over its documents.
    """
    path = _newest(folder, "results_*.json")
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    log = _log(folder)
    for task, values in results.items():
        own = [line for line in log if line["task"] == task]
        if not own:  # a group of tasks, or one without generated text
            continue
        samples = _newest(folder, f"samples_{glob.escape(task)}_????-??-??T*.jsonl")
        scores = _scores(samples, values)
        settings = {(line["rule"], line["num_draft_tokens"]) for line in own}
        documents = {line["doc_id"] for line in own}
        if len(settings) > 1 or documents != set(scores):
            raise ValueError(
                f"{folder / LOG} must be the log of one run over {len(scores)} documents of "
                f"{task}, got {len(documents)} documents under "
                f"{', '.join(map(str, sorted(settings)))}"
            )
        for document in sorted(documents):
            answers = [line for line in own if line["doc_id"] == document]
            yield {
                **answers[-1],
                **{name: _total(answers, name) for name in _SUMMED},
                "folder": folder,
                "key": document,
                "scores": scores[document],
            }


def name_arms(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with an "arm" each: rule and drafts, and the folder where two runs have the same.

    Examples
    --------
    >>> plain = {"folder": Path("a"), "rule": "SpeculativeSampling()", "num_draft_tokens": 0}
    >>> lines = [plain, plain | {"folder": Path("b"), "num_draft_tokens": 4}]
    >>> [line["arm"] for line in name_arms(lines)]
    ['plain decoding', 'SpeculativeSampling(), 4 drafts']
    """
    names = {}
    for line in lines:
        drafts = line["num_draft_tokens"]
        names[line["folder"]] = f"{line['rule']}, {drafts} drafts" if drafts else PLAIN
    alike = list(names.values())
    arms = {
        folder: name if alike.count(name) == 1 else f"{name} ({folder})"
        for folder, name in names.items()
    }
    named = [{**line, "arm": arms[line["folder"]]} for line in lines]
    return sorted(named, key=lambda line: line["num_draft_tokens"])


def choose_metric(scores: Mapping[str, Any], wanted: Sequence[str]) -> str:
    """The first metric that is wanted, with its filter or without; otherwise the first of all.

    Examples
    --------
    >>> scores = {"exact_match,strict": [1.0], "exact_match,flexible": [0.0]}
    >>> choose_metric(scores, ["exact_match,flexible"]), choose_metric(scores, ["f1"])
    ('exact_match,flexible', 'exact_match,strict')
    """
    matching = (x for x in scores if x in wanted or x.split(",")[0] in wanted)
    return next(matching, next(iter(scores)))


def _newest(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern), key=lambda path: path.name)
    if not found:
        raise ValueError(
            f"{folder} must hold the harness's {pattern}, and holds none (run it with "
            "--output_path and --log_samples)"
        )
    return found[-1]


def _log(folder: Path) -> list[dict[str, Any]]:
    """Lines of the log; of an answer that was given again, the last."""
    logs = list(folder.rglob(LOG))
    if len(logs) != 1:
        raise ValueError(f"{folder} must hold one {LOG}, and holds {len(logs)}")
    lines = map(json.loads, logs[0].read_text(encoding="utf-8").split("\n")[:-1])
    return list({(x["task"], x["doc_id"], x["repeat"]): x for x in lines}.values())


def _scores(path: Path, values: Mapping[str, Any]) -> dict[int, dict[str, list[float]]]:
    """By document and by metric what it earned, if the harness's score is the mean of that."""
    by_metric: dict[str, dict[int, list[float]]] = {}
    for text in path.read_text(encoding="utf-8").split("\n")[:-1]:
        line = json.loads(text)
        for metric in line["metrics"]:
            earned = line[metric] if isinstance(line[metric], list) else [line[metric]]
            name = f"{metric},{line['filter']}"
            by_metric.setdefault(name, {})[line["doc_id"]] = earned
    means = {
        name: earned
        for name, earned in by_metric.items()
        if _is_mean(values.get(name), [x for own in earned.values() for x in own])
    }
    if not means:
        raise ValueError(f"{path} must have a score that is a mean over documents, got {values}")
    documents = next(iter(means.values()))
    return {doc: {name: earned[doc] for name, earned in means.items()} for doc in documents}


def _is_mean(value: Any, earned: Sequence[Any]) -> bool:
    numbers = all(isinstance(x, int | float) for x in (value, *earned))
    return numbers and math.isclose(value, sum(earned) / len(earned), abs_tol=1e-9)


def _total(lines: Iterable[Mapping[str, Any]], name: str) -> float:
    return sum(math.inf if line[name] is None else line[name] for line in lines)
