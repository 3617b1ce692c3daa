"""The command ``cactus``: what it prints, how it fails, pipes and interruption."""

from __future__ import annotations

import builtins
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cactus_runtime import decode as decode_text
from cactus_runtime import pairs
from cactus_runtime.cli import main
from cactus_runtime.cli.commands import COMMANDS
from cactus_runtime.cli.decode import PAIRS
from cactus_runtime.pairs import PAIRS as ALL_PAIRS
from cactus_theory import (
    Cactus,
    exact_optimum,
    optimum_gap,
    output_distribution,
    second_order_optimum,
    total_variation,
)
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.parsing import rule_from
from cactus_theory.rules.registry import RULES, budgeted_candidates

START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may start ignored
class Missing:  # not None in sys.modules, which scipy takes for a module
    def find_spec(name, path=None, target=None):
        if name in {blocked!r}: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing)
from cactus_runtime.cli import main
status = main({arguments!r})
unwanted = {unwanted!r} & set(sys.modules)
assert not unwanted, unwanted
sys.exit(status)
"""
MODELS = ("torch", "transformers")  # ordered, or each process would name its tests otherwise
EVERYTHING = (*MODELS, "sympy", "flint", "matplotlib")


def start(arguments, *, blocked=(), unwanted=(), **options) -> subprocess.Popen:
    code = START.format(
        blocked=list(blocked), arguments=list(arguments), unwanted=set(unwanted) - set(blocked)
    )
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, **options
    )


def call(arguments, **options) -> tuple[int, str, str]:
    process = start(arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def test_the_help_lists_every_command_with_what_it_does(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name} " in told
        assert entry.help in told


def test_no_argument_shows_the_help_and_counts_as_bad_usage(capsys):
    assert main([]) == 2
    assert "A first tour" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_it_is_said_to_be_and_explains_itself(name, capsys):
    module, _, attribute = COMMANDS[name].where.partition(":")
    assert callable(getattr(import_module(module), attribute))
    assert main([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.lower().startswith("usage:")
    assert COMMANDS[name].forwards or "cactus " + name in told.partition("Example")[2] + told


def test_the_names_of_pairs_are_those_of_the_runtime():
    assert sorted(PAIRS) == sorted(ALL_PAIRS)


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], EVERYTHING),
        (["decode", "--help"], EVERYTHING),
        (["record", "--help"], EVERYTHING),
        (["optimum", "0.1", "1"], EVERYTHING),
        (["curve", "--points", "2", "--rules", "cactus"], EVERYTHING),
        (["check", "--only", "corollary-5"], MODELS),
    ],
    ids=" ".join,
)
def test_what_needs_no_model_runs_without_torch_and_loads_nothing_it_does_not_use(
    arguments, unwanted
):
    status, out, err = call(arguments, blocked=MODELS, unwanted=unwanted)
    assert (status, err) == (0, "")
    assert out


@pytest.mark.parametrize(
    ("arguments", "blocked", "extra"),
    [
        (["decode", "dog:"], ["torch"], "runtime"),
        (["record", "-o", "x.npz"], ["transformers"], "runtime"),
        (["bench"], ["torch"], "runtime"),
        (["curve", "--points", "2", "--rules", "safe", "--plot", "x.png"], ["matplotlib"], "plots"),
        (["optimum", "0.1", "1"], ["click"], "cli"),
        (["check"], ["sympy"], "proofs"),
    ],
    ids=lambda item: item[0] if isinstance(item, list) else item,
)
def test_where_packages_are_missing_it_says_what_to_install(arguments, blocked, extra, tmp_path):
    status, out, err = call(arguments, blocked=blocked, cwd=tmp_path)
    assert (status, out) == (2, "")
    assert f"pip install 'cactus-speculative[{extra}]'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek"], "No such command 'chek'"),
        (["optimum", "2", "1"], "target_prob must be a probability in [0, 1], got 2.0"),
        (["optimum", "0.5", "much"], "'much' is not a valid float"),
        (["optimum", "0.5", "--", "-1"], "delta must be in [0, 1e100] (nats)"),
        (["curve", "nowhere.npz"], "cactus: No such file or directory: 'nowhere.npz'"),
        (["curve", __file__], "holds no recorded laws"),
        (["curve", "--rules", "cactus,best"], "got 'best'"),
        (["curve", "--from", "3", "--to", "1"], "got 3 and 1"),
        (["curve", "--plot", "x.nothing"], "ends in .png, .svg or .pdf, got 'x.nothing'"),
        (["curve", "--html", "no/x.html"], "there is no folder 'no'"),
        (["optimum", "0.5", "0.1", "--plot", "no/x.png"], "there is no folder 'no'"),
        (["decode", "dog:", "--pair", "tiny", "--html", "no/x.html"], "there is no folder 'no'"),
        (["decode", "dog:", "--pair", "huge"], "'huge' is not one of"),
        (["decode", "dog:", "--pair", "tiny", "--delta", "-1"], "delta must be a number of nats"),
        (["decode", "dog:", "--pair", "tiny", "--draft", "x"], "--draft needs --target"),
        (["decode", "dog:", "--target", "./nowhere"], "./nowhere"),
        (["decode", "", "--pair", "tiny"], "prompt"),
        (["decode", "dog:", "--file", __file__], "not both"),
        (["record", "-o", "x.npz", "--tokens", "0"], "max_new_tokens"),
        (["record", "-o", "no/folder/x.npz"], "there is no folder 'no/folder'"),
        (["record", "-o", "x.npz", "--tolerance", "2"], "tolerance must lie in"),
        (["check", "--only", "nothing"], "No claim is named 'nothing'"),
        (["bench", "--nonsense"], "No such option"),  # how it is named depends on click's version
        (["bench", "--nonsense"], "--nonsense"),
        (["curve", "--rules", "top-k:k=1.5"], "--rules: k must be an integer >= 1, got '1.5'"),
        (["curve", "--rules", "mixture:delta=1"], "rule mixture takes weight, got delta='1'"),
    ],
    ids=lambda item: " ".join(item)[:40] if isinstance(item, list) else "",
)
def test_what_goes_wrong_is_told_in_one_sentence(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert (
        COMMANDS.get(arguments[0]) is None
        or COMMANDS[arguments[0]].forwards
        or (err.startswith("cactus: ") and err.count("\n") == 1)
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("words", "wanted"), [("cactus opt", "optimum"), ("cactus cu", "curve")])
def test_a_shell_can_complete_the_commands(words, wanted, capsys, monkeypatch):
    for name, value in (("_CACTUS_COMPLETE", "bash_complete"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_WORDS", words)
    assert main([]) == 0
    assert capsys.readouterr().out.split() == [f"plain,{wanted}"]


def test_a_shell_can_complete_options_of_a_command(capsys, monkeypatch):
    for name, value in (("_CACTUS_COMPLETE", "bash_complete"), ("COMP_CWORD", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_WORDS", "cactus decode --max-")
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["plain,--max-kl", "plain,--max-tv"]


# --- optimum


@pytest.mark.parametrize("q", [1e-4, 1e-6])  # at 1e-6 the decoder's rule is an ulp above
def test_optimum_tells_what_the_theory_says(q, capsys):
    assert main(["optimum", f"{q}", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    best = exact_optimum(q, 1.0)
    assert told["exact"] == told["exact_bracket"][0] == best.value < told["exact_bracket"][1]
    assert told["exact_bracket"] == [float(end) for end in best.bracket]
    assert told["exact_kl"] <= 1.0
    assert told["cactus"] == second_order_optimum(q, 1.0)
    assert told["gap"] == optimum_gap(q, 1.0)
    assert told["safe_kl"] < told["delta"] == 1.0


def test_optimum_prints_a_row_for_each_rule_of_a_candidate_s_budget(capsys):
    assert main(["optimum", "0.5", "0.1"]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    values = {row[:14].strip(): [float(x) for x in row[14:].split()] for row in rows}
    assert list(values) == [*budgeted_candidates(), "gap"]
    assert values["cactus"][1] > 0.1 > values["safe"][1]  # the one that overspends
    assert values["gap"] == [pytest.approx(values["exact"][0] - values["cactus"][0], abs=1e-5)]


def test_the_columns_of_optimum_stay_apart_however_small_the_numbers(capsys):
    assert main(["optimum", "5e-324", "1e-300"]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [len(row[14:].split()) for row in rows] == [2, 2, 2, 1]


# --- curve


def test_curve_writes_the_curves_of_the_bundled_laws_as_csv(capsys):
    assert main(["curve", "--rules", "exact,top-k", "--points", "3", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    laws = load_recording()
    assert [row["rule"] for row in rows] == ["exact"] * 3 + ["top-k"] * 3
    for name, own in (("exact", rows[:3]), ("top-k", rows[3:])):
        deltas = [float(row["delta_nats"]) for row in own]
        assert deltas == pytest.approx([1e-3, 1e-1, 10])
        found = curve(RULES[name].at, draft=laws.draft, target=laws.target, deltas=deltas)
        for column in ("acceptance_rate", "total_variation"):
            assert [float(row[column]) for row in own] == getattr(found, column).tolist()
        assert [float(row["kl_nats"]) for row in own] == found.kl.tolist()


def test_curve_takes_rules_with_parameters_and_lets_delta_give_the_others(capsys):
    texts = [
        "safe",
        "exact:divergence=chi-square",
        "clamp:epsilon=0.2,divergence=alpha:2",
        "top-k:k=3",
    ]
    assert main(["curve", "--rules", ",".join(texts), "--points", "2", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    laws = load_recording()
    for i, text in enumerate(texts):
        for delta, row in zip((1e-3, 10.0), rows[2 * i :], strict=False):
            assert row["rule"] == text
            more = {"delta": delta} if i < 2 else {}
            out = output_distribution(rule_from(text, **more), draft=laws.draft, target=laws.target)
            found = total_variation(out, laws.target).mean()
            assert float(row["total_variation"]) == pytest.approx(found, rel=1e-12)  # summation


def test_curve_prints_a_table_that_says_how_exact_it_is(capsys):
    assert main(["curve", "--rules", "cactus", "--points", "2"]) == 0
    out = capsys.readouterr().out
    assert "Means over 96 positions of the pair tiny" in out
    assert "KL by at most 0.0004 nats" in out
    assert out.splitlines()[-1].split()[0] == "10"


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_curve_draws(suffix, magic, tmp_path, capsys):
    path = tmp_path / f"curves.{suffix}"
    assert main(["curve", "--rules", "cactus", "--points", "2", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(magic)
    assert capsys.readouterr().out == ""


# --- record


def test_record_makes_the_file_that_comes_with_the_package(tmp_path, capsys):
    path = tmp_path / "tiny.npz"
    assert main(["record", "--pair", "tiny", "-o", str(path)]) == 0
    mine, bundled = load_recording(path), load_recording()
    assert dict(mine.about) == dict(bundled.about)
    # Machines differ in the last bits of float32 logits, which may move a token past the tolerance.
    for rule in (Cactus, RULES["typical"].at):
        a, b = (
            curve(rule, draft=laws.draft, target=laws.target, deltas=[0.1])
            for laws in (mine, bundled)
        )
        np.testing.assert_allclose(a.acceptance_rate, b.acceptance_rate, atol=1e-4)
        np.testing.assert_allclose(a.kl, b.kl, atol=1e-3)
    assert f"wrote {path}: 96 positions" in capsys.readouterr().err


def test_record_takes_prompts_and_filters_and_curve_explores_them(tmp_path, capsys):
    path, prompts = str(tmp_path / "own.npz"), tmp_path / "prompts"
    prompts.write_bytes(b"river:\r\n\nmusic:\n")
    arguments = ["--tokens", "3", "--temperature", "1", "--top-k", "5"]
    assert main(["record", "-o", path, "--file", str(prompts), *arguments]) == 0
    laws = load_recording(path)
    assert len(laws) == 6
    assert ((laws.target > 0).sum(axis=1) <= 5).all()
    assert laws.about["prompts"] == "river:\nmusic:"
    assert main(["curve", path, "--rules", "cactus,mixture", "--points", "2"]) == 0
    assert "inf" in capsys.readouterr().out  # the mixture leaves the target's support


# --- decode

DECODE = ["--pair", "tiny", "--seed", "3", "--tokens", "20", "--delta", "0.1", "--drafts", "2"]
WARM = ["--temperature", "0.7"]


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
        ("other shapes", "has weights of other shapes than its config.json"),
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


# --- pipes and interruption


@pytest.mark.parametrize(
    "arguments",
    [
        ["curve", "--csv", "--rules", "speculative"],
        ["decode", "river:", *DECODE],
        ["optimum", "0.1", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_reader_that_leaves_is_no_error_to_tell_of(arguments):
    process = start(arguments)
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 1
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_ctrl_c_ends_a_text_early_and_accounts_for_it(tmp_path):
    page = tmp_path / "page.html"
    process = start(
        [
            "decode",
            "river:",
            "--pair",
            "tiny",
            "--seed",
            "1",
            "--tokens",
            "240",
            "--html",
            page.name,
        ],
        cwd=tmp_path,
    )
    begun = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    told = err.decode()
    assert process.returncode == 130
    assert "(interrupted)" in told
    assert "Traceback" not in told
    shown = Path(page).read_text(encoding="utf-8").count("tabindex")
    assert 0 < shown < 240
    assert (begun + out).endswith(b"\n")


def test_ctrl_c_while_the_command_is_being_loaded_is_no_error_to_tell_of(monkeypatch, capsys):
    usual = builtins.__import__

    def interrupted(name, *rest):
        if name == "cactus_runtime.cli.commands":
            raise KeyboardInterrupt
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    assert main(["--help"]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_in_a_long_calculation_exits_with_130_and_no_traceback():
    process = start(["curve", "--rules", "cactus,clamp", "--points", "400"])
    try:
        process.wait(timeout=4)  # it is at work by then, and has minutes to go
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert (out, err.strip()) == (b"", b"")
