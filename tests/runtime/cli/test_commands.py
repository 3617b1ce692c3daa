"""The command ``cactus``: what it prints, how it fails, pipes and interruption."""

from __future__ import annotations

import builtins
import signal
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from cactus_runtime.cli import main
from cactus_runtime.cli.commands import COMMANDS
from cactus_runtime.cli.decode import PAIRS
from cactus_runtime.pairs import PAIRS as ALL_PAIRS
from tests.runtime.cli.processes import DECODE, EVERYTHING, MODELS, call, start


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
        (["curve", __file__], "holds no recorded distributions"),
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
