"""`cactus curve`."""

from __future__ import annotations

import csv
import io

import pytest

from cactus_runtime.cli import main
from cactus_theory import output_distribution, total_variation
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.parsing import rule_from
from cactus_theory.rules.registry import RULES


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
