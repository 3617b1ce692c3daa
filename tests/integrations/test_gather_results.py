"""The table of made-up runs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

GATHER = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "gather_results.py"))
LINE = {
    "task": "sums",
    "doc_id": 0,
    "repeat": 0,
    "num_draft_tokens": 10,
    "rule": "Cactus(delta=0.75)",
    "tokens": 30,
    "blocks": 10,
    "judged": 25,
    "accepted": 20,
    "total_variation": 0.6,
    "kl_bound": 1.2,
}
SCORES = {
    "alias": "sums",
    "exact_match,strict-match": 0.5,
    "exact_match_stderr,strict-match": 0.125,
    "exact_match,flexible-extract": 0.75,
    "exact_match_stderr,flexible-extract": "N/A",
}


def write(folder, lines, scores=SCORES, *, samples=2, stamp="2026-01-01", task="sums"):
    nested = folder / "model"
    nested.mkdir(parents=True, exist_ok=True)
    results = {"results": {task: scores}, "n-samples": {task: {"effective": samples}}}
    (nested / f"results_{stamp}.json").write_text(json.dumps(results))
    (folder / "cactus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def two():
    other = {"doc_id": 1, "tokens": 10, "blocks": 10, "judged": 15, "accepted": 0}
    return [LINE, {**LINE, **other, "total_variation": 0.2, "kl_bound": 0.4}]


def table(capsys, *arguments):
    GATHER["main"]([str(argument) for argument in arguments])
    return capsys.readouterr().out.splitlines()[2:]


def test_a_row_has_the_score_and_ratios_of_sums(tmp_path, capsys):
    """20 of 40 judged drafts in 20 blocks of 40 tokens; .8 of TV and 1.6 nats over 40 tokens."""
    assert table(capsys, write(tmp_path, two())) == [
        "| sums | Cactus(delta=0.75) | 10 | 2 | exact_match,strict-match | 50.00 ± 12.50 "
        "| 1.00 | 2.00 | 50.0% | 0.0200 | 0.0400 |"
    ]


@pytest.mark.parametrize("name", ["exact_match,flexible-extract", "flexible"])
def test_a_metric_can_be_preferred_and_need_not_have_an_error(tmp_path, capsys, name):
    (row,) = table(capsys, write(tmp_path, two()), "--metric", name)
    wanted = "| exact_match,flexible-extract | 75.00 |"
    assert (wanted in row) == (name != "flexible")


def test_the_newest_results_count_and_of_an_answer_the_last(tmp_path, capsys):
    old = {**LINE, "accepted": 25}
    write(tmp_path, [old, *two()], {**SCORES, "exact_match,strict-match": 0.1}, stamp="2025-12-31")
    write(tmp_path, [old, *two()])
    (row,) = table(capsys, tmp_path)
    assert "| 50.00 ± 12.50 | 1.00 |" in row


def test_rows_are_ordered_by_task_and_repetitions_are_summed(tmp_path, capsys):
    again = [{**line, "repeat": 1} for line in two()]
    write(tmp_path / "b", [*two(), *again])
    plain = {"rule": "SpeculativeSampling()", "num_draft_tokens": 0, "judged": 0, "accepted": 0}
    write(tmp_path / "c", [{**line, **plain} for line in two()])
    write(tmp_path / "a", [{**line, "task": "zero"} for line in two()], task="zero")
    rows = table(capsys, tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert [row.split(" | ")[0] for row in rows] == ["| sums", "| sums", "| zero"]
    assert "| plain decoding | 0 |" in rows[0]
    assert "| 0.00 | 2.00 | - |" in rows[0]
    assert "| 1.00 | 2.00 | 50.0% |" in rows[1]


def test_a_sum_of_null_is_infinite(tmp_path, capsys):
    (row,) = table(capsys, write(tmp_path, [LINE, {**two()[1], "kl_bound": None}]))
    assert row.endswith("| 0.0200 | inf |")


@pytest.mark.parametrize(
    ("lines", "samples", "words"),
    [
        (two(), 3, "must be the log of one run over 3 documents of sums, got 2 documents"),
        ([LINE, {**two()[1], "rule": "Cactus(delta=1.0)"}], 2, "under .*0.75.*1.0"),
    ],
)
def test_a_log_of_another_run_is_refused(tmp_path, capsys, lines, samples, words):
    write(tmp_path, lines, samples=samples)
    with pytest.raises(ValueError, match=words):
        list(GATHER["gather"](tmp_path))
    with pytest.raises(SystemExit):
        GATHER["main"]([str(tmp_path)])
    assert "cactus.jsonl must be the log of one run" in capsys.readouterr().err


def test_a_folder_without_results_or_log_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"must hold the harness's results_\*.json, and holds none"
    ):
        list(GATHER["gather"](tmp_path))
    write(tmp_path, two())
    (tmp_path / "cactus.jsonl").unlink()
    with pytest.raises(ValueError, match=r"must hold one cactus.jsonl, and holds 0"):
        list(GATHER["gather"](tmp_path))
