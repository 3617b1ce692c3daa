"""`cactus optimum`."""

from __future__ import annotations

import json

import pytest

from cactus_runtime.cli import main
from cactus_theory import exact_optimum, optimum_gap, second_order_optimum
from cactus_theory.rules.registry import budgeted_candidates


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
