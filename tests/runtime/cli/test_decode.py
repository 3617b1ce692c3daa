"""`cactus decode`: prompts, streams, pages, and models that cannot decode."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from cactus_runtime import decode as decode_text
from cactus_runtime import pairs
from cactus_runtime.cli import main
from cactus_theory import Cactus
from tests.runtime.cli.processes import DECODE, WARM, call


@pytest.fixture(scope="module")
def wanted():
    from cactus_runtime import SamplingParams

    return decode_text(
        "tiny",
        "river:",
        rule=Cactus(0.1),
        num_draft_tokens=2,
        sampling=SamplingParams(temperature=0.7),
        max_new_tokens=20,
        seed=3,
    )


def test_decode_streams_the_text_to_stdout_and_the_account_to_stderr(wanted, capsys):
    assert main(["decode", "river:", *DECODE, *WARM]) == 0
    out, err = capsys.readouterr()
    assert out == f"{wanted.text}\n"
    assert f"total variation {wanted.total_variation:.4f}" in err


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", ""], ids=repr)
@pytest.mark.parametrize("how", ["stdin", "--file", "--file -"])
def test_decode_reads_the_prompt_from_a_pipe_or_a_file_whatever_its_line_ends(
    how, end, wanted, capsys, monkeypatch, tmp_path
):
    path = tmp_path / "prompt"
    path.write_bytes(f"river:{end}".encode())
    arguments = {"stdin": [], "--file": ["--file", str(path)], "--file -": ["--file", "-"]}[how]
    with path.open(encoding="utf-8", newline="\n") as piped:  # as a pipe is read
        monkeypatch.setattr(sys, "stdin", piped)
        assert main(["decode", *arguments, "--quiet", *DECODE, *WARM]) == 0
    assert capsys.readouterr() == (f"{wanted.text}\n", "")


SNOWMAN = "\u2603\U0001f600"  # neither is in cp1252


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_a_character_that_the_output_lacks_is_escaped_and_ends_nothing(
    encoding, monkeypatch, tmp_path
):
    """Text, account and page are as complete as on any other output."""
    page = tmp_path / "page.html"
    monkeypatch.setattr(
        "cactus_runtime.text.TextStream._decode", lambda self, ids: SNOWMAN * len(ids)
    )
    options = [*DECODE, "--rule", "cactus", "--html", str(page)]
    with (tmp_path / "out").open("w", encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["decode", "river:", *options]) == 0
        assert out.errors == "strict"  # as it was
    text = (tmp_path / "out").read_text(encoding=encoding)
    assert text == 20 * (SNOWMAN.encode(encoding, "backslashreplace").decode(encoding)) + "\n"
    assert page.read_text(encoding="utf-8").count("tabindex") == 20


def damage(folder, how):
    """The tiny target with something wrong with it."""
    path = folder / how.replace(" ", "-")
    shutil.copytree(Path(pairs.__file__).parent / "tiny" / "target", path)
    weights, config = path / "model.safetensors", path / "config.json"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 8000000\n"
    if how == "a pointer":
        weights.write_bytes(pointer)
    elif how == "a pickled pointer":
        weights.unlink()
        (path / "pytorch_model.bin").write_bytes(pointer)
    elif how == "a tokenizer's pointer":
        (path / "tokenizer.json").write_bytes(pointer)
    elif how == "cut short":
        weights.write_bytes(weights.read_bytes()[:9999])
    elif how == "other shapes":
        shape = json.loads(config.read_text())
        config.write_text(json.dumps(shape | {"intermediate_size": 2 * shape["intermediate_size"]}))
    elif how == "nan":
        from safetensors.torch import load_file, save_file

        spoiled = {name: tensor * float("nan") for name, tensor in load_file(weights).items()}
        save_file(spoiled, weights, metadata={"format": "pt"})
    return str(path)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("a pointer", "has a git-lfs pointer in place of model.safetensors"),
        ("a pickled pointer", "has a git-lfs pointer in place of pytorch_model.bin"),
        ("a tokenizer's pointer", "has a git-lfs pointer in place of tokenizer.json"),
        ("cut short", "has weights that cannot be read: Error while deserializing"),
        ("other shapes", "has weights whose shapes differ from its config.json"),
        ("nan", "the target model gave non-finite logits"),
    ],
)
def test_a_model_that_cannot_decode_is_told_of_in_one_sentence(how, told, capsys, tmp_path):
    assert main(["decode", "dog:", "--target", damage(tmp_path, how), "--tokens", "5"]) == 2
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]  # transformers reports other shapes before
    assert out == ""
    assert last.startswith("cactus: ")
    assert told in last
    assert "Traceback" not in err


def test_a_fault_of_ours_is_no_bad_input(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a fault")

    monkeypatch.setattr("cactus_runtime.cli.optimum.granted", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        main(["optimum", "0.5", "0.1"])


def test_decode_prints_one_object_of_json(wanted, capsys):
    assert main(["decode", "river:", "--json", *DECODE, *WARM]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert told["text"] == wanted.text
    assert [token["id"] for token in told["tokens"]] == list(wanted.tokens)
    assert told["kl_bound_nats"] == wanted.kl_bound
    assert told["tokens"][0]["verdict"]["boosted"] == wanted.trace[0].verdict.boosted


def test_json_has_null_where_nothing_was_verified(capsys):
    assert main(["decode", "river:", "--json", *DECODE, "--drafts", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["acceptance_rate"] is None


def test_decode_writes_the_page(tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main(["decode", "river:", "--html", str(path), *DECODE]) == 0
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("tabindex") == 20


def test_a_budget_of_the_text_is_kept(capsys):
    assert main(["decode", "river:", "--json", "--max-tv", "0.25", *DECODE, "--delta", "1"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["total_variation"] <= 0.25


def test_there_are_no_colours_in_a_pipe_and_there_are_on_a_terminal(capsys):
    status, out, _ = call(["decode", "river:", *DECODE])
    assert status == 0
    assert "\x1b" not in out
    forced = os.environ | {"FORCE_COLOR": "1"}
    status, out, _ = call(["decode", "river:", *DECODE], env=forced)
    assert status == 0
    assert "\x1b[" in out
