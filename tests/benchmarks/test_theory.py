"""The benchmark command: its lines, its help, its interruption. Nothing here measures speed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import theory
from benchmarks.scalar_optimum import scalar_optimum, textbook_residual
from benchmarks.theory import Comparison, Side, main, measure
from cactus_theory import binary_kl, exact_optimum


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_quick_prints_one_complete_line_for_each_comparison(capsys):
    assert main(["--quick"]) == 0
    out, err = capsys.readouterr()
    records = lines(out)
    names = [record["name"] for record in records]
    assert names == [comparison.name for comparison in theory.comparisons(quick=True)]
    assert len(set(names)) == len(names) >= 7
    for record in records:
        assert set(record) == {
            *("name", "ratio", "spread", "slow", "fast", "wanted"),
            *("seconds", "repetitions", "versions"),
        }
        low, high = record["spread"]
        assert 0 <= low <= record["ratio"] <= high < math.inf
        for side in (record["slow"], record["fast"]):
            assert side["what"]
            assert side["size"] >= 1
        assert record["repetitions"] == 3
        assert record["versions"]["numpy"] == np.__version__
        assert record["versions"]["scipy"] == scipy.__version__
        assert f"{record['name']} ..." in err


def test_the_full_sizes_are_those_the_project_speaks_of():
    sizes = {comparison.name: comparison.fast.size for comparison in theory.comparisons()}
    assert sizes["optimum-to-brentq"] == 1_000_000
    assert sizes["cactus-law-to-argsort"] == sizes["clamp-law-to-argsort"] == 151_936


def test_an_interruption_leaves_the_lines_done_and_says_so(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    nothing = Side("nothing", 1, lambda: None)
    parts = [
        Comparison("first", nothing, nothing, "none"),
        Comparison("second", Side("stop", 1, interrupted), nothing, "none"),
    ]
    monkeypatch.setattr(theory, "comparisons", lambda *, quick: iter(parts))
    assert main([]) == 130
    out, err = capsys.readouterr()
    assert [record["name"] for record in lines(out)] == ["first"]
    assert "interrupted" in err


def test_the_ratio_is_per_element_and_of_both_sides_in_turn(monkeypatch):
    calls = []
    slow = Side("slow", 10, lambda: calls.append("slow"))
    fast = Side("fast", 1_000, lambda: calls.append("fast"))
    seconds = iter([9.0, 9.0, 2.0, 4.0, 3.0, 4.0, 8.0, 4.0])  # the first call of each is warm-up

    def timed(side):
        side.call()
        return next(seconds)

    monkeypatch.setattr(theory, "_seconds", timed)
    record = measure(Comparison("name", slow, fast, "none"), repetitions=3)
    assert calls == ["slow", "fast"] * 4
    assert record["ratio"] == 75  # 3/4 of the time for a hundredth of the elements
    assert record["spread"] == [50, 200]
    assert record["seconds"] == [3, 4]


def test_the_help_states_every_field(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    record = measure(next(theory.comparisons(quick=True)), repetitions=1)
    for field in set(record) - {"repetitions"}:
        assert field in text
    assert "--quick" in text


@given(exponent=st.floats(-12, 0), delta=st.floats(0.01, 3))
def test_the_loop_compared_with_finds_the_same_optimum(exponent, delta):
    q = min(10.0**exponent, 1 - 1e-9)
    value, rest = scalar_optimum(q, delta)
    optimum = exact_optimum(q, delta)
    # brentq stops at 4 ulp; the optimum is 8 ulp low, its complement as much high.
    assert value == pytest.approx(float(optimum.value), rel=1e-14)
    # The loop takes -log(q) - delta as floats give it: an ulp of delta, over the slope log 2.
    slack = 8 * 2.0**-52 * max(delta, -math.log(q))
    assert rest == pytest.approx(float(optimum.complement), rel=1e-14, abs=slack)


def test_the_textbook_residual_is_the_divergence_less_the_budget():
    q, g = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.2, 1.0])
    np.testing.assert_allclose(textbook_residual(g, q, 0.25), binary_kl(g, q) - 0.25, atol=1e-15)
