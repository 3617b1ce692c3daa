"""The demonstration command, on the pair that needs no download."""

import re

import pytest

from cactus_runtime.bench import draft_plan
from cactus_runtime.bench.pass_costs import PassCosts
from cactus_runtime.cli import main
from cactus_theory.planning import best_num_draft_tokens, speedup


def test_it_streams_the_text_and_prints_the_comparison(capsys):
    assert main(["demo", "--pair", "tiny", "--tokens", "12", "--seed", "3", "river:"]) == 0
    out = capsys.readouterr().out
    assert "river:" in out
    assert "speculative sampling" in out
    for figure in ("tokens/s", "accepted drafts", "acceptance by position", "block efficiency"):
        assert figure in out
    assert "total variation per token" in out
    assert "\x1b" not in out  # no colours where there is no terminal


def test_a_wrong_budget_is_a_sentence_and_not_a_traceback(capsys):
    assert main(["demo", "--pair", "tiny", "--delta", "-1"]) == 2
    assert "delta must be a number of nats" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("draft_cost", "verify_cost"),
    [(0.01, (1.0,) * 9), (0.4, (1.0,) * 9), (0.4, tuple(range(1, 10))), (2.0, (1.0,) * 9)],
)
def test_it_drafts_what_the_planning_functions_advise(draft_cost, verify_cost, capsys, monkeypatch):
    costs = PassCosts(draft_cost, verify_cost, 0.01)
    monkeypatch.setattr(draft_plan, "measure_costs", lambda *models, **options: costs)
    assert main(["demo", "--pair", "tiny", "--tokens", "12", "--seed", "3", "river:"]) == 0
    out = capsys.readouterr().out
    for name in ("speculative sampling", "Cactus"):
        (told,) = re.findall(rf"^{name}: .* acceptance rate of (\.?[\d.]+), (.*)$", out, re.M)
        rate, advice = float(told[0]), told[1]
        best = int(
            best_num_draft_tokens(
                rate, draft_cost=draft_cost, verify_cost=verify_cost, max_draft_tokens=8
            )
        )
        if best == 0:
            assert advice == "drafting gives nothing on this machine"
        else:
            gain = speedup(rate, best, draft_cost=draft_cost, verify_cost=verify_cost)
            found = re.fullmatch(r"(\d+) drafted tokens? should give ([\d.]+) times .*", advice)
            assert int(found[1]) == best
            # The rate is printed with two digits, and tokens add up to 9 powers of it.
            assert float(found[2]) == pytest.approx(gain, rel=0.05)
        drafted = re.search(rf"^{name} \((\d+) drafted tokens? per pass\): [\d.]+ times", out, re.M)
        assert int(drafted[1]) == max(best, 1)


def test_a_number_of_drafts_that_is_given_is_not_planned(capsys, monkeypatch):
    monkeypatch.setattr(draft_plan, "measure_costs", None)
    options = ["--pair", "tiny", "--tokens", "6", "--drafts", "3"]
    assert main(["demo", *options, "river:"]) == 0
    assert capsys.readouterr().out.count("(3 drafted tokens per pass)") == 2
