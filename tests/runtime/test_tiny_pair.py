"""Tests of the tiny pair: what ships, what its two laws are, and how it is trained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_runtime.pairs import tiny
from cactus_runtime.pairs.tiny import train as training
from cactus_runtime.pairs.tiny.train import Recipe, Run, Shape, TrainingError

SMALL = Recipe(
    target=Shape(layers=2, hidden=16, heads=2, steps=7, rate=1e-2),
    draft=Shape(layers=1, hidden=8, heads=1, steps=6, rate=1e-2),
    vocabulary=300,
    length=24,
    rows=3,
)
WEIGHTS = ("target/model.safetensors", "draft/model.safetensors", "target/tokenizer.json")
LOAD_WITHOUT_NETWORK = """
import socket
def refuse(*_): raise OSError("no network in this test")
socket.socket.connect = socket.getaddrinfo = refuse
from cactus_runtime.pairs.tiny import load
target, draft, tokenizer = load()
assert not target.training and not draft.training
assert not any(p.requires_grad for m in (target, draft) for p in m.parameters())
"""
GLOSSES = (
    "phenomenon: any state or process known through the senses rather than by reasoning",
    "punctilio: strict observance of formalities",
    "carpetbag: traveling bag made of carpet; widely used in 19th century",
    "tricorn: cocked hat with the brim turned up to form three points",
    "mummery: meaningless ceremonies and flattery",
    "adobo: a dish of marinated vegetables and meat or fish; served with rice",
    "Sapotaceae: tropical trees or shrubs with milky juice and often edible fleshy fruit",
    'clean out: empty completely; "We cleaned out all the drawers"',
    'tapered: becoming gradually narrower; "long tapering fingers"; "trousers with tapered legs"',
    'gradually: in a gradual manner; "the snake moved gradually toward its victim"',
)


@pytest.fixture(scope="module")
def pair():
    return tiny.load()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part, name in enumerate(training.FILES):
        records = [
            f'{i:08} 03 n 01 word_{part}{i} 0 000 | thing number {i} of {part}; "a {i}"  \n'
            for i in range(30)
        ]
        (folder / name).write_text("  1 This is the licence.  \n" + "".join(records))
    return folder


def weights(output: Path) -> list[bytes]:
    return [(output / name).read_bytes() for name in WEIGHTS]


def test_the_pair_loads_without_a_network_and_without_a_word():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD_WITHOUT_NETWORK],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if not name.startswith("HF_")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_dtype_is_the_one_asked_for(pair):
    assert {model.dtype for model in pair[:2]} == {torch.float32}
    assert tiny.load(dtype=torch.float64)[1].dtype == torch.float64


@pytest.mark.parametrize("name", ["target", "draft"])
def test_each_folder_is_an_ordinary_transformers_folder(name, pair):
    folder = str(tiny.FOLDER / name)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert tokenizer.get_vocab() == pair[2].get_vocab()
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 0
    assert tokenizer.eos_token_id == 0
    assert len(tokenizer) == model.config.vocab_size == 1024


def test_the_draft_has_less_than_a_ninth_of_the_targets_parameters(pair):
    target, draft, _ = pair
    assert target.num_parameters() / draft.num_parameters() == pytest.approx(9.407, abs=1e-3)


def test_the_files_of_the_pair_weigh_less_than_six_megabytes():
    files = [path for path in tiny.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 6e6


def test_the_licence_of_wordnet_ships_with_the_weights():
    notice = (tiny.FOLDER / "NOTICE").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in notice


def test_the_two_laws_agree_on_between_half_and_three_quarters_of_their_mass(pair):
    target, draft, tokenizer = pair
    masses = []
    for gloss in GLOSSES:
        ids = tokenizer(gloss + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        p, q = (model(input_ids=ids).logits[0].softmax(-1) for model in (target, draft))
        masses.append(torch.minimum(p, q).sum(-1))
    assert 0.5 < torch.cat(masses).mean().item() < 0.75


def test_greedy_continuation_ends_with_the_eos_token(pair):
    target, _, tokenizer = pair
    prompt = tokenizer("dog:", return_tensors="pt")
    ids = target.generate(**prompt, max_new_tokens=200, do_sample=False)[0].tolist()
    assert ids.count(tokenizer.eos_token_id) == 1
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("text", [*GLOSSES, "  two  spaces , and\ttabs \n", "naïve 犬 🐕", ""])
def test_the_tokenizer_gives_back_the_text_it_was_given(text, pair):
    tokenizer = pair[2]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_prompt_is_a_prefix_of_the_tokens_of_its_line(pair):
    tokenizer = pair[2]
    whole, prompt = (tokenizer(t)["input_ids"] for t in ("dog: a domestic animal", "dog:"))
    assert whole[: len(prompt)] == prompt


def test_training_interrupted_in_both_stages_ends_at_the_same_weights(
    corpus, tmp_path, monkeypatch, capsys
):
    def command(output: str) -> int:
        steps = ["--target-steps", "7", "--draft-steps", "6", "--checkpoint-every", "100"]
        return training.main(["--corpus", str(corpus), "--output", str(tmp_path / output), *steps])

    monkeypatch.setattr(training, "Recipe", lambda: SMALL)
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
    lines = training.read_lines(corpus)
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
    lines = training.read_lines(corpus)
    for seed in (0, 1):
        training.train(Run(replace(SMALL, seed=seed), lines, tmp_path / str(seed)))
    assert weights(tmp_path / "0")[:2] != weights(tmp_path / "1")[:2]


def test_a_checkpoint_of_other_settings_or_another_corpus_is_refused(corpus, tmp_path):
    lines = training.read_lines(corpus)
    training.train(Run(SMALL, lines, tmp_path / "out"))
    with pytest.raises(TrainingError, match="another seed"):
        training.train(Run(replace(SMALL, seed=1), lines, tmp_path / "out"))
    with pytest.raises(TrainingError, match="another text"):
        training.train(Run(SMALL, lines[1:], tmp_path / "out"))


def test_a_missing_corpus_says_where_to_get_it(tmp_path, capsys):
    assert training.main(["--corpus", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "data.noun" in error
    assert "apt-get install wordnet-base" in error


def test_a_corpus_too_small_for_one_row_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="fills no row of 24 tokens"):
        training.train(Run(SMALL, ["a: b"] * 3, tmp_path))


def test_steps_below_one_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        training.main(["--corpus", ".", "--output", str(tmp_path), "--draft-steps", "0"])
    assert "--draft-steps must be at least 1" in capsys.readouterr().err


def test_each_epoch_visits_every_row_once():
    rows = torch.arange(10)[:, None]
    seen = torch.cat([training.batch(rows, 5, step, seed=3) for step in range(4)]).flatten()
    first, second = seen[:10].tolist(), seen[10:].tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
