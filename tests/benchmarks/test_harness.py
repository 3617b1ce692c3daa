"""Tables of made-up runs of the lm-evaluation-harness."""

from __future__ import annotations

import json

import pytest

from benchmarks.quality.__main__ import main
from benchmarks.quality.harness import read_run

LINE = {
    "task": "sums",
    "doc_id": 0,
    "repeat": 0,
    "num_draft_tokens": 10,
    "rule": "Cactus(delta=0.75)",
    "finish_reason": "eos",
    "tokens": 30,
    "blocks": 10,
    "judged": 25,
    "accepted": 20,
    "acceptance_rate": 20.0,
    "total_variation": 0.6,
    "kl_bound": 1.2,
}
PLAIN = {"rule": "SpeculativeSampling()", "num_draft_tokens": 0, "judged": 0, "accepted": 0}
STRICT, FLEXIBLE = "exact_match,strict", "exact_match,flexible"


def write(folder, lines, earned=None, *, day="01", task="sums", scores=None):
    """A run whose documents earned this, by metric and filter."""
    earned = earned or {STRICT: [1, 0], FLEXIBLE: [1, 1]}
    nested = folder / "model"
    nested.mkdir(parents=True, exist_ok=True)
    means = {name: sum(values) / len(values) for name, values in earned.items()}
    results = {"results": {task: {"alias": task, **means, **(scores or {})}}}
    (nested / f"results_2026-01-{day}T.json").write_text(json.dumps(results))
    samples = [
        {"doc_id": i, "filter": name.split(",")[1], "metrics": ["exact_match"], "exact_match": x}
        for name, values in earned.items()
        for i, x in enumerate(values)
    ]
    path = nested / f"samples_{task}_2026-01-{day}T.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in samples))
    (folder / "cactus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def two(**changed):
    other = {"doc_id": 1, "tokens": 10, "judged": 15, "accepted": 0, "total_variation": 0.2}
    return [{**LINE, **changed}, {**LINE, **other, "kl_bound": 0.4, **changed}]


def table(capsys, *arguments):
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out.strip().splitlines()


def test_a_row_has_the_score_and_ratios_of_sums(tmp_path, capsys):
    """20 of 40 judged drafts in 20 blocks of 40 tokens; .8 of TV and 1.6 nats over 40 tokens."""
    *_, row = table(capsys, write(tmp_path, two()))
    assert row == (
        "| Cactus(delta=0.75), 10 drafts | 50.0 [0.0, 100.0] |  "
        "| 1.000 | 1.00 | 2.00 | 50.0% | 0.0200 | 0.0400 |"
    )


@pytest.mark.parametrize("name", [FLEXIBLE, "flexible"])
def test_a_metric_can_be_preferred_by_its_whole_name(tmp_path, capsys, name):
    *_, row = table(capsys, write(tmp_path, two()), "--metric", name)
    assert ("100.0 [100.0, 100.0]" in row) == (name == FLEXIBLE)


def test_the_newest_results_count_and_of_an_answer_the_last(tmp_path, capsys):
    old = {**LINE, "accepted": 25}
    write(tmp_path, [old, *two()], {STRICT: [0, 0]}, day="01")
    write(tmp_path, [old, *two()], day="02")
    *_, row = table(capsys, tmp_path)
    assert "| 50.0 [0.0, 100.0] |  | 1.000 | 1.00 |" in row


def test_tasks_have_tables_and_runs_their_difference_from_plain_decoding(tmp_path, capsys):
    write(tmp_path / "b", two(), {STRICT: [1, 1]})
    write(tmp_path / "c", two(**PLAIN), {STRICT: [0, 1]})
    write(tmp_path / "a", two(task="zero"), task="zero")
    lines = table(capsys, tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert [line[:8] for line in lines if line.startswith("**")] == ["**sums.*", "**zero.*"]
    plain, cactus = lines[4], lines[5]
    assert plain.startswith("| plain decoding | 50.0 [0.0, 100.0] |  |  | 0.00 | 2.00 |  |")
    assert cactus.startswith("| Cactus(delta=0.75), 10 drafts | 100.0 [100.0, 100.0] | 50.0 [0.0,")


def test_repetitions_of_a_document_are_summed(tmp_path):
    write(tmp_path, [*two(), *two(repeat=1)])
    first, second = read_run(tmp_path)
    assert (first["tokens"], second["tokens"], first["key"], second["key"]) == (60, 20, 0, 1)


def test_two_runs_of_one_rule_are_told_apart_by_their_folders(tmp_path, capsys):
    *_, first, second = table(capsys, *(write(tmp_path / name, two()) for name in "ab"))
    assert first.startswith(f"| Cactus(delta=0.75), 10 drafts ({tmp_path / 'a'}) |")
    assert second.startswith(f"| Cactus(delta=0.75), 10 drafts ({tmp_path / 'b'}) |")


def test_only_documents_that_all_runs_answered_are_compared(tmp_path, capsys):
    write(tmp_path / "a", two(), {STRICT: [1, 0]})
    write(tmp_path / "b", two(**PLAIN)[:1], {STRICT: [1]})
    title, *_, row = table(capsys, tmp_path / "a", tmp_path / "b")
    assert title == "**sums.** Over 1 prompts; in brackets 95 % intervals."
    assert "| 100.0 [" in row


def test_a_sum_of_null_is_infinite(tmp_path, capsys):
    *_, row = table(capsys, write(tmp_path, [LINE, {**two()[1], "kl_bound": None}]))
    assert row.endswith("| 0.0200 | inf |")


@pytest.mark.parametrize(
    ("lines", "earned", "words"),
    [
        (two(), [1, 0, 1], "must be the log of one run over 3 documents of sums, got 2"),
        ([LINE, {**two()[1], "rule": "Cactus(delta=1.0)"}], [1, 0], "(?s)under .*0.75.*1.0"),
    ],
)
def test_a_log_of_another_run_is_refused(tmp_path, capsys, lines, earned, words):
    write(tmp_path, lines, {STRICT: earned})
    with pytest.raises(ValueError, match=words):
        list(read_run(tmp_path))
    assert main(["compare", str(tmp_path)]) == 2
    assert "cactus.jsonl must be the log of one run" in capsys.readouterr().err


def test_a_score_that_is_no_mean_over_documents_is_refused(tmp_path):
    write(tmp_path, two(), {STRICT: [1, 0]}, scores={STRICT: 0.7})
    with pytest.raises(ValueError, match="must have a score that is a mean over documents"):
        list(read_run(tmp_path))


def test_a_folder_without_its_files_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"the harness's results_\*.json, and holds none"):
        list(read_run(tmp_path))
    write(tmp_path, two())
    log = (tmp_path / "cactus.jsonl").read_text()
    (tmp_path / "cactus.jsonl").unlink()
    with pytest.raises(ValueError, match=r"must hold one cactus.jsonl, and holds 0"):
        list(read_run(tmp_path))
    (tmp_path / "cactus.jsonl").write_text(log)
    next(tmp_path.rglob("samples*")).unlink()
    with pytest.raises(ValueError, match="--log_samples"):
        list(read_run(tmp_path))
