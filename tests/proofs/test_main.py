"""The command: exit status, records, explanations."""

import builtins
import dataclasses
import json
import sys

import pytest

from proofs_check import claims
from proofs_check.__main__ import main


def test_the_exit_status_is_zero_when_every_verdict_is_expected(capsys):
    assert main(["--only", "tangent-of-log"]) == 0
    assert "every verdict as expected" in capsys.readouterr().out


def test_the_exit_status_is_one_on_an_unexpected_verdict(capsys, monkeypatch):
    registry = claims.load()
    wrong = dataclasses.replace(registry["tangent-of-log"], expected="refuted")
    monkeypatch.setattr(claims, "load", lambda: {wrong.name: wrong})
    assert main([]) == 1
    assert "refuted expected" in capsys.readouterr().out


def test_the_exit_status_is_one_when_a_check_finds_its_statement_false(capsys, monkeypatch):
    registry = claims.load()
    item = registry["tangent-of-log"]
    broken = dataclasses.replace(item, build=lambda: item.build(**item.false[0]))
    monkeypatch.setattr(claims, "load", lambda: {broken.name: broken})
    assert main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "failed"


def test_json_records_name_the_claim_its_kind_and_its_verdict(capsys):
    assert main(["--json", "--only", "chi-square-exact"]) == 0
    [record] = json.loads(capsys.readouterr().out)
    assert (record["name"], record["kind"]) == ("chi-square-exact", "symbolic")
    assert (record["verdict"], record["expected"]) == ("proved", "proved")
    assert all(step["says"] and step["outcome"] == "holds" for step in record["steps"])


def test_explain_says_what_is_assumed_and_what_must_be_trusted(capsys):
    assert main(["--explain", "sharp-kl-bound"]) == 0
    text = capsys.readouterr().out
    for part in ("step 1", "tangent-of-log", "code to trust", "symbolic.py", "certificates"):
        assert part in text


def test_explain_prints_sentences_without_the_marks_of_tex(capsys):
    assert main(["--explain", "overspend-constant"]) == 0
    assert "with w = -1/2 - d the equation" in capsys.readouterr().out
    assert main(["--explain", "corollary-6"]) == 0
    assert "as long as q + x <= 1 - q" in capsys.readouterr().out


def test_an_unknown_name_is_answered_with_the_names_there_are(capsys):
    assert main(["--only", "theorem-99"]) == 2
    assert "corollary-5" in capsys.readouterr().err


@pytest.mark.parametrize("library", ["sympy", "flint"])
def test_without_its_libraries_the_command_says_what_to_install(library, capsys, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.split(".")[0] == library:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    for module in [name for name in sys.modules if name.startswith("proofs_check.")]:
        if module not in ("proofs_check.claims", "proofs_check.__main__"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    assert main([]) == 2
    assert "cactus-speculative[proofs]" in capsys.readouterr().err
