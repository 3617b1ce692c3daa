"""Training of the tiny pair: cut runs end as whole ones, and what cannot be trained is refused."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scripts.train_tiny import __main__ as command_line
from scripts.train_tiny import training
from scripts.train_tiny.text import FILES, TrainingError, read_lines
from scripts.train_tiny.training import Recipe, Run, Shape

SMALL = Recipe(
    target=Shape(layers=2, hidden=16, heads=2, steps=7, rate=1e-2),
    draft=Shape(layers=1, hidden=8, heads=1, steps=6, rate=1e-2),
    vocabulary=300,
    length=24,
    rows=3,
)
WEIGHTS = ("target/model.safetensors", "draft/model.safetensors", "target/tokenizer.json")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part, name in enumerate(FILES):
        records = [
            f'{i:08} 03 n 01 word_{part}{i} 0 000 | thing number {i} of {part}; "a {i}"  \n'
            for i in range(30)
        ]
        (folder / name).write_text("  1 This is the licence.  \n" + "".join(records))
    return folder


def weights(output: Path) -> list[bytes]:
    return [(output / name).read_bytes() for name in WEIGHTS]


def test_training_interrupted_in_both_stages_ends_at_the_same_weights(
    corpus, tmp_path, monkeypatch, capsys
):
    def command(output: str) -> int:
        steps = ["--target-steps", "7", "--draft-steps", "6", "--checkpoint-every", "100"]
        return command_line.main(
            ["--corpus", str(corpus), "--output", str(tmp_path / output), *steps]
        )

    monkeypatch.setattr(command_line, "Recipe", lambda: SMALL)
    handler = signal.getsignal(signal.SIGINT)  # a background job may start with it ignored
    assert command("whole") == 0
    plain = training.batch

    def press(step: int) -> None:
        def pressed(rows, count, at, seed):
            if at == step:
                signal.raise_signal(signal.SIGINT)
            return plain(rows, count, at, seed)

        monkeypatch.setattr(training, "batch", pressed)

    press(2)
    assert command("cut") == 130
    assert not (tmp_path / "cut" / "target").exists()
    press(6)
    assert command("cut") == 130
    press(4)
    assert command("cut") == 130
    assert not (tmp_path / "cut" / "draft").exists()
    monkeypatch.setattr(training, "batch", plain)
    assert command("cut") == 0
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    printed = capsys.readouterr().out
    assert "stopped after step 3 of the target; run the same command again" in printed
    assert "stopped after step 5 of the draft" in printed
    assert signal.getsignal(signal.SIGINT) is handler


def test_training_taken_up_after_a_crash_ends_at_the_same_weights(corpus, tmp_path, monkeypatch):
    lines = read_lines(corpus)
    whole = Run(SMALL, lines, tmp_path / "whole")
    found = training.train(whole)
    cut = Run(SMALL, lines, tmp_path / "cut", every=2)

    def crash(rows, count, step, seed):
        if step == 5:
            raise MemoryError
        return plain(rows, count, step, seed)

    plain = training.batch
    monkeypatch.setattr(training, "batch", crash)
    with pytest.raises(MemoryError):
        training.train(cut)
    assert cut.checkpoint()["step"] == 4
    monkeypatch.setattr(training, "batch", plain)
    assert training.train(cut) == found
    assert weights(cut.output) == weights(whole.output)


def test_another_seed_gives_other_weights(corpus, tmp_path):
    lines = read_lines(corpus)
    for seed in (0, 1):
        training.train(Run(replace(SMALL, seed=seed), lines, tmp_path / str(seed)))
    assert weights(tmp_path / "0")[:2] != weights(tmp_path / "1")[:2]


def test_a_checkpoint_of_other_settings_or_another_corpus_is_refused(corpus, tmp_path):
    lines = read_lines(corpus)
    training.train(Run(SMALL, lines, tmp_path / "out"))
    with pytest.raises(TrainingError, match="another seed"):
        training.train(Run(replace(SMALL, seed=1), lines, tmp_path / "out"))
    with pytest.raises(TrainingError, match="another text"):
        training.train(Run(SMALL, lines[1:], tmp_path / "out"))


def test_a_missing_corpus_says_where_to_get_it(tmp_path, capsys):
    assert command_line.main(["--corpus", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "data.noun" in error
    assert "apt-get install wordnet-base" in error


def test_a_corpus_too_small_for_one_row_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="fills no row of 24 tokens"):
        training.train(Run(SMALL, ["a: b"] * 3, tmp_path))


def test_steps_below_one_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command_line.main(["--corpus", ".", "--output", str(tmp_path), "--draft-steps", "0"])
    assert "--draft-steps must be at least 1" in capsys.readouterr().err


def test_each_epoch_visits_every_row_once():
    rows = torch.arange(10)[:, None]
    seen = torch.cat([training.batch(rows, 5, step, seed=3) for step in range(4)]).flatten()
    first, second = seen[:10].tolist(), seen[10:].tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
