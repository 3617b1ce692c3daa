"""The table of a set of lm-evaluation-harness runs: ``python scripts/gather_results.py runs/*``.

A run is a folder with the harness's ``results_*.json`` (the newest counts) somewhere in it, and
``cactus.jsonl``, the log of its model ``cactus``. Prints Markdown: a row for each task of each
run, with its score, acceptance and charges. A sum that is null in the log is infinite.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG = "cactus.jsonl"
SUMMED = ("accepted", "blocks", "tokens", "judged", "total_variation", "kl_bound")
HEADER = (
    "| task | rule | drafts | samples | metric | score | accepted drafts per block "
    "| block efficiency | drafts kept | TV per token | KL per token, nats |\n"
    "|---|---|--:|--:|---|--:|--:|--:|--:|--:|--:|"
)


@dataclass(frozen=True)
class Row:
    """One task under one rule; `score` and `error` as fractions, `sums` over all answers."""

    task: str
    rule: str
    num_draft_tokens: int
    samples: int
    metric: str
    score: float
    error: float
    sums: dict[str, float]

    def __str__(self) -> str:
        total = self.sums
        cells = [
            self.task,
            self.rule,
            str(self.num_draft_tokens),
            str(self.samples),
            self.metric,
            f"{100 * self.score:.2f}"
            + (f" ± {100 * self.error:.2f}" if math.isfinite(self.error) else ""),
            _ratio(total["accepted"], total["blocks"], ".2f"),
            _ratio(total["tokens"], total["blocks"], ".2f"),
            _ratio(total["accepted"], total["judged"], ".1%"),
            _ratio(total["total_variation"], total["tokens"], ".4f"),
            _ratio(total["kl_bound"], total["tokens"], ".4f"),
        ]
        return "| " + " | ".join(cells) + " |"


def gather(folder: Path, metrics: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of a run; `metrics` are preferred over a task's first metric.

    Raises
    ------
    ValueError
        If the folder lacks a file, or its files do not belong together.
    """
    found = sorted(folder.rglob("results_*.json"), key=lambda path: path.name)
    if not found:
        raise ValueError(f"{folder} must hold the harness's results_*.json, and holds none")
    scores = json.loads(found[-1].read_text(encoding="utf-8"))
    answers = _answers(folder)
    for task, values in scores["results"].items():
        own = [answer for answer in answers if answer["task"] == task]
        if not own:  # a group of tasks, or one without generated text
            continue
        metric = _metric(values, metrics)
        samples = scores["n-samples"][task]["effective"]
        settings = {(answer["rule"], answer["num_draft_tokens"]) for answer in own}
        if len(settings) > 1 or len({answer["doc_id"] for answer in own}) != samples:
            raise ValueError(
                f"{folder / LOG} must be the log of one run over {samples} documents of {task}, "
                f"got {len({answer['doc_id'] for answer in own})} documents under "
                f"{', '.join(map(str, sorted(settings)))}"
            )
        ((rule, drafts),) = settings
        yield Row(
            task=task,
            rule=rule if drafts else "plain decoding",
            num_draft_tokens=drafts,
            samples=samples,
            metric=metric,
            score=values[metric],
            error=_number(values.get(metric.replace(",", "_stderr,", 1))),
            sums={
                name: sum(math.inf if answer[name] is None else answer[name] for answer in own)
                for name in SUMMED
            },
        )


def _answers(folder: Path) -> list[dict[str, Any]]:
    """Lines of the log; of a repeated answer, the last."""
    logs = list(folder.rglob(LOG))
    if len(logs) != 1:
        raise ValueError(f"{folder} must hold one {LOG}, and holds {len(logs)}")
    lines = map(json.loads, logs[0].read_text(encoding="utf-8").splitlines())
    return list({(x["task"], x["doc_id"], x["repeat"]): x for x in lines}.values())


def _metric(values: dict[str, Any], wanted: Sequence[str]) -> str:
    names = [
        name
        for name, value in values.items()
        if "," in name and "_stderr," not in name and isinstance(value, int | float)
    ]
    if not names:
        raise ValueError(f"a task must have a score, got {values}")
    return next(
        (name for name in names if name.split(",")[0] in wanted or name in wanted), names[0]
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _ratio(part: float, whole: float, form: str) -> str:
    return format(part / whole, form) if whole else "-"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="one for each run")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="preferred metric, with or without its filter; may be repeated",
    )
    options = parser.parse_args(arguments)
    try:
        rows = [row for folder in options.folders for row in gather(folder, options.metric)]
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    print(HEADER)
    for row in sorted(rows, key=lambda row: (row.task, row.num_draft_tokens)):
        print(row)


if __name__ == "__main__":
    main()
